"""Releases of features, as those who release and those who train on the rows see them."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
import torch

import zetadp
from zetadp.base.validation import UserError
from zetadp.cli.commands import main
from zetadp.front.rows import read_statement
from zetadp.privacy import accounting
from zetadp.privacy.ledger import read_ledger

PEOPLE, CLASSES, COMPONENTS = 2000, 4, 6
PUBLIC = {"epsilon": 8, "delta": 1e-5, "population": PEOPLE, "classes": CLASSES, "active": np.float64(0.5)}
OPTIONS = ["--people", PEOPLE, "--classes", CLASSES, "--epsilon", 1, "--delta", 1e-5]


def people(seed: int = 0, *, real: bool = False) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, PEOPLE)
    features = np.eye(COMPONENTS)[labels] + 0.2 * random.standard_normal((PEOPLE, COMPONENTS))
    return features if real else features * np.exp(1j * np.pi / 3), labels


FEATURES, LABELS = people()


def records(features=FEATURES, labels=LABELS, ids=range(PEOPLE)) -> zetadp.Records:
    return zetadp.Records(features, labels, patients=ids)


def released(folder, data=None, name="rows", **changed):
    return zetadp.release(records() if data is None else data, **{"file": folder / f"{name}.h5"} | PUBLIC | changed)


def command(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("release")
    assert released(place).guarantee == "holds"
    return place


def test_the_file_says_what_it_is_and_what_it_costs(folder):
    with h5py.File(folder / "rows.h5") as file:
        features, labels = file["features"], file["labels"]
        assert features.shape == (PEOPLE, COMPONENTS)
        assert features.dtype == np.complex64
        assert [axis.label for axis in features.dims] == ["row", "component"]
        assert [axis.label for axis in labels.dims] == ["row", "class"]
        assert file["classes"].asstr()[:].tolist() == ["0", "1", "2", "3"]
        plan = json.loads(file.attrs["plan"])
        # Each class is open in half of the rows, as published.
        assert ((labels[:] > 0).sum(axis=0) == PEOPLE / 2).all()
    statement = read_statement(folder / "rows.h5")
    (attempt,) = read_ledger(folder / "ledgers/rows.jsonl")
    (event,) = attempt.events
    assert event.count == PEOPLE / 2
    assert plan["nodes"][0]["noise_multiplier"] == event.noise_multiplier
    assert statement["statement"].startswith(
        "The release was (8, 1e-05)-differentially private for each training patient"
    )
    assert "against anyone who has the rows" in statement["statement"]
    assert statement["epsilon"] == accounting.epsilon({event.kind: event.count}, 1e-5)
    assert statement["epsilon"] <= 8


def test_a_release_is_in_the_account_of_its_people_and_made_once(tmp_path, capsys):
    released(tmp_path, epsilon=2)
    before = (tmp_path / "rows.h5").read_bytes()
    with pytest.raises(UserError, match="permit"):
        released(tmp_path, epsilon=2)
    assert (tmp_path / "rows.h5").read_bytes() == before
    model = torch.nn.Linear(COMPONENTS, CLASSES, dtype=torch.complex64)
    constants = {"epsilon": 2, "delta": 1e-4, "population": PEOPLE, "per_round": 30, "rounds": 2}
    run = zetadp.private(model, records(), folder=tmp_path / "run", **constants, loss=loss)
    assert run.promise.runs_before == 1
    assert run.promise.together > run.promise.epsilon
    run.train()
    with pytest.raises(UserError, match="cap is 3"):
        released(tmp_path, name="again", epsilon=2, most_epsilon=3)
    assert released(tmp_path, name="again", epsilon=2, seed=1).guarantee == "simulated"
    assert "again: releases at epsilon 2, delta 1e-05; with 2 earlier run" in capsys.readouterr().err


def test_a_name_stands_for_the_people_of_its_first_call(tmp_path, capsys):
    others = records(ids=range(PEOPLE, 2 * PEOPLE))
    with pytest.raises(UserError, match="cap is 1"):
        released(tmp_path, most_epsilon=1)
    with pytest.raises(UserError, match="found others"):
        released(tmp_path, others)
    np.savez(tmp_path / "f.npz", features=FEATURES, labels=LABELS)
    anybody = ["--ledger", tmp_path / "ledgers/rows.jsonl"]
    assert command("release", tmp_path / "f.npz", tmp_path / "x.h5", *OPTIONS, *anybody) == 1
    assert "found others" in capsys.readouterr().err
    assert not any(attempt.events for attempt in read_ledger(tmp_path / "ledgers/rows.jsonl"))
    released(tmp_path, others, name="theirs", most_epsilon=8)
    again = records(ids=[f"sub-{number}" for number in range(PEOPLE)])
    with pytest.raises(UserError, match="write their ids as in the earlier run"):
        released(tmp_path, again, name="again")


@pytest.mark.parametrize("name", [".a.jsonl", "register", "secret", "a b.jsonl", "rows.json"])
def test_a_ledger_has_a_name_that_totals_find(tmp_path, capsys, name):
    """A hidden ledger is never added up, and the name of another file of an account ruins the account."""
    np.savez(tmp_path / "f.npz", features=FEATURES, labels=LABELS)
    ledger = ["--ledger", tmp_path / "ledgers" / name]
    assert command("release", tmp_path / "f.npz", tmp_path / "x.h5", *OPTIONS, *ledger) == 1
    assert "Expected" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"f.npz"}


def test_one_row_is_a_release_too_and_repeated_rows_are_no_model(tmp_path):
    first, second = (str(released(tmp_path, rows=1, active=1, seed=1, epsilon=1.2345678)) for _ in range(2))
    assert "the release would be" in first
    assert "Rows were released 1 time(s) before" in second
    with h5py.File(tmp_path / "rows.h5") as file:
        named = json.loads(file.attrs["plan"])["run"]["epsilon"]
    assert float(named) <= 1.2345678  # for which the noise is found: no more than was asked for


def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores.real, labels, reduction="none")


def test_a_release_that_was_interrupted_sends_what_it_had_drawn(tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("zetadp.core.server.HeadReceiver.step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            released(tmp_path)
    (kept,) = (tmp_path / "ledgers/rows.checkpoint.messages").glob("*")
    rows = kept.read_bytes()
    released(tmp_path)
    (attempt,) = read_ledger(tmp_path / "ledgers/rows.jsonl")
    assert len(attempt.events) == 1
    with h5py.File(tmp_path / "rows.h5") as file:
        scaled = file["features"][:]
    numbers = np.frombuffer(rows[-8 * scaled.size :], dtype=np.complex64).reshape(scaled.shape)
    np.testing.assert_allclose(scaled, numbers, rtol=1e-6)  # clip and norm are one: nothing is scaled


WRONG = {
    "several items": ({"ids": [place // 2 for place in range(PEOPLE)]}, {"population": PEOPLE // 2}, "records"),
    "shape": ({"features": FEATURES[:, None]}, {}, "records"),
    "no numbers": ({"features": FEATURES.astype(str)}, {}, "items"),
    "too large": ({"features": np.where(np.arange(PEOPLE)[:, None] == 3, 1e300, FEATURES)}, {}, "items"),
    "no whole labels": ({"labels": LABELS + 0.5}, {}, "labels"),
    "other classes": ({}, {"classes": 3}, "labels"),
    "population": ({}, {"population": 1999}, "population"),
    "epsilon": ({}, {"epsilon": float("inf")}, "epsilon: Expected a finite number, found inf"),
    "delta": ({}, {"delta": 0.1}, "delta"),
    "no classes": ({}, {"classes": "two"}, "classes"),
    "no component": ({"features": FEATURES[:, :0]}, {}, "records"),
    "simulated without noise": ({}, {"epsilon": float("inf"), "seed": 1}, "epsilon"),
    "rows": ({}, {"rows": 1.5}, "rows"),
    "active": ({}, {"active": 0.0}, "active"),
    "no fraction": ({}, {"active": 0.1234567891}, "active"),
    "degree": ({}, {"degree": 2500.0}, "degree"),
    "degree of open rows": ({}, {"degree": 1500.0}, "degree"),
    "file": ({}, {"name": ""}, "file|folder"),
    "no file": ({}, {"file": None}, "file"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_a_release_is_refused_by_name_and_nothing_is_recorded(tmp_path, what):
    data, changed, name = WRONG[what]
    with pytest.raises(UserError, match=rf"^({name}): "):
        released(tmp_path, records(**data), **changed)
    assert not list(tmp_path.glob("ledgers/*.jsonl"))


def test_no_records_and_rows_that_mix_nobody_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"^records: "):
        released(tmp_path, FEATURES)
    with pytest.raises(UserError, match="for example 2000"):
        released(tmp_path, rows=10**9)
    (tmp_path / "folder.h5").mkdir()
    with pytest.raises(UserError, match="Is a directory"):
        released(tmp_path, name="folder")
    assert not list(tmp_path.glob("ledgers/*.jsonl"))


def test_the_command_releases_real_features_and_prints_the_statement(tmp_path, capsys):
    features, labels = people(real=True)
    np.savez(tmp_path / "f.npz", features=features, labels=labels)
    assert command("release", tmp_path / "f.npz", tmp_path / "rows.h5", *OPTIONS) == 0
    printed = capsys.readouterr().out
    assert "epsilon" in printed
    assert command("statement", tmp_path / "rows.h5") == 0
    assert capsys.readouterr().out == printed
    with h5py.File(tmp_path / "rows.h5") as file:
        assert not file["features"][:].imag.any()
        assert (file["labels"][:] < 0).any()  # labels under noise
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no archive")
    other = ["--ledger", tmp_path / "ledgers/other.jsonl", "--cap", 1.5]
    for name, more, words in (
        ("rows.h5", [], "NumPy file"),
        ("broken.npz", [], "NumPy file"),
        ("f.npz", ["--delta", 1 / (PEOPLE - 1)], "delta"),
        ("f.npz", other, "The cap is 1.5. Nothing was released.\n"),
    ):
        assert command("release", tmp_path / name, tmp_path / "x.h5", *OPTIONS, *more) == 1
        assert words in capsys.readouterr().err
    assert command("statement", tmp_path / "f.npz") == 1
    assert not (tmp_path / "x.h5").exists()
    assert not any(attempt.events for attempt in read_ledger(tmp_path / "ledgers/other.jsonl"))
