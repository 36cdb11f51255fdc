r"""What a sequence of von Mises-Fisher releases costs in privacy, exactly but for rounding up.

The centre of a release is the direction of a sum. One person can turn it round, so opposite centres are the worst
pair, for the whole trade-off curve and not only for Renyi divergences (dimension >= 3). Clipping and the number of
people do not enter. The privacy loss of opposite centres is a function of one cosine, whose distribution is rounded
up to a grid ("connect the dots", Doroshenko et al. 2022, arXiv:2207.04380) and composed by dp-accounting like that of
every other round.

Neighbours differ in one person whose contribution is replaced by zero; people are drawn by independent coins. All
figures are those of the ideal mechanism: they hold for no sampler in floating point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import brentq

from zetadp.directions.cosine import CosineLaw, check_mechanism, cosine_law
from zetadp.privacy import accounting
from zetadp.privacy.sampling import sampled_loss
from zetadp.validation import positive

Direction: TypeAlias = tuple[float, float, int]
"""Sampling probability, concentration, and real dimension: a complex coordinate counts twice."""

Directions: TypeAlias = Mapping[Direction, int]
"""How many releases of each kind."""


def noise_multiplier(concentration: float, dimension: int) -> float:
    r"""Return :math:`z = \sqrt{p} / (2 \kappa)`, of the Gaussian mechanism that is about as private: NOT a bound.

    Examples
    --------
    >>> noise_multiplier(concentration=50.0, dimension=10_000)
    1.0
    """
    return math.sqrt(dimension) / (2 * concentration)


def epsilon(releases: Directions, delta: float, tolerance: float = accounting.TOLERANCE) -> float:
    """Return an upper bound on epsilon, on a grid refined until the bound stands still.

    Parameters
    ----------
    releases
        Releases by (sampling probability, concentration, dimension).
    delta
        At least `zetadp.privacy.accounting.SMALLEST_DELTA`.
    tolerance
        Relative change by one halving of the grid at which refining ends. Every value gives an upper bound.
    """
    for probability, concentration, dimension in releases:
        check_mechanism(concentration, dimension, probability)
    if not accounting.SMALLEST_DELTA <= delta < 1:
        raise ValueError(f"Expected {accounting.SMALLEST_DELTA} <= delta < 1, found {delta}.")
    key = tuple(sorted((*kind, count) for kind, count in releases.items() if count))
    return _epsilon(key, delta, tolerance)


def concentration_for_epsilon(target: float, probability: float, dimension: int, releases: int, delta: float) -> float:
    """Return a concentration at which so many releases cost at most epsilon, and hardly less."""
    positive(target=target)

    def excess(log_concentration: float) -> float:
        spent = epsilon({(probability, math.exp(log_concentration), dimension): releases}, delta)
        return math.log(spent / target) + 2 * accounting.TOLERANCE

    lower = upper = math.log(math.sqrt(dimension) / 2)
    while excess(upper) < 0:
        upper += 1
    while excess(lower) > 0:
        lower -= 1
    found = brentq(excess, lower, upper, xtol=accounting.TOLERANCE)
    while excess(found) > accounting.TOLERANCE:
        found -= accounting.TOLERANCE
    return math.exp(found)


def loss_distribution(
    probability: float, concentration: float, dimension: int, interval: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Return the distribution of the privacy loss of one release, in both directions, rounded up to a grid."""
    law = _law(concentration, dimension)
    at_nodes, at_edges = (sampled_loss(2 * concentration * t, probability) for t in (law.nodes, law.edges))
    without = np.exp(law.away)
    present = (1 - probability) * without + probability * np.exp(law.towards)
    removed = _on_grid(present, at_nodes, at_edges, interval)
    added = _on_grid(without[::-1], -at_nodes[::-1], -at_edges[::-1], interval)
    make = privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability
    return make(removed, law.outside, interval, True, added, law.outside, symmetric=False)


@lru_cache(maxsize=256)
def _epsilon(key: tuple[tuple[float, float, int, int], ...], delta: float, tolerance: float) -> float:
    if not key:
        return 0.0
    alike = tuple((q, noise_multiplier(kappa, dimension), 1, count) for q, kappa, dimension, count in key)

    def composed(interval: float) -> privacy_loss_distribution.PrivacyLossDistribution:
        total = None
        for probability, concentration, dimension, count in key:
            part = loss_distribution(probability, concentration, dimension, interval).self_compose(count)
            total = part if total is None else total.compose(part)
        return total

    found = accounting.refined(
        composed, accounting.first_interval(alike), accounting.epsilon_at(delta), (tolerance, 1e-6)
    )
    return float(found)


@lru_cache(maxsize=2)
def _law(concentration: float, dimension: int) -> CosineLaw:
    return cosine_law(concentration, dimension)


def _on_grid(masses: np.ndarray, at_nodes: np.ndarray, at_edges: np.ndarray, interval: float) -> dict[int, float]:
    """Return the probability of each multiple of the interval, for a pair that is easier to tell apart.

    Masses inside a cell move to its edges, and from there to the grid. Each move keeps the probabilities under both
    laws, so that the true pair could be got from the result by merging outcomes.
    """
    low, high = at_edges[:-1], at_edges[1:]
    up = (masses * _upward(low[:, None], at_nodes, high[:, None])).sum(axis=1)
    edges = np.zeros(len(at_edges))
    edges[1:] += up
    edges[:-1] += np.maximum(masses.sum(axis=1) - up, 0)
    below = np.floor(at_edges / interval)
    share = _upward(below * interval, at_edges, (below + 1) * interval)
    place = (below - below[0]).astype(np.int64)
    found = np.bincount(place, edges * (1 - share), place[-1] + 2) + np.bincount(
        place + 1, edges * share, place[-1] + 2
    )
    first = int(below[0])
    return {first + int(i): float(found[i]) for i in np.flatnonzero(found)}


def _upward(low: np.ndarray, loss: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the part of a mass at a loss that goes up so that both laws keep their probabilities."""
    with np.errstate(invalid="ignore"):
        share = np.expm1(low - loss) / np.expm1(low - high)
    return np.where(high > low, np.clip(share, 0, 1), 1.0)
