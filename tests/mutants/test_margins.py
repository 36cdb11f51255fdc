"""The limits hold as often as they say, and the numbers of draws and trials suffice: power 0.99 and more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from scipy import stats

from mutants import checks_of_hospitals
from mutants.checks_of_noise import DEVIATIONS, EXACT_ROUNDS, EXPECTED, PAIR, ROUNDS
from mutants.checks_of_sampling import NODES, PATIENTS
from mutants.checks_of_sampling import ROUNDS as DRAWN_ROUNDS
from mutants.hospitals import Hospitals
from mutants.margins import (
    FALSE_ALARM,
    count_power,
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
