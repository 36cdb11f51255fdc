r"""The privacy loss of one von Mises-Fisher release, as a distribution that every accountant of rounds composes.

The centre of a release is the direction of a sum. One person can turn it round, so opposite centres are the worst
pair, for the whole trade-off curve and not only for Renyi divergences (dimension >= 3). Clipping and the number of
people do not enter. The privacy loss of opposite centres is a function of one cosine, whose distribution is rounded
up to a grid ("connect the dots", Doroshenko et al. 2022, arXiv:2207.04380).

Neighbours differ in one person whose contribution is replaced by zero; people are drawn by independent coins. All
figures are those of the ideal mechanism: they hold for no sampler in floating point.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from dp_accounting.pld import privacy_loss_distribution

from zetadp.directions.cosine import CosineLaw, cosine_law
from zetadp.privacy.sampling import sampled_loss


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
