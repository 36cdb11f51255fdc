"""Bayes' capacity of both mechanisms."""

from __future__ import annotations

import numpy as np
import pytest
from direction_figures import CAPACITY, DIMENSION, GAUSSIAN_CAPACITY
from scipy.special import gammaln

from zetadp.privacy.directions import capacity as direction_capacity
from zetadp.privacy.gaussian import capacity as gaussian_capacity

RADII = (1, 3**0.5, 3, 128, 384)


@pytest.mark.parametrize("concentration", CAPACITY)
def test_known_capacities_of_directions(concentration):
    assert direction_capacity(concentration, DIMENSION) == pytest.approx(CAPACITY[concentration], abs=6e-4)


@pytest.mark.parametrize("noise", GAUSSIAN_CAPACITY)
def test_known_capacities_of_gaussian_noise(noise):
    found = [gaussian_capacity(noise, radius, DIMENSION) for radius in RADII]
    assert found == pytest.approx(GAUSSIAN_CAPACITY[noise], rel=3.3e-5, abs=6e-3)


def test_other_dimensions():
    assert direction_capacity(2, 3) == pytest.approx(1.4047798, abs=6e-8)
    assert direction_capacity(5, 10) == pytest.approx(3.8562552, abs=6e-8)
    assert direction_capacity(500, 100_000) == pytest.approx(498.75, abs=6e-5)
    assert direction_capacity(500, 1_000_000) == pytest.approx(499.875, abs=6e-5)
    assert gaussian_capacity(1.23, 1, 100_000) == pytest.approx(256.93, abs=6e-3)
    assert gaussian_capacity(1.23, 1, 1_000_000) == pytest.approx(812.84, abs=6e-3)


def test_what_leaks_nothing_has_capacity_one():
    """With the factor 2 of the printed theorem a ball of radius zero would have log 2."""
    assert direction_capacity(0, DIMENSION) == 0
    assert gaussian_capacity(1.23, 0, DIMENSION) == 0
    for dimension in (2, 3, DIMENSION):
        assert gaussian_capacity(1.23, 1e-9, dimension) == pytest.approx(0, abs=1e-6)
        assert direction_capacity(1e-9, dimension) == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize(("noise", "radius", "dimension"), [(0.7, 1.3, 2), (1.0, 3.0, 100), (0.5, 20.0, 13_700)])
def test_the_sum_agrees_with_the_integral(noise, radius, dimension):
    """Inside the ball the supremum is the peak; outside it falls with the distance from the ball."""
    p, s2 = dimension, noise**2
    mode = (-radius + np.sqrt(radius**2 + 4 * (p - 1) * s2)) / 2
    width = ((p - 1) / (mode + radius) ** 2 + 1 / s2) ** -0.5
    s = np.linspace(max(0, mode - 40 * width), mode + 40 * width, 400_001)
    log_integrand = (p - 1) * np.log(s + radius) - s**2 / (2 * s2)
    peak = log_integrand.max()
    log_j = peak + np.log(np.trapezoid(np.exp(log_integrand - peak), s))
    log_sphere = np.log(2) + p / 2 * np.log(np.pi) - gammaln(p / 2)
    log_ball = p * np.log(radius) + p / 2 * np.log(np.pi) - gammaln(p / 2 + 1)
    scale = p / 2 * np.log(2 * np.pi * s2)
    expected = np.logaddexp(log_ball - scale, log_sphere + log_j - scale)
    assert gaussian_capacity(noise, radius, dimension) == pytest.approx(expected, rel=1e-8)


def test_only_radius_over_noise_counts():
    assert gaussian_capacity(0.5, 3, 50) == pytest.approx(gaussian_capacity(0.5 / 128, 3 / 128, 50), rel=1e-12)


def test_impossible_arguments_are_refused():
    for arguments, message in (((0, 1, 5), "noise"), ((1, -1, 5), "radius"), ((1, 1, 1), "dimension")):
        with pytest.raises(ValueError, match=message):
            gaussian_capacity(*arguments)
    with pytest.raises(ValueError, match="x >= 0"):
        direction_capacity(-1, 5)
