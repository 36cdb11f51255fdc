"""The loss of one release is a distribution, and opposite centres have the worst one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from zetadp.privacy import accounting
from zetadp.privacy.bessel import log_growth, order_of
from zetadp.privacy.directions import Direction


def test_the_distribution_of_one_release_is_a_distribution():
    pair = Direction(0.2, 5.0, 30).losses(2.0**-6)
    for epsilon_, largest in ((-40.0, 1 + 1e-12), (0.0, 0.2)):
        assert 0 < pair.get_delta_for_epsilon(epsilon_) <= largest


def delta_between(angle: float, concentration: float, dimension: int, figures: np.ndarray) -> np.ndarray:
    """Return delta at each epsilon of one release between centres at an angle, by quadrature.

    The privacy loss is a function of the product with the direction from one centre to the other. The rest of the
    output has a von Mises-Fisher law of one dimension less, of which only the normalising constant remains.
    """
    t = (np.arange(20_000) + 0.5) / 20_000 * math.pi
    across, along = math.sin(angle / 2), math.cos(angle / 2)
    rest = log_growth(order_of(dimension - 1), concentration * along * np.sin(t))
    log_mass = (dimension - 2) * np.log(np.sin(t)) + rest + concentration * across * np.cos(t)
    masses, losses = np.exp(log_mass - logsumexp(log_mass)), 2 * concentration * across * np.cos(t)
    return np.array([masses @ np.maximum(0, -np.expm1(figure - losses)) for figure in figures])


@pytest.mark.parametrize("dimension", [3, 4, 10])
@pytest.mark.parametrize("concentration", [0.5, 3.0, 30.0])
def test_opposite_centres_are_the_worst_pair_at_every_epsilon(concentration, dimension):
    figures = np.linspace(0, 2 * concentration, 12)[:-1]
    worst = delta_between(math.pi, concentration, dimension, figures)
    assert (worst > 0).all()
    for angle in (0.3, 1.0, 2.0, 3.0):
        assert (delta_between(angle, concentration, dimension, figures) < worst).all()
    # This calculation and the accountant agree on the worst pair.
    delta = float(worst[4])
    if delta > 1e-8:
        assert accounting.epsilon({Direction(1.0, concentration, dimension): 1}, delta) == pytest.approx(
            float(figures[4]), rel=1e-3
        )
