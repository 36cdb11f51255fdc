r"""Renyi accounting of the von Mises-Fisher mechanism, as Biswas et al. do it (arXiv:2502.04045), corrected.

The paper converts, samples and composes in two ways. Both are upper bounds where they count every step, and looser than
`zetadp.directions.accounting`, whose figures are the ones to quote. Three slips of the paper are mended here:

- Theorem 3 has :math:`1/\alpha` in front of the logarithm where :math:`1/(\alpha - 1)` belongs (and was computed).
- Theorem 2 lacks a factor :math:`N \epsilon`.
- Its tables count an epoch as one step. `releases` means steps; the tables come out with 3.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from zetadp.directions.bessel import log_growth, mean_cosine, order_of
from zetadp.directions.cosine import check_mechanism, cosine_law
from zetadp.privacy.sampling import sampled_loss, sampled_moment
from zetadp.validation import positive

ORDERS = np.unique(np.concatenate([np.arange(101, 300) / 100, np.arange(30, 200) / 10, np.arange(20, 257)]))
"""Orders of the second approach; those that are not whole are interpolated."""
MOMENTS = np.unique(np.concatenate([np.arange(101, 200) / 100, np.arange(20, 110) / 10, np.arange(12, 64)]))
"""Orders of the divergence by quadrature: the default ones of libraries for private training, and finer below 2."""

_DENSE = 1 + np.geomspace(1e-4, 1e4, 20_001)


def divergence(alpha: ArrayLike, concentration: float, dimension: int) -> np.ndarray:
    r"""Return the Renyi divergence of order alpha >= 1 between two von Mises-Fisher laws of opposite centres.

    .. math:: \tau_\alpha = \frac{g((2\alpha - 1) \kappa) - g(\kappa)}{\alpha - 1}, \quad \tau_1 = 2 \kappa A(\kappa)

    (Proposition 1).
    """
    positive(concentration=concentration)
    alphas, order = np.asarray(alpha, dtype=np.float64), order_of(dimension)
    if not (alphas >= 1).all():
        raise ValueError(f"Expected orders >= 1, found {alphas}.")
    limit = 2 * concentration * mean_cosine(order, concentration)
    above = np.where(alphas > 1, alphas, 2)
    rise = log_growth(order, (2 * above - 1) * concentration) - log_growth(order, concentration)
    return np.where(alphas > 1, rise / (above - 1), limit)


def epsilon_of(divergences: ArrayLike, alphas: ArrayLike, delta: float) -> float:
    """Return the least epsilon at which these Renyi divergences bound delta (Proposition 4), zero or more."""
    taus, alphas = np.asarray(divergences), np.asarray(alphas)
    offset = alphas / (alphas - 1) * np.log1p(-1 / alphas) - np.log((alphas - 1) * delta) / (alphas - 1)
    return max(0.0, float(np.min(taus + offset)))


def first_approach(concentration: float, dimension: int, probability: float, releases: int, delta: float) -> float:
    """Return epsilon by converting one release first, and sampling and composing epsilon and delta (section 4.3)."""
    check_mechanism(concentration, dimension, probability)
    taus = divergence(_DENSE, concentration, dimension)

    def sampled(slack: float) -> float:
        """Return epsilon of one sampled release where composition takes `slack` of delta."""
        left = -math.expm1((math.log1p(-delta) - math.log1p(-slack)) / releases)
        single = epsilon_of(taus, _DENSE, min(left / probability, 1.0))
        return _log1p_exp(math.log(probability) + _log_expm1(single)) if single > 0 else 0.0

    candidates = [releases * sampled(0.0)]
    for slack in delta * np.geomspace(1e-3, 0.999, 31):
        one = sampled(float(slack))
        drift = releases * one * math.tanh(one / 2)
        spread = min(math.log(1 / slack), math.log(math.e + one * math.sqrt(releases) / slack))
        candidates.append(drift + one * math.sqrt(2 * releases * spread))
    return min(candidates)


def second_approach(
    concentration: float,
    dimension: int,
    probability: float,
    releases: int,
    delta: float,
    alphas: np.ndarray = ORDERS,
) -> float:
    """Return epsilon by sampling and composing Renyi divergences (Theorem 3), and converting last (section 4.4)."""
    check_mechanism(concentration, dimension, probability)
    whole = np.arange(1, math.ceil(alphas.max()) + 1)
    taus = divergence(whole, concentration, dimension)
    bounds = [probability * float(taus[0]), *(_sampled(int(order), probability, taus) for order in whole[1:])]
    return epsilon_of(releases * np.interp(alphas, whole, bounds), alphas, delta)


def moments(
    concentration: float, dimension: int, probability: float, releases: int, delta: float, alphas: np.ndarray = MOMENTS
) -> float:
    """Return epsilon by the exact Renyi divergences of a sampled release, of every real order.

    The divergence of the mixture from the law without the person; the reverse one is not larger, since a reflection
    swaps both laws.
    """
    check_mechanism(concentration, dimension, probability)
    law = cosine_law(concentration, dimension)
    loss, away = sampled_loss(2 * concentration * law.nodes, probability).ravel(), law.away.ravel()
    values = np.array([float(logsumexp(away + alpha * loss)) / (alpha - 1) for alpha in alphas])
    return epsilon_of(releases * np.maximum(values, 0), alphas, delta)


def sampled_divergence(alpha: int, concentration: float, dimension: int, probability: float) -> float:
    """Return the bound of Theorem 3 on the divergence of a sampled release, for a whole order of at least 2."""
    return _sampled(alpha, probability, divergence(np.arange(1, alpha + 1), concentration, dimension))


def _sampled(alpha: int, probability: float, taus: np.ndarray) -> float:
    drawn = np.arange(2, alpha + 1)
    exponents = (drawn - 1) * taus[1:alpha] + np.where(drawn > 2, math.log(3), 0)
    return sampled_moment(alpha, probability, exponents) / (alpha - 1)


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))


def _log1p_exp(x: float) -> float:
    return float(np.logaddexp(0, x))
