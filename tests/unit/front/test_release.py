"""A release by the front door: its account is that of trainings, and each mistake is named."""

from __future__ import annotations

import h5py
import pytest
import torch

import zetadp
from zetadp.base.validation import UserError

PEOPLE = 300
GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(2, (PEOPLE,), generator=GENERATOR)
FEATURES = torch.eye(4)[LABELS] + 0.1 * torch.randn(PEOPLE, 4, generator=GENERATOR)
PUBLIC = {"epsilon": 2, "delta": 1e-4, "population": PEOPLE}


def people(features=FEATURES, labels=LABELS, ids=range(PEOPLE)) -> zetadp.Records:
    return zetadp.Records(features, labels, patients=ids)


def released(tmp_path, data=None, name="rows", **changed):
    data = people() if data is None else data
    return zetadp.release(data, file=tmp_path / f"{name}.h5", **PUBLIC | {"classes": 2} | changed)


def test_a_release_is_in_the_account_of_its_people_and_made_once(tmp_path, capsys):
    statement = released(tmp_path)
    assert statement.guarantee == "holds"
    assert statement.content["epsilon"] <= 2
    with h5py.File(tmp_path / "rows.h5") as file:
        assert file["features"].shape == (PEOPLE, 4)
    with pytest.raises(UserError, match="permit"):
        released(tmp_path)
    model = torch.nn.Linear(4, 2)
    run = zetadp.private(model, people(), folder=tmp_path / "run", **PUBLIC, per_round=30, rounds=2)
    assert run.promise.runs_before == 1
    assert run.promise.together > run.promise.epsilon
    run.train()
    with pytest.raises(UserError, match="cap is 3"):
        released(tmp_path, name="again", most_epsilon=3)
    released(tmp_path, name="again", seed=1)
    assert "again: releases at epsilon 2, delta 0.0001; with 2 earlier run" in capsys.readouterr().err


WRONG = {
    "several items": ({"data": people(ids=[place // 2 for place in range(PEOPLE)]), "population": 150}, "records"),
    "shape": ({"data": people(FEATURES[:, None])}, "records"),
    "no records": ({"data": FEATURES}, "records"),
    "population": ({"population": 299}, "population"),
    "epsilon": ({"epsilon": float("inf")}, "epsilon"),
    "simulated without noise": ({"epsilon": float("inf"), "seed": 1}, "epsilon"),
    "delta": ({"delta": 0.1}, "delta"),
    "no classes": ({"classes": "two"}, "classes"),
    "too few classes": ({"classes": 1}, "classes"),
    "rows": ({"rows": 1.5}, "rows"),
    "file": ({"name": ""}, "file|folder"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_a_release_is_refused_by_name_and_nothing_is_recorded(tmp_path, what):
    changed, name = WRONG[what]
    with pytest.raises(UserError, match=rf"^({name}): "):
        released(tmp_path, **changed)
    assert not list(tmp_path.glob("ledgers/*.jsonl"))
