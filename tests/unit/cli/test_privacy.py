"""The accounting commands: what their help promises is what they print, and mistakes end in one message."""

from __future__ import annotations

import io
import json
import shlex

import pytest
from commanded import mistake, said
from ledger_builder import record

from zetadp.accounting import composition, gaussian
from zetadp.accounting.kinds import NoisySum
from zetadp.cli import main

ROUNDS = "rounds --epsilon 1 --sampling-probability 24/44 --noise-multiplier 42.57 --delta 1e-3"
EPSILON = "epsilon --noise-multiplier 42.57 --sampling-probability 24/44 --rounds 917 --delta 1e-3"
NOISE = "noise --epsilon 1 --sampling-probability 24/44 --rounds 917 --delta 1e-3"


def refused(command: str, capsys) -> str:
    with pytest.raises(SystemExit) as end:
        main(shlex.split(command))
    assert end.value.code == 2
    return capsys.readouterr().err


def test_the_figures_are_those_of_the_library_with_the_name_of_their_accountant(capsys):
    assert said(capsys, EPSILON) == "epsilon 0.9995 at delta 0.001 (privacy-loss distribution)\n"
    assert said(capsys, NOISE).startswith("noise multiplier 42.551\n")
    assert said(capsys, ROUNDS).startswith("rounds 917\n")
    full = said(capsys, "epsilon --noise-multiplier 80 --sampling-probability 1 --rounds 900 --delta 1e-3")
    assert float(full.split()[1]) == pytest.approx(gaussian.epsilon(1e-3, 30 / 80), rel=1e-3)
    assert "(exact composition of Gaussians)" in full
    found = json.loads(said(capsys, f"{EPSILON} --json"))
    assert found["epsilon"] == composition.epsilon({NoisySum(24 / 44, 42.57): 917}, 1e-3)
    assert (found["sampling_probability"], found["noise_multiplier"], found["rounds"]) == (24 / 44, 42.57, 917)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("--noise-multiplier 1e-4", ">= 0.001, found 0.0001"),
        ("--noise-multiplier much", "such as 0.5, 1e-3 or 24/44, found 'much'"),
        ("--sampling-probability 24/0", "found '24/0'"),
        ("--sampling-probability 1.5", "<= 1, found 1.5"),
        ("--rounds 9.5", "whole number, found '9.5'"),
        ("--delta 1", ">= 1e-10 and <= 0.9999999999, found 1"),
        ("--noise-multiplier inf", "found 'inf'"),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_what_can(change, words, capsys):
    assert words in refused(f"{EPSILON} {change}", capsys)


# Ledgers


def test_ledgers_that_say_nothing_are_named(tmp_path, capsys):
    absent, empty, damaged = (tmp_path / f"{name}.jsonl" for name in ("absent", "empty", "damaged"))
    empty.touch()
    damaged.write_text("{}\n")
    assert str(absent) in mistake(capsys, f"ledger {absent}")
    assert str(empty) in mistake(capsys, f"ledger {empty}")
    assert "edited or damaged" in mistake(capsys, f"ledger {damaged}")


@pytest.mark.parametrize(("answer", "given"), [("yes", 1), ("", 0), ("no", 0)])
def test_another_attempt_is_permitted_only_after_a_question(answer, given, tmp_path, capsys, monkeypatch):
    path = tmp_path / "own.jsonl"
    record(path, delta=1e-5)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    before = len(path.read_text().splitlines())
    assert main(["permit", str(path)]) == (0 if given else 1)
    printed = capsys.readouterr().out
    assert "at delta 1e-05" in printed
    assert 0 < printed.index("--touch") < printed.index("With another attempt")
    assert len(path.read_text().splitlines()) == before + given
