"""Noise that changes over rounds: what is declared, what is calibrated, and that nothing is counted too cheaply."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from zetadp.privacy import accounting, gaussian
from zetadp.privacy.calibration import noise_for_epsilon
from zetadp.privacy.events import Round, histories
from zetadp.privacy.exposure import Run, declared, run_of
from zetadp.privacy.ledger import Attempt
from zetadp.privacy.schedule import STEPS, NoiseSchedule, least_noise
from zetadp.privacy.statement import plain_text, run_statement

DELTA = 1e-3


def header(rounds: int, decay: float, nodes: dict[str, float]) -> dict:
    return {
        "training": {"rounds": rounds, "noise_decay": decay},
        "nodes": [{"name": name, "noise_multiplier": sigma} for name, sigma in nodes.items()],
    }


def attempt(rounds: int, decay: float, nodes: dict[str, float], made: int, torn: int = 0) -> Attempt:
    schedule = NoiseSchedule(rounds, decay)
    events = [
        Round(node, number, 44, 24.0, 24 / 44, schedule.noise(sigma, number), 1.0)
        for number in range(made)
        for node, sigma in nodes.items()
    ]
    return Attempt(header(rounds, decay, nodes), events, torn=torn)


@pytest.mark.parametrize("rounds", [1, 2, 7, 8])
def test_with_few_rounds_the_noise_is_a_power_of_the_decay(rounds):
    schedule = NoiseSchedule(rounds, 0.3)
    for number in range(rounds):
        expected = 5 * 0.3 ** (number / max(1, rounds - 1))
        assert schedule.noise(5.0, number) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("decay", [0.3, 3.0])
@pytest.mark.parametrize("rounds", [20, 160, 917])
def test_many_rounds_make_steps_of_equal_length_and_equal_ratio(rounds, decay):
    schedule = NoiseSchedule(rounds, decay)
    noise = [schedule.noise(2.0, number) for number in range(rounds)]
    assert sorted(noise, reverse=decay < 1) == noise
    assert noise[0] == 2.0
    assert noise[-1] == pytest.approx(2 * decay)
    lengths = list(Counter(noise).values())
    assert len(lengths) == STEPS
    assert max(lengths) - min(lengths) <= 1
    levels = list(dict.fromkeys(noise))
    ratios = [later / earlier for earlier, later in itertools.pairwise(levels)]
    assert ratios == pytest.approx([decay ** (1 / 7)] * 7)
    assert (schedule.least(2.0), schedule.most(2.0)) == (min(noise), max(noise))
    assert schedule.mechanisms(0.5, 2.0) == Counter((0.5, sigma) for sigma in noise)


def test_a_decay_of_one_changes_no_bit():
    schedule = NoiseSchedule(917)
    assert all(schedule.noise(42.567, number) == 42.567 for number in range(917))
    assert schedule.equivalent == 1
    for probability in (24 / 44, 1.0):
        given = (3.0, DELTA, probability, 50)
        assert noise_for_epsilon(*given, 1.0) == noise_for_epsilon(*given)


def test_rounds_that_were_not_declared_and_extreme_decays_are_refused():
    for number in (-1, 20):
        with pytest.raises(ValueError, match="from 0 to 19"):
            NoiseSchedule(20, 0.5).noise(1.0, number)
    for decay in (0.0, -1.0, 1e-3, 1e3, math.nan):
        with pytest.raises(ValueError, match="decay"):
            NoiseSchedule(20, decay)


@pytest.mark.parametrize("decay", [0.3, 2.0])
def test_full_participation_is_calibrated_by_the_sum_of_inverse_variances(decay):
    for rounds in (5, 20, 160):
        first = noise_for_epsilon(1.0, DELTA, 1.0, rounds, decay)
        schedule = NoiseSchedule(rounds, decay)
        mu = math.sqrt(math.fsum(schedule.noise(first, number) ** -2 for number in range(rounds)))
        spent = gaussian.epsilon(DELTA, mu)
        assert 0.9999 < spent <= 1
        assert spent == pytest.approx(accounting.epsilon(schedule.mechanisms(1.0, first), DELTA), rel=1e-12)


@pytest.mark.parametrize(("target", "decay"), [(1.0, 0.3), (8.0, 2.0)])
def test_sampled_rounds_are_calibrated_by_their_heterogeneous_composition(target, decay):
    first = noise_for_epsilon(target, DELTA, 24 / 44, 40, decay)
    schedule = NoiseSchedule(40, decay)
    assert accounting.epsilon(schedule.mechanisms(24 / 44, first), DELTA) <= target
    assert accounting.epsilon(schedule.mechanisms(24 / 44, 0.9995 * first), DELTA) > target
    # Between the figures of constant noise at the least and at the most of it.
    least, most = schedule.least(first), schedule.most(first)
    assert accounting.epsilon({(24 / 44, most): 40}, DELTA) < target < accounting.epsilon({(24 / 44, least): 40}, DELTA)


@pytest.mark.parametrize("decay", [0.3, 3.0])
@pytest.mark.parametrize("made", [1, 3, 10, 19])
def test_rounds_to_come_are_never_counted_below_what_they_will_cost(made, decay):
    """With falling noise they are dearer than all that were made."""
    nodes = {"a": 6.0, "b": 9.0}
    whole, part = (run_of("run", attempt(20, decay, nodes, n)) for n in (20, made))
    schedule = NoiseSchedule(20, decay)
    for name, sigma in nodes.items():
        full = declared(whole.nodes[name], 20)
        assert full == schedule.mechanisms(24 / 44, sigma)
        early = declared(part.nodes[name], 20)
        assert early.total() == 20
        assert accounting.epsilon_rdp(early, DELTA) >= accounting.epsilon_rdp(full, DELTA)


@pytest.mark.parametrize("decay", [0.3, 3.0])
def test_a_torn_line_counts_as_rounds_with_the_least_noise(decay):
    nodes = {"a": 6.0}
    releases = attempt(20, decay, nodes, 10, torn=1).releases()
    least = min(NoiseSchedule(20, decay).noise(6.0, n) for n in range(20))
    assert [event.noise_multiplier for event in releases[10:]] == [least, least]
    constant = attempt(20, 1.0, nodes, 10, torn=1).releases()
    assert constant[-1] == constant[-2]


def test_headers_of_constant_noise_declare_nothing():
    assert least_noise({}) == {}
    assert least_noise(header(20, 1.0, {"a": 6.0})) == {}
    assert least_noise({"training": {"rounds": 3}}) == {}
    assert least_noise(header(20, 0.5, {"a": 6.0, "b": 0.0})) == {"a": 3.0, "b": 0.0}


def test_readers_are_credited_with_the_noise_that_each_round_had():
    nodes = {"a": 6.0, "b": 9.0}
    run = run_of("run", attempt(16, 0.5, nodes, 16))
    found = state(run)
    schedule = NoiseSchedule(16, 0.5)
    # Equal weights and divisors: in the average a round's noise is that of both nodes, step by step.
    together = schedule.mechanisms(24 / 44, math.hypot(6, 9))
    assert found["audiences"]["reader"]["epsilon"] == pytest.approx(accounting.epsilon(together, DELTA), rel=1e-6)
    assert found["epsilon"] == accounting.epsilon(schedule.mechanisms(24 / 44, 6.0), DELTA)


def test_the_statement_says_that_the_noise_changed_and_between_what():
    found = state(run_of("run", attempt(16, 0.5, {"a": 6.0}, 10)))
    assert "between 3 and 6 clipping norms" in plain_text(found)
    constant = state(Run("run", histories(attempt(16, 1.0, {"a": 6.0}, 10).releases()), 16))
    assert "clipping norms" not in plain_text(constant)


def state(run: Run) -> dict:
    return run_statement(
        run, delta=DELTA, unit="patient", noise_source="os", weights=dict.fromkeys(run.nodes, 1.0), target_epsilon=1.0
    )
