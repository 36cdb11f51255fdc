"""What the page of Riess et al. says of noise and of true epsilons is what the accountant gives."""

from __future__ import annotations

import math
from functools import partial

import pytest

from papers.sizes import ROOT
from zetadp.accounting.calibration import noise_for_epsilon
from zetadp.accounting.composition import epsilon_group
from zetadp.accounting.kinds import NoisySum
from zetadp.base.epsilon import rounded_up

PAGE = " ".join((ROOT / "papers/complex_mri/README.md").read_text().split())
DELTA, ROUNDS, LONG = 1e-3, 917, 73_333
IMAGES = 24 / 3520


def noise(epsilon: float, probability: float, rounds: int) -> float:
    return noise_for_epsilon(epsilon, DELTA, probability, rounds)


def test_counting_images_costs_a_patient_what_the_page_says():
    of_patient = partial(epsilon_group, delta=DELTA, units=80)
    one, eight = (of_patient({NoisySum(IMAGES, noise(epsilon, IMAGES, LONG)): LONG}) for epsilon in (1, 8))
    assert (
        f"ε of the federated run is {float(rounded_up(eight, 3)):,.0f} at a printed 8 and {rounded_up(one, 3)} at 1"
        in PAGE
    )


def test_noise_multipliers_are_those_of_the_accountant():
    one, eight = noise(1, IMAGES, LONG), noise(8, IMAGES, LONG)
    assert f"(multipliers {one:.4f} and {eight:.4f} / √11)" in PAGE
    node, holder = noise(8, 24 / 44, ROUNDS), noise(8, 24 / 484, 10_083)
    assert f"(multipliers {holder:.2f}, and {node:.2f} / √11 = {node / math.sqrt(11):.2f})" in PAGE


def test_a_mean_of_images_has_45_times_less_noise():
    of_patients, of_images = noise(8, 24 / 44, ROUNDS) / 24, noise(8, 96 / 3520, ROUNDS) / 96
    assert of_patients / of_images == pytest.approx(45, abs=0.5)
    assert "of 96 images per hospital, has 45 times less noise" in PAGE
