"""Releases of features, as those who release and those who train on the rows see them."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
import torch
from flat_calls import private, release

import zetadp
from zetadp.account.attempts import read_ledger
from zetadp.accounting import composition
from zetadp.base.validation import UserError
from zetadp.cli.commands import main
from zetadp.own.rows import read_statement

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
    return release(records() if data is None else data, **{"file": folder / f"{name}.h5"} | PUBLIC | changed)


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
        "The release was (8, 1e-05)-differentially private for each patient, against anyone who has the rows"
    )
    assert statement["epsilon"] == composition.epsilon({event.kind: event.count}, 1e-5)
    assert statement["epsilon"] <= 8


UNEQUAL = (0.6, 0.25, 0.1, 0.05)


def unequal(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return real features and labels of classes of unequal size."""
    random = np.random.default_rng(seed)
    labels = random.choice(CLASSES, PEOPLE, p=UNEQUAL)
    return np.eye(COMPONENTS)[labels] + 0.3 * random.standard_normal((PEOPLE, COMPONENTS)), labels


def test_declared_shares_give_right_labels_to_unequal_classes(tmp_path):
    features, labels = (torch.from_numpy(part) for part in unequal(1))
    found = {}
    for name, shares in (("equal", None), ("declared", UNEQUAL)):
        released(tmp_path, records(*unequal(0)), name, active=0.25, norm=2, seed=0, shares=shares)
        scores = zetadp.fit_head(tmp_path / f"{name}.h5")(features.float())
        found[name] = float((scores.argmax(dim=1) == labels).float().mean())
    assert found["declared"] > 0.9 > found["equal"] + 0.1
    text = read_statement(tmp_path / "declared.h5").text
    assert "Labels assume the declared shares 0.6, 0.25, 0.1, 0.05." in text
    assert "Labels assume classes of equal size." in read_statement(tmp_path / "equal.h5").text
    with h5py.File(tmp_path / "declared.h5") as file:
        np.testing.assert_allclose(file.attrs["shares"], UNEQUAL)
        np.testing.assert_allclose(file["labels"][:].mean(axis=0), UNEQUAL, rtol=1e-5)
        assert json.loads(file.attrs["plan"])["training"]["mixing"]["shares"] == [*UNEQUAL]


@pytest.mark.parametrize("active", [0.5, 1])
def test_the_file_holds_norm_and_noise_of_its_features(tmp_path, active):
    released(tmp_path, records(np.eye(COMPONENTS)[LABELS]), active=active, norm=3, seed=0)
    with h5py.File(tmp_path / "rows.h5") as file:
        assert file.attrs["norm"] == 3
        nothing = file["features"][:, CLASSES:]  # these components are zero, so the rows have their noise alone
        assert nothing.std() == pytest.approx(file.attrs["noise"], rel=5 / np.sqrt(2 * nothing.size))


def test_a_head_fits_from_the_file_alone_and_clips_new_features(folder):
    head = zetadp.fit_head(folder / "rows.h5")
    features, labels = (torch.from_numpy(part) for part in people(1))
    scores = head(features.to(torch.complex64))
    assert float((scores.argmax(dim=1) == labels).float().mean()) > 0.9
    torch.testing.assert_close(head(100 * features), head(1000 * features))
    assert not torch.allclose(head(0.1 * features), head(0.2 * features))
    with pytest.raises(UserError, match=r"^features: Expected shape \(item, 6\)"):
        head(features[:, :2])
    with pytest.raises(UserError, match="as a release"):
        zetadp.fit_head(folder / "ledgers/rows.jsonl")


def test_the_statement_speaks_of_rows_and_not_of_a_training(folder):
    statement = read_statement(folder / "rows.h5")
    assert statement["rows"]["number"] == PEOPLE
    assert statement["rows"]["active"] == 0.5
    degree = statement["rows"]["degree"]["central"]
    text = statement.text
    assert f"Rows: {PEOPLE}, each the noisy sum of {degree:.3g} patients on average" in text
    assert "Each class is open in 50 % of the rows." in text
    for words in ("rounds", "every round", "training patient", "intermediate model", "every model", "in the models"):
        assert words not in text.lower()


@pytest.mark.parametrize("what", ["risk", "verify", "ledger"])
def test_rows_are_not_called_a_damaged_ledger(folder, capsys, what):
    assert command(what, folder / "rows.h5") == 1
    said = capsys.readouterr().err
    assert "ledgers/NAME.jsonl" in said
    assert "damaged" not in said


@pytest.mark.parametrize("name", ["rows.csv", "rows", "rows.npz"])
def test_a_file_of_another_kind_is_refused_before_anything_is_recorded(tmp_path, name):
    with pytest.raises(UserError, match=r"^file: Expected a name that ends in \.h5"):
        released(tmp_path, file=tmp_path / name)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_release_is_in_the_account_of_its_people_and_made_once(tmp_path, capsys):
    released(tmp_path, epsilon=2)
    before = (tmp_path / "rows.h5").read_bytes()
    with pytest.raises(UserError, match="permit"):
        released(tmp_path, epsilon=2)
    assert (tmp_path / "rows.h5").read_bytes() == before
    model = torch.nn.Linear(COMPONENTS, CLASSES, dtype=torch.complex64)
    constants = {"epsilon": 2, "delta": 1e-4, "population": PEOPLE, "per_round": 30, "rounds": 2}
    run = private(model, records(), folder=tmp_path / "run", **constants, loss=loss)
    assert run.promise.runs_before == 1
    assert run.promise.together > run.promise.epsilon
    run.train()
    with pytest.raises(UserError, match="cap is 3"):
        released(tmp_path, name="again", epsilon=2, most_epsilon=3)
    assert released(tmp_path, name="again", epsilon=2, seed=1).guarantee == "simulated"
    assert "again: releases at epsilon 2, delta 1e-05; with 2 other run" in capsys.readouterr().err


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
    assert "Rows were released 1 time before" in second
    with h5py.File(tmp_path / "rows.h5") as file:
        named = json.loads(file.attrs["plan"])["run"]["epsilon"]
    assert float(named) <= 1.2345678  # for which the noise is found: no more than was asked for


def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores.real, labels, reduction="none")


def test_a_release_that_was_interrupted_sends_what_it_had_drawn(tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("zetadp.training.server.HeadReceiver.step", interrupted)
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
    "few shares": ({}, {"shares": (0.5, 0.5)}, "shares"),
    "shares of 2": ({}, {"shares": (0.5,) * 4}, "shares"),
    "share of none": ({}, {"shares": (0.5, 0.5, 0, 0)}, "shares"),
    "shares as words": ({}, {"shares": "half"}, "shares"),
    "one share": ({}, {"shares": 0.25}, "shares"),
    "shares without use": ({}, {"shares": (0.25,) * 4, "active": 1}, "shares"),
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
        assert file["features"].dtype == np.float32
        assert (file["labels"][:] < 0).any()  # labels under noise
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no archive")
    (tmp_path / "f.csv").write_text("1,2\n3,4\n")
    np.save(tmp_path / "f.npy", features)
    np.savez(tmp_path / "objects.npz", features=np.array([{}, []], dtype=object), labels=labels)
    other = ["--ledger", tmp_path / "ledgers/other.jsonl", "--cap", 1.5]
    for name, more, words in (
        ("rows.h5", [], "NumPy file"),
        ("f.csv", [], "such as CSV or .npy. Write it by numpy.savez("),
        ("f.npy", [], "such as CSV or .npy. Write it by numpy.savez("),
        ("objects.npz", [], "found Python objects"),
        ("f.npz", ["--active", 0.5, "--shares", 0.5, 0.5], "shares: Expected a share for each of 4 classes, found 2"),
        ("broken.npz", [], "NumPy file"),
        ("f.npz", ["--delta", 1 / (PEOPLE - 1)], "delta"),
        ("f.npz", other, "The cap is 1.5. Nothing was released.\n"),
    ):
        assert command("release", tmp_path / name, tmp_path / "x.h5", *OPTIONS, *more) == 1
        said = capsys.readouterr().err
        assert words in said
        assert "pickle" not in said
    assert command("statement", tmp_path / "f.npz") == 1
    assert not (tmp_path / "x.h5").exists()
    assert not any(attempt.events for attempt in read_ledger(tmp_path / "ledgers/other.jsonl"))
