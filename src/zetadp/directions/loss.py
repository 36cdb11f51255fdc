r"""The distribution of the privacy loss of one von Mises-Fisher release, which accountants compose over rounds.

The centre of a release is the direction of a sum. One person can turn this direction into its opposite, so opposite
centres are the worst pair. This holds for the whole trade-off curve, not only for Renyi divergences (dimension >= 3).
The clipping norm and the number of people do not matter. For opposite centres the privacy loss is a function of one
cosine. The distribution of the loss is rounded up to a grid ("connect the dots", Doroshenko et al. 2022,
arXiv:2207.04380).

Neighbours differ in one person whose contribution is replaced by zero. Each person is drawn independently. All figures
are for the ideal mechanism: a sampler that uses floating-point numbers does not attain them.
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
    """Return the distribution of the privacy loss of one release, for a person removed and for a person added.

    Parameters
    ----------
    probability
        Chance that a person is drawn.
    concentration, dimension
        Kappa and real dimension of the mechanism (`zetadp.directions.cosine.cosine_law`).
    interval
        Distance of the grid's points, in nats. Losses are rounded up, so every interval gives an upper bound.
    """
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
    """Return the probability of each multiple of the interval, for a pair that is easier to distinguish.

    The mass in a cell moves to the edges of the cell, and from there to the grid. Each move keeps the total probability
    under both distributions, so merging outcomes of the result gives back the true pair.
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
    """Return the share of a mass that moves up, so that both distributions keep their total probability."""
    with np.errstate(invalid="ignore"):
        share = np.expm1(low - loss) / np.expm1(low - high)
    return np.where(high > low, np.clip(share, 0, 1), 1.0)
