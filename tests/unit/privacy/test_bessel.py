"""Bessel functions at the orders of gradients, and the Renyi divergences that they give."""

from __future__ import annotations

import numpy as np
import pytest
from direction_figures import BESSEL, DIMENSION, RENYI
from scipy.special import gammaln, ive

from papers.directions.renyi import divergence
from zetadp.privacy.bessel import log_bessel, log_growth, mean_cosine, order_of


@pytest.mark.parametrize("place", BESSEL)
def test_known_values(place):
    order, x = place
    log_i, growth = BESSEL[place]
    assert float(log_bessel(order, x)) == pytest.approx(log_i, rel=4e-15)
    assert float(log_growth(order, x)) == pytest.approx(growth, rel=1e-13)


@pytest.mark.parametrize("order", [0, 0.5, 1, 7, 19.5, 39.5, 40, 41])
def test_small_orders_agree_with_the_librarys_function(order):
    x = np.array([0.5, 1.0, 7.0, 40.0, 700.0])
    expected = np.log(ive(order, x)) + x
    assert log_bessel(order, x) == pytest.approx(expected, rel=2e-13, abs=2e-13)
    assert log_growth(order, x) == pytest.approx(expected + gammaln(order + 1) + order * np.log(2 / x), abs=3e-12)
    assert mean_cosine(order, x) == pytest.approx(ive(order + 1, x) / ive(order, x), rel=2e-13)


def test_growth_begins_as_its_series_and_rises_at_the_rate_of_the_mean_cosine():
    for dimension in (2, 3, 80, 82, DIMENSION, 2_000_000):
        order = order_of(dimension)
        assert log_growth(order, [0.0]) == [0]
        assert float(log_growth(order, 1e-3)) == pytest.approx(1e-6 / (2 * dimension), rel=1e-4)
        x, h = 5.0, 1e-3
        slope = float(log_growth(order, x + h) - log_growth(order, x - h)) / (2 * h)
        assert slope == pytest.approx(float(mean_cosine(order, x)), rel=1e-5)


@pytest.mark.parametrize("concentration", RENYI)
def test_known_divergences(concentration):
    cosine, *expected = RENYI[concentration]
    assert float(mean_cosine(order_of(DIMENSION), concentration)) == pytest.approx(cosine, abs=6e-13)
    found = divergence([1, 1.5, 2, 5, 10], concentration, DIMENSION)
    assert found == pytest.approx(expected, abs=6e-9)


def test_divergence_rises_with_concentration_and_falls_with_dimension():
    alphas = [1, 1.2, 2, 20]
    assert (divergence(alphas, 5.0, 50) < divergence(alphas, 6.0, 50)).all()
    assert (divergence(alphas, 5.0, 50) > divergence(alphas, 5.0, 51)).all()


def test_one_vector_is_better_than_blocks_of_equal_concentration():
    whole = divergence([1.5, 2, 8], 5.0, 60)
    assert (whole < divergence([1.5, 2, 8], 5.0, 20) + divergence([1.5, 2, 8], 5.0, 40)).all()


def test_impossible_arguments_are_refused():
    with pytest.raises(ValueError, match="orders >= 1"):
        divergence(0.5, 1.0, 10)
    with pytest.raises(ValueError, match="dimension >= 2"):
        order_of(1)
    with pytest.raises(ValueError, match="x > 0"):
        log_bessel(3, 0.0)
    with pytest.raises(ValueError, match="x >= 0"):
        log_growth(3, -1.0)
