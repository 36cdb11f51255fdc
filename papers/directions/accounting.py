r"""Account for directions as Biswas et al. (arXiv:2502.04045) do, corrected, and find the concentration for an epsilon.

The paper has two approaches to conversion, sampling and composition. Both give upper bounds if every step is counted.
The bounds of `zetadp.accounting.composition` are tighter: quote those. Three errors of the paper are corrected here:

- Theorem 3 prints :math:`1/\alpha` in front of the logarithm. It should be :math:`1/(\alpha - 1)`, as in the paper's
  own computations.
- Theorem 2 lacks a factor :math:`N \epsilon`.
- The tables count an epoch as one step. Here `releases` counts steps; 3 releases reproduce the tables.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from papers.directions.capacity import log_growth
from papers.directions.mechanism import Direction, mean_cosine
from papers.moments import sampled_moment
from zetadp.accounting import composition
from zetadp.base.validation import positive

ORDERS = np.unique(np.concatenate([np.arange(101, 300) / 100, np.arange(30, 200) / 10, np.arange(20, 257)]))
"""Orders of the second approach. Values at fractional orders are interpolated."""

_DENSE = 1 + np.geomspace(1e-4, 1e4, 20_001)


def divergence(alpha: ArrayLike, concentration: float, dimension: int) -> np.ndarray:
    r"""Return the Renyi divergence of order alpha >= 1 between von Mises-Fisher distributions with opposite centres.

    .. math:: \tau_\alpha = \frac{g((2\alpha - 1) \kappa) - g(\kappa)}{\alpha - 1}, \quad \tau_1 = 2 \kappa A(\kappa)

    (Proposition 1).
    """
    positive(concentration=concentration)
    alphas, order = np.asarray(alpha, dtype=np.float64), dimension / 2 - 1
    if not (alphas >= 1).all():
        raise ValueError(f"Expected orders >= 1, found {alphas}.")
    limit = 2 * concentration * mean_cosine(order, concentration)
    above = np.where(alphas > 1, alphas, 2)
    rise = log_growth(order, (2 * above - 1) * concentration) - log_growth(order, concentration)
    return np.where(alphas > 1, rise / (above - 1), limit)


def epsilon_of(divergences: ArrayLike, alphas: ArrayLike, delta: float) -> float:
    """Convert Renyi divergences to the smallest epsilon for a delta (Proposition 4), zero or more.

    Parameters
    ----------
    divergences, alphas
        Divergences and their orders above one, both of shape (order,).
    delta
        Above zero, below one.
    """
    taus, alphas = np.asarray(divergences), np.asarray(alphas)
    offset = alphas / (alphas - 1) * np.log1p(-1 / alphas) - np.log((alphas - 1) * delta) / (alphas - 1)
    return max(0.0, float(np.min(taus + offset)))


def first_approach(concentration: float, dimension: int, probability: float, releases: int, delta: float) -> float:
    """Return epsilon by the first approach (section 4.3).

    The divergence of one release is converted to epsilon and delta first. Sampling and composition then use these.

    Parameters
    ----------
    concentration, dimension
        Kappa and real dimension of the mechanism.
    probability
        Chance that a person is drawn.
    releases
        Number of steps.
    delta
        Delta of all releases together.
    """
    Direction(probability, concentration, dimension)  # refuses impossible values
    taus = divergence(_DENSE, concentration, dimension)

    def sampled(slack: float) -> float:
        """Return epsilon of one sampled release where composition takes `slack` of delta."""
        left = -math.expm1((math.log1p(-delta) - math.log1p(-slack)) / releases)
        single = epsilon_of(taus, _DENSE, min(left / probability, 1.0))
        return (
            float(np.logaddexp(0, math.log(probability) + single + math.log(-math.expm1(-single)))) if single else 0.0
        )

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
    """Return epsilon by the second approach (section 4.4).

    Sampling (Theorem 3) and composition use Renyi divergences, which are converted to epsilon last.

    Parameters
    ----------
    concentration, dimension, probability, releases, delta
        Same as for `first_approach`.
    alphas
        Orders above one.
    """
    Direction(probability, concentration, dimension)  # refuses impossible values
    whole = np.arange(1, math.ceil(alphas.max()) + 1)
    taus = divergence(whole, concentration, dimension)
    bounds = [probability * float(taus[0]), *(_sampled(int(order), probability, taus) for order in whole[1:])]
    return epsilon_of(releases * np.interp(alphas, whole, bounds), alphas, delta)


def _sampled(alpha: int, probability: float, taus: np.ndarray) -> float:
    orders = np.arange(2, alpha + 1)
    exponents = (orders - 1) * taus[1:alpha] + np.where(orders > 2, math.log(3), 0)
    return sampled_moment(alpha, probability, exponents) / (alpha - 1)


def concentration_for_epsilon(target: float, probability: float, dimension: int, releases: int, delta: float) -> float:
    """Return the concentration at which releases cost a target epsilon, or slightly less.

    Parameters
    ----------
    target
        The target epsilon, above zero.
    probability, dimension, releases, delta
        Sampling probability, real dimension and number of the releases, and delta.
    """
    positive(target=target)

    def excess(log_concentration: float) -> float:
        spent = composition.epsilon({Direction(probability, math.exp(log_concentration), dimension): releases}, delta)
        return math.log(spent / target) + 2 * composition.TOLERANCE

    lower = upper = math.log(math.sqrt(dimension) / 2)
    while excess(upper) < 0:
        upper += 1
    while excess(lower) > 0:
        lower -= 1
    root = brentq(excess, lower, upper, xtol=composition.TOLERANCE)
    while excess(root) > composition.TOLERANCE:
        root -= composition.TOLERANCE
    return math.exp(root)
