"""Statements: every figure is that of the accountant, and nothing is claimed that does not hold."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from zetadp.account.declaration import Limit, Series
from zetadp.account.exposure import Run
from zetadp.account.statement import leading_epsilon, run_statement, total_statement
from zetadp.account.totals import Total
from zetadp.accounting import composition
from zetadp.accounting.events import Event, histories
from zetadp.accounting.kinds import NoisySum
from zetadp.base.epsilon import rounded_up
from zetadp.base.validation import UserError

P = 24 / 44
NODES = tuple(f"node-{index:02d}" for index in range(11))


def rounds_of(sigma, rounds, nodes=NODES, p=P, population=44):
    clip = 1.0 if sigma else math.inf
    return [
        Event(node, number, population, 24.0, clip, NoisySum(p, sigma)) for number in range(rounds) for node in nodes
    ]


def federated(name="run", sigma=42.567, rounds=917, declared=917, nodes=NODES):
    return Run(name, histories(rounds_of(sigma, rounds, nodes)), declared)


def state(run, delta=1e-3, unit="patient", noise_source="os", **changes):
    given = {"target_epsilon": 1.0, **changes}
    return run_statement(replace(run, delta=delta, unit=unit, noise=noise_source), **given)


def total(runs, delta=1e-3, unit="patient", noise_source="os", **changes):
    series = Series("declared together", sum(run.private for run in runs))
    own = [replace(run, delta=delta, unit=unit, noise=noise_source, series=series) for run in runs]
    return total_statement(own, **changes)


@pytest.fixture(scope="module")
def printed():
    """The federated run of the paper at epsilon 1, per record."""
    return state(federated(), unit="record")


def test_a_speaker_is_a_person_by_that_name():
    """Figures as for a patient; no word of patients, who are not meant."""
    patient, speaker = state(federated()), state(federated(), unit="speaker")
    assert speaker["epsilon"] == patient["epsilon"]
    assert speaker["records_of_one_person"] is None
    text = speaker.text + total([federated()], unit="speaker").text
    assert "for each training speaker" in text
    assert "patient" not in text
    assert "patients known to two hospitals" in patient.text


def test_the_published_figures_stand_in_it(printed):
    assert printed["epsilon"] == pytest.approx(1, rel=1e-3)
    assert printed["epsilon_rdp"] > printed["epsilon"]
    audiences = {name: row["epsilon"] for name, row in printed["audiences"].items()}
    assert audiences == pytest.approx({"server": 1, "node": 0.25, "reader": 0.24}, abs=0.006)
    assert [row["epsilon"] for row in printed["smaller_deltas"]] == pytest.approx([1.51, 1.71], abs=0.006)
    persons = {(row["records"], row["nodes"]): row["epsilon"] for row in printed["records_of_one_person"]}
    assert persons == pytest.approx({(2, 1): 2.30, (6, 1): 9.3, (2, 2): 1.5}, rel=0.01)
    curve = printed["trade_off"]
    assert curve["misses"] == composition.trade_off({NoisySum(P, 42.567): 917}, curve["false_alarms"])
    assert printed["mu"] is None
    assert len(printed["nodes"]) == 11
    assert printed["nodes"]["node-03"]["mechanisms"] == [
        {"sampling_probability": P, "noise_multiplier": 42.567, "releases": 917}
    ]


def test_a_replay_counts_twice_and_is_never_hidden_by_other_nodes():
    """Nobody declared beforehand how often it would be repeated, so no composition of declared releases holds."""
    rounds = rounds_of(2.0, 5, NODES[:3])
    replayed = Run("replayed", histories([*rounds, rounds[-1]]), 5)
    found = state(replayed)
    assert found["spent"] == composition.epsilon_rdp({NoisySum(P, 2.0): 6}, 1e-3)
    assert found["epsilon"] == composition.epsilon_any_time({NoisySum(P, 2.0): 6}, 1e-3)
    assert found["trade_off"] is None
    assert "is not a promise" in str(found)
    assert found["rounds"]["replayed"] == 1
    hidden = 2.0 * math.sqrt(3)
    expected = composition.epsilon_any_time({NoisySum(P, hidden): 4, NoisySum(P, 2.0): 2}, 1e-3)
    assert found["audiences"]["reader"]["epsilon"] == pytest.approx(expected, rel=1e-6)


def test_one_hospital_alone_has_no_other_node():
    central = Run("central", histories(rounds_of(12.85, 50, ["central"], 24 / 484, 484)), 50)
    found = state(central, unit="record")
    assert found["audiences"]["node"] is None
    assert found["audiences"]["reader"]["epsilon"] == found["audiences"]["server"]["epsilon"]
    assert [row["nodes"] for row in found["records_of_one_person"]] == [1, 1]
    assert "One other node" not in found.text


@pytest.mark.parametrize(
    ("source", "sigma", "guarantee"), [("seeded", 42.0, "simulated"), ("os", 42.0, "holds"), ("os", 0.0, "none")]
)
def test_nothing_is_claimed_of_seeded_noise_or_of_none(source, sigma, guarantee):
    run = federated(sigma=sigma, rounds=3, declared=3)
    one, all_runs = state(run, noise_source=source), total([run], noise_source=source)
    for found in (one, all_runs):
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert found["guarantee"] == guarantee
        for text in (found["statement"], found["noise"], found.text):
            assert ("protect" in text and "nobody" in text) == (source == "seeded")
            assert guarantee != "none" or "private for" not in text
        assert found["statement"].startswith("No guarantee") == (guarantee == "none")
    assert (one["epsilon"] == "inf") == (all_runs["all_rows"]["epsilon"] == "inf") == (guarantee == "none")
    assert all_runs["private_rows"]["runs"] == (guarantee != "none")


def test_the_text_of_a_run_and_of_a_total_has_every_figure_and_what_is_not_covered(printed):
    for found in (printed, total([federated()], unit="record")):
        text = found.text
        for phrase in ("each training record", "replaced by zero", "draws each record independently", "At delta 1e-06",
                       "A person with 6 records", "1% of the records that took no part", "validation records",
                       "two hospitals"):  # fmt: skip
            assert phrase in text
    for phrase in ("917 declared", "messages repeated", "search for settings"):
        assert phrase in printed.text


def test_the_text_never_claims_more_than_the_figure():
    run = federated(sigma=3.0, rounds=7, declared=7)
    found = state(run)
    shown = float(found["statement"].split("(")[1].split(",")[0])
    assert found["epsilon"] <= shown <= found["epsilon"] * 1.01
    rate = found["trade_off"]["misses"][found["trade_off"]["false_alarms"].index(0.1)]
    printed_rate = float(found.text.split("10% of")[1].split("at least ")[1].split(" %")[0]) / 100
    assert rate - 0.001 <= printed_rate <= rate


def everybody(sigma=2.0, rounds=4):
    return Run("run", histories(rounds_of(sigma, rounds, NODES[:1], 1.0, 24)), rounds)


def test_all_attempts_of_a_run_lead_and_the_last_one_stands_beside_them():
    run = everybody()
    once, twice = state(run), state(run, earlier=[run])
    assert leading_epsilon(once) == once["epsilon"]
    assert (
        leading_epsilon(twice)
        == Total.of([run, run], 1e-3).epsilon
        > composition.epsilon({NoisySum(1.0, 2.0): 8}, 1e-3)
    )
    assert twice["epsilon"] == once["epsilon"]
    assert twice["earlier_attempts"]["trade_off"] is None  # the second attempt may follow from results of the first
    both, alone = (f"{epsilon:.2f}"[:3] for epsilon in (leading_epsilon(twice), once["epsilon"]))
    assert re.match(rf"Training was \({both}[\d.]*, 0.001\)-differentially private", str(twice))
    assert re.search(rf"1 time before\..*The last training alone cost epsilon {alone}", str(twice))
    without = state(run, earlier=[everybody(sigma=0.0)])
    assert (str(without).startswith("No guarantee"), leading_epsilon(without)) == (True, math.inf)
    assert "not all of them had noise" in str(without)


@pytest.mark.parametrize("kept", ["all", "some", "none"])
def test_nobody_is_said_to_be_drawn_where_everybody_takes_part(kept):
    runs = {"all": [everybody()], "some": [everybody(), federated()], "none": [federated()]}[kept]
    sampling = total(runs)["sampling"]
    assert ("draws each patient independently" in sampling) == (kept != "all")
    assert ("takes part in every round" in sampling) == (kept != "none")


def test_an_empty_ledger_is_refused():
    with pytest.raises(UserError, match="holds no rounds"):
        Run("empty", {}, 10)


# Totals


def test_a_total_of_one_run_says_what_the_run_says(printed):
    """Every statement gives smaller deltas, several records and the curve, a total too."""
    rows = total([federated()], unit="record")["private_rows"]
    for key in ("epsilon", "mu", "smaller_deltas", "trade_off"):
        assert rows[key] == printed[key]
    assert rows["records_of_one_person"] == [row for row in printed["records_of_one_person"] if row["nodes"] == 1]
    assert [row["delta"] for row in total([federated()], delta=1e-5)["private_rows"]["smaller_deltas"]] == [1e-6]
    full = Run("full", histories(rounds_of(77.966, 917, ["a", "b"], p=1.0)), 917)
    found = state(full)
    assert found["mu"] == pytest.approx(math.sqrt(917) / 77.966)
    assert found["accountant"].startswith("exact")
    assert found["epsilon"] == pytest.approx(1, rel=2e-4)
    assert total([full, full])["private_rows"]["mu"] == pytest.approx(math.sqrt(2 * 917) / 77.966)


def test_a_total_has_a_curve_only_where_a_patients_exposure_is_known():
    """Beside a second division of the cohort into unequal nodes, no single exposure is the worst along the curve."""
    equal = Run("equal", histories(rounds_of(4.0, 10, ["a", "b"])), 10)
    unequal = Run("unequal", histories([*rounds_of(4.0, 10, ["a"]), *rounds_of(8.0, 10, ["b"])]), 10)
    central = Run("central", histories(rounds_of(3.0, 10, ["central"], 24 / 484, 484)), 10)
    with_curve = total([equal, central])["private_rows"]["trade_off"]
    expected = composition.trade_off({NoisySum(P, 4.0): 10, NoisySum(24 / 484, 3.0): 10}, with_curve["false_alarms"])
    assert with_curve["misses"] == pytest.approx(expected)
    assert total([unequal, unequal])["private_rows"]["trade_off"] is not None
    # Nodes of the same names and sizes that hold other patients.
    elsewhere = Run("elsewhere", unequal.nodes, 10, partition="another")
    assert total([unequal, elsewhere])["private_rows"]["trade_off"] is None
    found = total([unequal, central])
    assert found["private_rows"]["trade_off"] is None
    assert "Any attack that looks" not in found.text
    worst = {NoisySum(P, 4.0): 10, NoisySum(24 / 484, 3.0): 10}
    assert [row["epsilon"] for row in found["private_rows"]["smaller_deltas"]] == pytest.approx(
        [composition.epsilon(worst, delta) for delta in (1e-5, 1e-6)]
    )


LIMIT = Limit(3.0, 1e-3)


@pytest.mark.parametrize(
    ("limits", "promise"),
    [
        ((LIMIT, LIMIT), 3.0),
        ((None, LIMIT), None),  # the first run was made without one
        ((replace(LIMIT, epsilon=1.0), LIMIT), None),  # raised after the first result
        ((replace(LIMIT, epsilon=0.1), replace(LIMIT, epsilon=0.1)), None),  # not kept
        ((replace(LIMIT, delta=0.01), replace(LIMIT, delta=0.01)), None),  # says nothing at this delta
    ],
)
def test_a_total_of_chosen_runs_is_a_promise_only_up_to_a_limit_set_beforehand(limits, promise):
    runs = [replace(federated(sigma=8.0, rounds=5, declared=5), limit=limit) for limit in limits]
    found, exposure = total_statement(runs), {NoisySum(P, 8.0): 10}
    rows, odometer = found["private_rows"], composition.epsilon_any_time(exposure, 1e-3)
    assert rows["epsilon"] == (promise or odometer)
    assert rows["spent"] == composition.epsilon_rdp(exposure, 1e-3) < odometer
    assert f"({rounded_up(promise or odometer, digits=3)}, 0.001)-differentially private" in str(found)
    assert ("the limit that was set before the first run" in str(found)) == (promise is not None)
    assert ("is not a promise" in str(found)) == (promise is None)


def test_one_release_without_noise_makes_the_total_none():
    how = "a row without noise"
    found = total([federated("private", rounds=20, declared=20), federated(how, sigma=0.0, rounds=20, declared=20)])
    assert found["all_rows"]["guarantee"] == found["guarantee"] == "none"
    assert found["all_rows"]["epsilon"] == "inf"
    assert found["all_rows"]["without_noise"] == [how]
    assert found["private_rows"]["epsilon"] == composition.epsilon({NoisySum(P, 42.567): 20}, 1e-3)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert f"no guarantee, because this one had no noise: {how}" in found.text


@pytest.mark.parametrize(
    ("noises", "lines"),
    [
        ([2.0], ["The private run: epsilon "]),
        ([2.0, 2.0], ["The 2 private runs: epsilon ", "All 2 runs: epsilon "]),
        ([2.0, 0.0], ["The private run alone: epsilon ", "All 2 runs: no guarantee, because this one had no noise"]),
        ([0.0], ["The run: no guarantee, because this one had no noise"]),
        ([0.0, 0.0], ["All 2 runs: no guarantee, because these had no noise"]),
    ],
)
def test_the_text_of_a_total_counts_its_runs_in_words(noises, lines):
    runs = [federated(f"run {number}", sigma=sigma, rounds=4, declared=4) for number, sigma in enumerate(noises)]
    of_runs = [line for line in total(runs).text.splitlines() if line.startswith(("The ", "All "))]
    assert len(of_runs) == len(lines)
    assert all(line.startswith(start) for line, start in zip(of_runs, lines, strict=True))


def test_totals_add_up_node_by_node():
    first = Run("1", histories([*rounds_of(4.0, 10, ["a"]), *rounds_of(8.0, 10, ["b"])]), 10)
    second = Run("2", histories([*rounds_of(6.0, 10, ["a"]), *rounds_of(5.0, 10, ["b"])]), 10)
    found = total([first, second])["private_rows"]
    expected = {
        "a": composition.epsilon({NoisySum(P, 4.0): 10, NoisySum(P, 6.0): 10}, 1e-3),
        "b": composition.epsilon({NoisySum(P, 8.0): 10, NoisySum(P, 5.0): 10}, 1e-3),
    }
    assert found["nodes"] == expected
    assert found["epsilon"] == max(expected.values())


def test_a_central_run_adds_to_the_federated_one():
    """The same patients, divided otherwise: the names of the nodes do not show it, the total must."""
    spread = federated(sigma=6.0, rounds=10, declared=10, nodes=("a", "b"))
    central = Run("central", histories(rounds_of(3.0, 10, ["central"], 24 / 484, 484)), 10)
    found = total([spread, central])["private_rows"]
    expected = composition.epsilon({NoisySum(P, 6.0): 10, NoisySum(24 / 484, 3.0): 10}, 1e-3)
    assert set(found["nodes"]) == {"a", "b", "central"}
    assert list(found["nodes"].values()) == pytest.approx([expected] * 3)
