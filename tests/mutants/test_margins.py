"""The limits hold as often as they say, and the numbers of draws and trials suffice: power 0.99 and more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from scipy import stats

from mutants import checks_of_hospitals
from mutants.checks_of_noise import DEVIATIONS, EXACT_ROUNDS, EXPECTED, PAIR, ROUNDS
from mutants.checks_of_sampling import NODES, PATIENTS
from mutants.checks_of_sampling import ROUNDS as DRAWN_ROUNDS
from mutants.hospitals import Hospitals
from mutants.margins import (
    FALSE_ALARM,
    correlation_limit,
    count_is_plausible,
    count_power,
    variance_limits,
    variance_power,
)
from mutants.stub import Stub

if TYPE_CHECKING:
    from pathlib import Path

POWER = 0.99
PARTS = 3
PART = sum(p.numel() for p in Stub().real_map.parameters())
MESSAGES = ROUNDS * len(PAIR)
COMPARISONS = PARTS * (1 + len(DEVIATIONS) + MESSAGES)
QUESTIONS = (PATIENTS + 1) + 2 * PATIENTS + math.comb(PATIENTS, 2) + PATIENTS**2


def test_a_part_of_the_stub_is_as_many_coordinates_as_the_checks_say() -> None:
    assert PART == sum(p.numel() for p in Stub().complex_map.parameters()) == 260
    assert QUESTIONS == 35


def test_a_part_of_a_hospitals_message_is_as_many(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path, PAIR, expected=EXPECTED)
    parts = hospitals.parts(torch.zeros(hospitals.layout.dimension))
    assert {name: len(part) for name, part in parts.items()} == {"real part": PART, "imaginary part": PART}
    assert checks_of_hospitals.ROUNDS == ROUNDS


@pytest.mark.parametrize("alarm", [0.1, 0.01])
def test_limits_are_left_as_often_as_they_say(alarm: float) -> None:
    trials, count = 20_000, 50
    draws = np.random.default_rng(1).standard_normal((2, trials, count))
    means = np.square(draws[0]).mean(axis=1)
    low, high = variance_limits(count, alarm)
    cosines = (draws[0] * draws[1]).sum(axis=1) / np.linalg.norm(draws, axis=2).prod(axis=0)
    outside = ((means < low) | (means > high)).mean(), (np.abs(cosines) > correlation_limit(count, alarm)).mean()
    assert outside == pytest.approx((alarm, alarm), abs=5 * math.sqrt(alarm / trials))
    assert variance_power(count, 1.0, alarm) == pytest.approx(alarm)


@pytest.mark.parametrize(("trials", "probability"), [(400, 1 / 16), (200, 0.25), (7, 0.5)])
def test_counts_of_correct_code_are_implausible_at_most_as_often_as_said(trials: int, probability: float) -> None:
    for alarm in (0.05, 1e-4, 3e-7):
        assert count_power(trials, probability, probability, alarm) <= alarm
    assert count_is_plausible(round(trials * probability), trials, probability, 1e-6)


ALARM = FALSE_ALARM / COMPARISONS
SIZES = stats.binom.pmf(range(5), 4, EXPECTED / 4)
QUESTIONED = {
    "fixed size: always two of four": (1, 6 / 16, 1.0),
    "cut to three, or drawn anew if empty: never four, or none": (1, 1 / 16, 0.0),
    "a mask shared by two nodes": (0.5, 1 / 4, 1 / 2),
}
"""Share of the draws that a question is about, the probability of what it counts, and the wrong one."""
POWERS = {
    **{
        f"{ratio} of the variance of a part, in {messages} messages": variance_power(
            messages * PART, ratio, FALSE_ALARM / (PARTS * (1 + len(DEVIATIONS) + messages))
        )
        for messages in (MESSAGES, EXACT_ROUNDS)
        for ratio in (0.5, 0.25, 2.0)
    },
    # Parts of one, two, three, one and two patients, each divided by their number.
    "half the variance of a masked sum": variance_power(2 * PART, 0.53, FALSE_ALARM / 2),
    # A batch of n of four patients divides by n instead of 2: the variance is (2/n)^2 of what is stated.
    "a realised divisor, in one message or another": 1
    - (1 - sum(share * variance_power(PART, (EXPECTED / max(1, size)) ** 2, ALARM) for size, share in enumerate(SIZES)))
    ** MESSAGES,
    **{
        name: count_power(round(share * NODES * DRAWN_ROUNDS), right, wrong, FALSE_ALARM / QUESTIONS)
        for name, (share, right, wrong) in QUESTIONED.items()
    },
}
"""Probability that a check sees a fault."""


def test_every_fault_shows_almost_surely() -> None:
    assert not {fault: power for fault, power in POWERS.items() if power <= POWER}


def test_noise_that_is_cut_off_or_equal_lies_far_beyond_its_limits() -> None:
    chance = 2 * float(stats.norm.sf(DEVIATIONS[-1]))
    assert DEVIATIONS[-1] > 3
    assert not count_is_plausible(0, MESSAGES * PART, chance, ALARM)
    pairs = math.comb(PARTS * 5 * len(PAIR), 2)
    assert pairs == 435
    assert correlation_limit(PART, FALSE_ALARM / pairs) < 0.4
