"""Bayes' capacity of both mechanisms."""

from __future__ import annotations

import numpy as np
import pytest
from direction_figures import CAPACITY, DIMENSION
from scipy.special import gammaln

from zetadp.privacy.directions import capacity as direction_capacity
from zetadp.privacy.gaussian import capacity as gaussian_capacity


@pytest.mark.parametrize("concentration", CAPACITY)
def test_known_capacities_of_directions(concentration):
    assert direction_capacity(concentration, DIMENSION) == pytest.approx(CAPACITY[concentration], abs=6e-4)


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
