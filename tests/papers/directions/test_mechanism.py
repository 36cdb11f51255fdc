"""Directions: what a release costs, what bounds it, and that draws follow their law."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from ledger_builder import poisson
from scipy.special import ive, logsumexp
from scipy.stats import kstest, norm

from papers.directions.mechanism import Direction, cosine_law, gaussian_bound
from papers.directions.sampler import draw_cosines, draw_direction
from zetadp.accounting import composition
from zetadp.accounting.events import Event
from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import UserError


def delta_between(angle: float, concentration: float, dimension: int, figures: np.ndarray) -> np.ndarray:
    """Return delta at each epsilon of one release between centres at an angle, by quadrature.

    The privacy loss is a function of the product with the direction from one centre to the other. The rest of the
    output has a von Mises-Fisher law of one dimension less, of which only the normalising constant remains.
    """
    t = (np.arange(20_000) + 0.5) / 20_000 * math.pi
    across, along = math.sin(angle / 2), math.cos(angle / 2)
    order, x = (dimension - 3) / 2, concentration * along * np.sin(t)
    rest = np.log(ive(order, x)) + x - order * np.log(x)
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
        assert composition.epsilon({Direction(1.0, concentration, dimension): 1}, delta) == pytest.approx(
            float(figures[4]), rel=1e-3
        )


@pytest.mark.parametrize("dimension", [4, 5, 20, 1000])
@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_no_attack_on_a_direction_beats_the_best_one_on_the_noise_that_bounds_it(mu, dimension):
    law = cosine_law(gaussian_bound(1 / mu, dimension), dimension)
    power, false_alarms = (np.exp(mass).sum(axis=1)[::-1].cumsum() for mass in (law.towards, law.away))
    inner = (false_alarms > 1e-12) & (power < 1 - 1e-12)
    found = norm.ppf(power[inner]) - norm.ppf(false_alarms[inner])
    assert found.max() <= mu * (1 + 1e-6)
    # It is no empty bound: of weak concentration in many dimensions it is all but reached.
    assert dimension < 1000 or found.max() > 0.99 * mu


@pytest.mark.parametrize(
    "changes",
    [
        {"dimension": 2},
        {"concentration": 0.0},
        {"sampling_probability": 1e-300},
        {"units": 2},
    ],
)
def test_a_kind_that_cannot_be_accounted_for_is_refused(changes):
    summed = poisson("node-01", population=40, expected=10, noise_multiplier=2.0, clip=1.5)
    content = replace(summed, kind=Direction.hiding(summed.kind, 103)).to_json()
    with pytest.raises((UserError, TypeError)):
        Event.from_json(content | {"kind": content["kind"] | changes})


# Seeded draws


def draws(place: int = 0) -> np.random.Generator:
    return stream(0, Purpose.NOISE, place)


def test_the_cosine_has_the_law_that_is_accounted_for():
    law = cosine_law(30, 64)
    below = np.concatenate([[0], np.exp(law.towards).sum(axis=1).cumsum()])
    found = draw_cosines(30, 64, 50_000, draws())
    assert kstest(found, lambda t: np.interp(t, law.edges, below)).pvalue > 1e-6


def test_tiny_and_huge_centres_keep_their_direction():
    centre = torch.tensor([1.0, -2.0, 2.0, 0.5], dtype=torch.float64)
    expected = draw_direction(centre, 50.0, draws())
    with pytest.raises(ValueError, match="complex"):  # half of which would be lost
        draw_direction(torch.complex(centre, centre), 50.0, draws())
    for scale in (2.0**-1000, 2.0**900):
        assert torch.equal(draw_direction(centre * scale, 50.0, draws()), expected)
