"""Bessel functions at the orders of gradients."""

from __future__ import annotations

import pytest
from direction_figures import BESSEL, DIMENSION

from zetadp.privacy.bessel import log_growth, mean_cosine, order_of


@pytest.mark.parametrize(("place", "growth"), BESSEL.items())
def test_known_values(place, growth):
    order, x = place
    assert float(log_growth(order, x)) == pytest.approx(growth, rel=1e-13)


def test_growth_begins_as_its_series_and_rises_at_the_rate_of_the_mean_cosine():
    for dimension in (2, 3, 80, 82, DIMENSION, 2_000_000):
        order = order_of(dimension)
        assert log_growth(order, [0.0]) == [0]
        assert float(log_growth(order, 1e-3)) == pytest.approx(1e-6 / (2 * dimension), rel=1e-4)
        x, h = 5.0, 1e-3
        slope = float(log_growth(order, x + h) - log_growth(order, x - h)) / (2 * h)
        assert slope == pytest.approx(float(mean_cosine(order, x)), rel=1e-5)
