"""Calibration: targets are met, only just, and impossible ones are refused with what is possible."""

from __future__ import annotations

import math

import pytest

from zetadp.accounting import composition
from zetadp.accounting.calibration import noise_for_epsilon, rounds_for
from zetadp.accounting.kinds import NoisySum
from zetadp.base.validation import UserError

P = 24 / 44


@pytest.mark.parametrize(
    ("p", "rounds", "sigmas"),
    [
        (P, 917, {0.1: None, 1: 42.567, 3: 17.157, 5: 11.420, 8: 7.956, 10: 6.736, 20: None}),
        (P, 500, {1: 31.437, 8: 5.891}),
        (24 / 484, 10_083, {1: 12.85, 3: 5.22, 10: 2.14}),
        (24 / 484, 500, {1: 2.98}),
    ],
)
def test_the_noise_meets_its_target_and_a_little_less_does_not(p, rounds, sigmas):
    for target, published in sigmas.items():
        sigma = noise_for_epsilon(target, 1e-3, p, rounds)
        assert composition.epsilon({NoisySum(p, sigma): rounds}, 1e-3) <= target
        assert composition.epsilon({NoisySum(p, sigma * 0.9995): rounds}, 1e-3) > target
        assert float(f"{sigma:.5g}") == sigma
        if published:
            assert sigma == pytest.approx(published, rel=2e-3)


@pytest.mark.parametrize("target", [0.0, -1.0, 1e-6, 1e6, math.nan])
def test_a_target_out_of_range_is_refused_and_the_range_named(target):
    with pytest.raises(UserError, match=r"between 0.001 and 1000"):
        noise_for_epsilon(target, 1e-3, P, 917)
    with pytest.raises(UserError, match=r"between 0.001 and 1000"):
        rounds_for(target, 1e-3, P, 40.0)
    with pytest.raises(UserError, match=r"allows about 1.5e\+15 rounds"):
        rounds_for(1.0, 1e-3, 1e-6, 100.0)


@pytest.mark.parametrize(
    ("target", "p", "sigma"), [(1.0, P, 42.567), (3.0, 0.1, 1.0), (10.0, P, 1.0), (8.0, 0.05, 2.5), (2.0, 1.0, 30.0)]
)
def test_rounds_are_the_most_that_fit(target, p, sigma):
    rounds = rounds_for(target, 1e-3, p, sigma)
    assert composition.epsilon({NoisySum(p, sigma): rounds}, 1e-3) <= target
    assert composition.epsilon({NoisySum(p, sigma): rounds + 1}, 1e-3) > target


def test_noise_for_millions_of_rounds_is_found_or_refused():
    sigma = noise_for_epsilon(0.02, 1e-10, 0.01, 10**7)
    assert composition.epsilon({NoisySum(0.01, sigma): 10**7}, 1e-10) <= 0.02
    with pytest.raises(UserError, match=r"Not even noise multiplier 1e\+09 meets epsilon 0.001"):
        noise_for_epsilon(0.001, 1e-10, 0.5, 10**12)


def test_rounds_and_noise_agree():
    assert rounds_for(1.0, 1e-3, P, noise_for_epsilon(1.0, 1e-3, P, 917)) == 917
