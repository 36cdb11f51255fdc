"""The accounting commands: what their help promises is what they print, and mistakes end in one message."""

from __future__ import annotations

import hashlib
import io
import json
import shlex

import pytest
import torch
from commanded import mistake, said

from zetadp.cli import main
from zetadp.privacy import accounting, gaussian
from zetadp.privacy.events import Event, entries_of
from zetadp.privacy.kinds import NoisySum
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.mechanism import NodeMechanism

P = 24 / 44
EVENT = Event.poisson("clinic", population=44, expected=24.0, noise_multiplier=8.0, clip=1.0)
EPSILON = "epsilon --noise-multiplier 42.57 --sampling-probability 24/44 --rounds 917 --delta 1e-3"
NOISE = "noise --epsilon 1 --sampling-probability 24/44 --rounds 917 --delta 1e-3"
ROUNDS = "rounds --epsilon 1 --sampling-probability 24/44 --noise-multiplier 42.57 --delta 1e-3"


def refused(command: str, capsys) -> str:
    with pytest.raises(SystemExit) as end:
        main(shlex.split(command))
    assert end.value.code == 2
    return capsys.readouterr().err


def test_epsilon_names_its_accountant_and_the_two_others(capsys):
    quoted, renyi, limit = said(capsys, EPSILON).splitlines()
    assert quoted == "epsilon 0.9995 at delta 0.001 (privacy-loss distribution, an upper bound)"
    assert float(renyi.split()[0]) == pytest.approx(1.15, abs=0.005)
    assert "looser upper bound" in renyi
    assert "not a bound" in limit
    full = said(capsys, "epsilon --noise-multiplier 80 --sampling-probability 1 --rounds 900 --delta 1e-3")
    figure, rest = full.splitlines()[0].removeprefix("epsilon ").split(" at ")
    assert float(figure) == pytest.approx(gaussian.epsilon(1e-3, 30 / 80), rel=1e-3)
    assert rest == "delta 0.001 (exact composition of Gaussians)"


def test_json_has_all_digits_and_says_what_was_asked(capsys):
    found = json.loads(said(capsys, f"{EPSILON} --json"))
    assert found["epsilon"] == accounting.epsilon({NoisySum(P, 42.57): 917}, 1e-3)
    assert found["epsilon_rdp"] == accounting.epsilon_rdp({NoisySum(P, 42.57): 917}, 1e-3)
    assert found["epsilon"] > found["epsilon_central_limit_not_a_bound"]
    assert (found["sampling_probability"], found["noise_multiplier"], found["rounds"]) == (P, 42.57, 917)
    assert json.loads(said(capsys, f"{NOISE} --json"))["noise_multiplier"] == pytest.approx(42.551)
    assert json.loads(said(capsys, f"{ROUNDS} --json"))["rounds"] == 917


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("--noise-multiplier 1e-4", ">= 0.001, found 0.0001"),
        ("--noise-multiplier much", "such as 0.5, 1e-3 or 24/44, found 'much'"),
        ("--noise-multiplier nan", "found 'nan'"),
        ("--sampling-probability 24/0", "found '24/0'"),
        ("--sampling-probability 1.5", "<= 1, found 1.5"),
        ("--sampling-probability 0", "> 0"),
        ("--rounds 9.5", "whole number, found '9.5'"),
        ("--delta 1", ">= 1e-10 and <= 0.9999999999, found 1"),
        ("--delta 1e-12", "found 1e-12"),
        ("--noise-multiplier 1e400", "found '1e400'"),
        ("--noise-multiplier inf", "found 'inf'"),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_what_can(change, words, capsys):
    assert words in refused(f"{EPSILON} {change}", capsys)


# Ledgers


def write_own_ledger(path, header, rounds=7):
    """Train with the public classes alone, under a header of the user's own."""
    with Ledger(path) as ledger:
        ledger.start(header)
        mechanism = NodeMechanism(EVENT, seed=3, ledger=ledger)
        for number in range(rounds):
            draw = mechanism.draw(number)
            ledger.record([draw.event])
            mechanism.release(draw, torch.zeros(4))
    return path


OWN = {
    "unit": "patient",
    "delta": 1e-3,
    "noise": "os",
    "training": {"rounds": 7},
    "releases": entries_of([EVENT]),
}
"""What a program of one's own declares."""


@pytest.mark.parametrize(("changes", "rounds"), [({}, 7), ({"of": "knees", "training": {"rounds": 20}}, 20)])
def test_a_ledger_of_the_librarys_user_is_accounted(changes, rounds, tmp_path, capsys):
    path = write_own_ledger(tmp_path / "own.jsonl", OWN | changes)
    found = json.loads(said(capsys, f"ledger --json {path}"))
    assert found["private_rows"]["epsilon"] == accounting.epsilon({NoisySum(P, 8.0): rounds}, 1e-3)
    assert found["guarantee"] == "holds"


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"sums": {"colluding": "many"}}, "many"),
        ({"noise": "laser"}, "laser"),
        ({"unit": "image"}, "image"),
        ({"delta": 2}, "delta"),
        ({"training": {"rounds": "many"}}, "training.rounds to be a whole number, found 'many'"),
        ({"training": {"rounds": 0}}, "training.rounds >= 1 and <= 1000000000000, found 0"),
        ({"images_of_a_patient": "some"}, "'some'"),
    ],
)
def test_a_header_that_contradicts_itself_is_one_message_with_the_file_and_what_is_missing(
    header, words, tmp_path, capsys
):
    path = write_own_ledger(tmp_path / "own.jsonl", OWN | header)
    message = mistake(capsys, f"ledger {path}")
    assert str(path) in message
    assert words in message


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"kind": "round"}, "lacks the key 'releases'"),
        ({"kind": "round", "releases": [{"nodes": ["a"], "round": 0}]}, "lacks the key 'clip'"),
        ({"kind": "round", "releases": 3}, "holds a value"),
    ],
)
def test_a_line_of_another_program_that_says_too_little_is_named(entry, words, tmp_path, capsys):
    path = write_own_ledger(tmp_path / "own.jsonl", {})
    text = json.dumps(entry)
    head = json.loads(path.read_text().splitlines()[-1])["chain"]
    chain = hashlib.sha256((head + text).encode()).hexdigest()
    with path.open("a") as file:
        file.write(f'{{"chain":"{chain}","entry":{text}}}\n')
    message = mistake(capsys, f"ledger {path}")
    assert str(path) in message
    assert words in message


def test_ledgers_that_say_nothing_are_named(tmp_path, capsys):
    absent, empty, damaged = (tmp_path / f"{name}.jsonl" for name in ("absent", "empty", "damaged"))
    empty.touch()
    damaged.write_text("{}\n")
    assert str(absent) in mistake(capsys, f"ledger {absent}")
    assert str(empty) in mistake(capsys, f"ledger {empty}")
    assert "edited or damaged" in mistake(capsys, f"ledger {damaged}")


@pytest.mark.parametrize(("answer", "given"), [("yes", 1), ("", 0), ("no", 0)])
def test_another_attempt_is_permitted_only_after_a_question(answer, given, tmp_path, capsys, monkeypatch):
    path = write_own_ledger(tmp_path / "own.jsonl", {**OWN, "delta": 1e-5})
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    before = len(path.read_text().splitlines())
    assert main(["permit", str(path)]) == (0 if given else 1)
    assert "at delta 1e-05" in capsys.readouterr().out
    assert len(path.read_text().splitlines()) == before + given
