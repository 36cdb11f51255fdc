"""Ledgers of earlier runs, whose noise could change over the rounds as declared: read, and not counted too cheaply."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path

import pytest

from zetadp.privacy import accounting
from zetadp.privacy.account import Permission
from zetadp.privacy.events import Round, least_noise
from zetadp.privacy.exposure import declared, recorded_runs, run_of
from zetadp.privacy.ledger import Attempt, Ledger
from zetadp.privacy.statement import Terms, run_statement, total_statement

DELTA, P = 1e-3, 24 / 44
TERMS = Terms(DELTA, "patient", "os")
LEDGER = Path(__file__).with_name("changing_noise.jsonl")
"""Written by the mechanism of 31f4773, the last commit whose noise could change. Three attempts: 4 of 10 rounds with
falling noise and a line that a crash cut off; 6 rounds of rising noise, one of them released twice; and a single round.
"""
FIGURES = {
    "changing_noise": (3.081485025841384, 1.6248364132702748, 3.570544199802221),
    "changing_noise (attempt 2)": (0.3550017977870685, 0.18669356218202154, 0.42239716957780427),
    "changing_noise (attempt 3)": (0.1915605563912607, 0.07217881519513156, 0.23624975647327284),
}
"""Epsilon of each attempt as that commit stated it: against the server, against a reader, and the Renyi figure."""
TOGETHER = {"node-01": 3.1426752562190488, "node-02": 1.2970001432833427}


def header(rounds: int, decay: float, nodes: dict[str, float]) -> dict:
    return {
        "training": {"rounds": rounds, "noise_decay": decay},
        "nodes": [{"name": name, "noise_multiplier": sigma} for name, sigma in nodes.items()],
    }


def factor(number: int, rounds: int, decay: float) -> float:
    """Return the noise of a round over that of the first, as such runs had it: eight steps of equal ratio."""
    steps = min(8, rounds)
    return decay ** ((number * steps // rounds) / (steps - 1))


def attempt(rounds: int, decay: float, nodes: dict[str, float], made: int, torn: int = 0) -> Attempt:
    events = [
        Round(node, number, 44, 24.0, P, sigma * factor(number, rounds, decay), 1.0)
        for number in range(made)
        for node, sigma in nodes.items()
    ]
    return Attempt(header(rounds, decay, nodes), events, torn=torn)


def whole(rounds: int, decay: float, sigma: float) -> Counter:
    """Return what all declared rounds of a node are to an accountant."""
    return Counter((P, sigma * factor(number, rounds, decay)) for number in range(rounds))


def state(run) -> dict:
    weights = dict.fromkeys(run.nodes, 1.0)
    return run_statement(run, TERMS, weights=weights, target_epsilon=8)


def test_a_ledger_of_changing_noise_has_the_figures_that_it_had_when_such_runs_were_made():
    runs = recorded_runs(LEDGER)
    assert [run.name for run in runs] == list(FIGURES)
    for run in runs:
        found = state(run)
        figures = (found["epsilon"], found["audiences"]["reader"]["epsilon"], found["epsilon_rdp"])
        assert figures == pytest.approx(FIGURES[run.name], rel=1e-9)
    together = total_statement(runs, TERMS)["private_rows"]
    assert together["nodes"] == pytest.approx(TOGETHER, rel=1e-9)


def test_another_attempt_of_a_run_whose_noise_changed_counts_at_the_least_of_it(tmp_path):
    path = tmp_path / "run.jsonl"
    nodes = {"a": 6.0}
    made = attempt(16, 0.5, nodes, 16)
    constants = {"run": {"epsilon": "8"}, "noise": "os"}
    last = {**made.header, **constants, "nodes": [{**made.header["nodes"][0], "population": 44, "expected": 24.0}]}
    last["training"] = {**made.header["training"], "clip": 1.0}
    with Ledger(path) as ledger:
        ledger.start(last)
        for event in made.events:
            ledger.record([event])
    after = accounting.epsilon(whole(16, 0.5, 6.0) + Counter({(P, 3.0): 16}), DELTA)
    assert f"to {math.ceil(1000 * after) / 1000:.4g}, and that of" in Permission(DELTA).cost(path)


def test_a_copy_elsewhere_is_read_alike(tmp_path):
    shutil.copyfile(LEDGER, tmp_path / LEDGER.name)
    assert recorded_runs(tmp_path / LEDGER.name) == recorded_runs(LEDGER)


@pytest.mark.parametrize("decay", [0.3, 3.0])
@pytest.mark.parametrize("made", [1, 3, 10, 19])
def test_rounds_to_come_are_never_counted_below_what_they_will_cost(made, decay):
    """With falling noise they are dearer than all that were made."""
    nodes = {"a": 6.0, "b": 9.0}
    every, part = (run_of("run", attempt(20, decay, nodes, n)) for n in (20, made))
    for name, sigma in nodes.items():
        full = declared(every.nodes[name], 20)
        assert full == whole(20, decay, sigma)
        early = declared(part.nodes[name], 20)
        assert early.total() == 20
        assert accounting.epsilon_rdp(early, DELTA) >= accounting.epsilon_rdp(full, DELTA)


@pytest.mark.parametrize("decay", [0.3, 3.0])
def test_a_torn_line_counts_as_rounds_with_the_least_noise(decay):
    nodes = {"a": 6.0}
    releases = attempt(20, decay, nodes, 10, torn=1).releases()
    least = min(6.0 * factor(number, 20, decay) for number in range(20))
    assert [event.noise_multiplier for event in releases[10:]] == [least, least]
    constant = attempt(20, 1.0, nodes, 10, torn=1).releases()
    assert constant[-1] == constant[-2]


def test_headers_of_constant_noise_declare_nothing():
    assert least_noise({}) == {}
    assert least_noise(header(20, 1.0, {"a": 6.0})) == {}
    assert least_noise({"training": {"rounds": 3}}) == {}
    assert least_noise(header(20, 0.5, {"a": 6.0, "b": 0.0})) == {"a": 3.0, "b": 0.0}
    assert least_noise(header(20, 2.0, {"a": 6.0})) == least_noise(header(1, 0.5, {"a": 6.0})) == {"a": 6.0}


@pytest.mark.parametrize("decay", [0.0, -1.0, math.nan, math.inf])
def test_a_change_that_no_run_can_have_declared_is_refused(decay):
    with pytest.raises(ValueError, match="noise_decay"):
        least_noise(header(20, decay, {"a": 6.0}))


def test_readers_are_credited_with_the_noise_that_each_round_had():
    nodes = {"a": 6.0, "b": 9.0}
    found = state(run_of("run", attempt(16, 0.5, nodes, 16)))
    # Equal weights and divisors: in the average a round's noise is that of both nodes, step by step.
    together = whole(16, 0.5, math.hypot(6, 9))
    assert found["audiences"]["reader"]["epsilon"] == pytest.approx(accounting.epsilon(together, DELTA), rel=1e-6)
    assert found["epsilon"] == accounting.epsilon(whole(16, 0.5, 6.0), DELTA)
