"""Released files, as those who release and those who train on them see them."""

from __future__ import annotations

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest

from zetadp.base.validation import UserError
from zetadp.cli.commands import main
from zetadp.privacy import accounting
from zetadp.privacy.ledger import read_ledger
from zetadp.rows.file import read_statement
from zetadp.rows.release import ReleaseSettings, release_features

PEOPLE, CLASSES, COMPONENTS = 2000, 4, 6
SETTINGS = ReleaseSettings(8, 1e-5, people=PEOPLE, classes=CLASSES, active=0.5)

CLASSIFIER = """
import sys, importlib.util
sys.modules["zetadp"] = None  # whatever imports it fails
import h5py, numpy as np
with h5py.File(sys.argv[1]) as file:
    x, y, classes = file["features"][:], file["labels"][:], file["classes"][:]
x = np.hstack([x.real, x.imag, np.ones((len(x), 1))])
weights = np.linalg.lstsq(x, y, rcond=None)[0]
test = np.load(sys.argv[2])
z = np.hstack([test["features"].real, test["features"].imag, np.ones((len(test["labels"]), 1))])
print((np.argmax(z @ weights, axis=1) == test["labels"]).mean(), len(classes))
"""


def people(seed: int, *, real: bool = False) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, PEOPLE)
    features = np.eye(COMPONENTS)[labels] + 0.2 * random.standard_normal((PEOPLE, COMPONENTS))
    return features if real else features * np.exp(1j * np.pi / 3), labels


def released(folder, wanted: ReleaseSettings = SETTINGS, **more) -> dict:
    features, labels = people(0)
    return release_features(features, labels, wanted, ledger=folder / "rows.jsonl", file=folder / "rows.h5", **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("release")
    released(place)
    return place


def test_others_open_the_file_and_train_on_it_without_this_library(folder):
    features, labels = people(1)
    np.savez(folder / "test.npz", features=features, labels=labels)
    command = [sys.executable, "-c", CLASSIFIER, str(folder / "rows.h5"), str(folder / "test.npz")]
    accuracy, classes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert float(accuracy) > 0.9
    assert int(classes) == CLASSES


def test_the_file_says_what_it_is_and_what_it_costs(folder):
    with h5py.File(folder / "rows.h5") as file:
        features, labels = file["features"], file["labels"]
        assert features.shape == (PEOPLE, COMPONENTS)
        assert features.dtype == np.complex64
        assert [axis.label for axis in features.dims] == ["row", "component"]
        assert [axis.label for axis in labels.dims] == ["row", "class"]
        plan = json.loads(file.attrs["plan"])
        # Each class is open in half of the rows, as published.
        assert ((labels[:] > 0).sum(axis=0) == PEOPLE / 2).all()
    statement = read_statement(folder / "rows.h5")
    (attempt,) = read_ledger(folder / "rows.jsonl")
    (event,) = attempt.events
    assert event.count == PEOPLE / 2
    assert plan["nodes"][0]["noise_multiplier"] == event.noise_multiplier
    assert statement["guarantee"] == "holds"
    assert statement["statement"].startswith(
        "The release was (8, 1e-05)-differentially private for each training patient"
    )
    assert "against anyone who has the rows" in statement["statement"]
    assert statement["epsilon"] == accounting.epsilon({event.kind: event.count}, 1e-5)
    assert statement["epsilon"] <= 8


def test_rows_are_released_once(folder):
    before = (folder / "rows.h5").read_bytes()
    with pytest.raises(UserError, match="trained 1 time"):
        released(folder)
    assert (folder / "rows.h5").read_bytes() == before


def test_a_release_that_was_interrupted_sends_what_it_had_drawn(tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("zetadp.core.server.HeadReceiver.step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            released(tmp_path)
    (kept,) = (tmp_path / "rows.checkpoint.messages").glob("*")
    rows = kept.read_bytes()
    released(tmp_path)
    (attempt,) = read_ledger(tmp_path / "rows.jsonl")
    assert len(attempt.events) == 1
    with h5py.File(tmp_path / "rows.h5") as file:
        scaled = file["features"][:]
    numbers = np.frombuffer(rows[-8 * scaled.size :], dtype=np.complex64).reshape(scaled.shape)
    np.testing.assert_allclose(scaled, numbers, rtol=1e-6)  # clip and norm are one: nothing is scaled


def test_seeded_rows_are_a_simulation(tmp_path):
    assert released(tmp_path, noise="seeded")["guarantee"] == "simulated"


@pytest.mark.parametrize(
    ("change", "message"),
    [({"people": 1999}, "as declared"), ({"classes": 3}, "labels from 0 to 2"), ({"rows": 10**9}, "for example 2000")],
)
def test_what_is_not_as_declared_is_refused_before_anything_is_released(tmp_path, change, message):
    from dataclasses import replace

    with pytest.raises(UserError, match=message):
        released(tmp_path, replace(SETTINGS, **change))
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.parametrize("change", [lambda y: y + 0.5, lambda y: y.astype(str), lambda y: np.where(y, y, np.nan)])
def test_labels_that_are_no_whole_numbers_are_refused_before_anything_is_released(tmp_path, change):
    features, labels = people(0)
    where = {"ledger": tmp_path / "rows.jsonl", "file": tmp_path / "rows.h5"}
    with pytest.raises(UserError, match="labels"):
        release_features(features, change(labels), SETTINGS, **where)
    assert not where["ledger"].exists()


@pytest.mark.parametrize("found", [np.nan, np.inf, 1e300])
def test_features_that_would_add_nothing_are_refused_before_anything_is_released(tmp_path, capsys, found):
    features, labels = people(0)
    features[3, 0] = found
    np.savez(tmp_path / "odd.npz", features=features.astype(complex), labels=labels)
    given = [str(tmp_path / "odd.npz"), str(tmp_path / "rows.h5")]
    constants = ["--people", str(len(features)), "--classes", str(CLASSES), "--epsilon", "8"]
    constants += ["--delta", "1e-4"]
    assert main(["release", *given, *constants]) == 1
    said = capsys.readouterr().err
    assert "features" in said
    assert "row 3" in said
    assert not (tmp_path / "ledgers").exists()


@pytest.mark.parametrize("change", [lambda x: x[:, :0], lambda x: x.astype(str)])
def test_features_that_are_no_numbers_are_refused(tmp_path, change):
    features, labels = people(0)
    with pytest.raises(UserError, match="numbers as features"):
        release_features(change(features), labels, SETTINGS, ledger=tmp_path / "l.jsonl", file=tmp_path / "rows.h5")


def test_the_command_releases_real_features_and_prints_the_statement(tmp_path, capsys):
    features, labels = people(0, real=True)
    np.savez(tmp_path / "f.npz", features=features, labels=labels)
    options = ["--people", str(PEOPLE), "--classes", str(CLASSES), "--epsilon", "1", "--delta", "1e-5"]
    assert main(["release", str(tmp_path / "f.npz"), str(tmp_path / "rows.h5"), *options]) == 0
    printed = capsys.readouterr().out
    assert "epsilon" in printed
    assert main(["statement", str(tmp_path / "rows.h5")]) == 0
    assert capsys.readouterr().out == printed
    with h5py.File(tmp_path / "rows.h5") as file:
        assert not file["features"][:].imag.any()
        assert (file["labels"][:] < 0).any()  # labels under noise
    assert main(["statement", str(tmp_path / "f.npz")]) == 1
    assert main(["release", str(tmp_path / "rows.h5"), str(tmp_path / "x.h5"), *options]) == 1
    assert "Expected" in capsys.readouterr().err
    for content in (b"", b"PK\x03\x04 and no archive"):
        (tmp_path / "broken.npz").write_bytes(content)
        assert main(["release", str(tmp_path / "broken.npz"), str(tmp_path / "x.h5"), *options]) == 1
        assert "Expected" in capsys.readouterr().err


def test_a_release_that_would_cross_the_cap_records_and_writes_nothing(tmp_path, capsys):
    """What earlier releases cost the same people counts, by the ledgers and the register in the folder."""
    features, labels = (part[:100] for part in people(0))
    np.savez(tmp_path / "features.npz", features=features, labels=labels)
    given = ["--people", 100, "--rows", 50, "--classes", CLASSES, "--epsilon", 2, "--delta", 1e-5, "--cap", 2.5]

    def release(name: str) -> int:
        ledger = tmp_path / "ledgers" / f"{name}.jsonl"
        where = [tmp_path / "features.npz", tmp_path / f"{name}.h5", "--ledger", ledger]
        return main([str(word) for word in ("release", *where, *given)])

    assert release("first") == 0
    capsys.readouterr()
    assert release("second") == 1
    said = capsys.readouterr().err
    assert "from epsilon 2" in said
    assert said.endswith("The cap is 2.5. Nothing was released.\n")
    assert not (tmp_path / "second.h5").exists()
    assert not any(attempt.events for attempt in read_ledger(tmp_path / "ledgers/second.jsonl"))
    # An end that is gone, or a whole ledger, is no room to release into.
    (tmp_path / "ledgers/first.jsonl").unlink()
    assert release("third") == 1
    assert "first.jsonl is missing" in capsys.readouterr().err
