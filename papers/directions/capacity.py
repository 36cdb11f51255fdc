r"""Bayes' capacity of both mechanisms, as a logarithm in nats.

The von Mises-Fisher law on the unit sphere of :math:`\mathbb{R}^p` has the density :math:`e^{\kappa x^T y} / C`. Here C
is proportional to :math:`I_\nu(\kappa) / \kappa^\nu` with :math:`\nu = p/2 - 1`. A complex coordinate counts twice.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp

from papers.directions.mechanism import mean_cosine
from zetadp.base.validation import positive

_UNIFORM_FROM = 100
"""Smallest order at which three terms of the expansion are enough."""
_TERMS = (
    ([0, 3, 0, -5], 24),
    ([0, 0, 81, 0, -462, 0, 385], 1152),
    ([0, 0, 0, 30375, 0, -369603, 0, 765765, 0, -425425], 414720),
)
"""Polynomials of Olver's uniform expansion (DLMF 10.41.10): numerators, and the denominator."""


def log_growth(order: float, x: ArrayLike) -> np.ndarray:
    r"""Return :math:`g(x) = \log [I_\nu(x) \Gamma(\nu+1) (2/x)^\nu]`, zero at zero, at orders up to millions.

    The Bessel function itself is far below the smallest double there. Olver's uniform expansion (DLMF 10.41.3) gives
    the logarithm. From small orders a recurrence leads to larger ones.
    """
    values = np.asarray(x, dtype=np.float64)
    if order < _UNIFORM_FROM:
        # From I_nu = I_(nu+2) + 2 (nu + 1) I_(nu+1) / x: only positive terms.
        step = np.log1p(values * mean_cosine(order + 1, values) / (2 * (order + 1)))
        return np.asarray(log_growth(order + 1, values) + step)
    z = values / order
    root = np.sqrt(1 + z * z)
    excess = z * z / (1 + root)  # root - 1
    exponent = order * (excess - np.log1p(excess / 2))
    return np.asarray(exponent - 0.5 * np.log(root) + np.log(_series(order, 1 / root) / _series(order, np.ones(()))))


def _series(order: float, t: np.ndarray) -> np.ndarray:
    terms = (polynomial.polyval(t, one) / (below * order**k) for k, (one, below) in enumerate(_TERMS, start=1))
    return np.asarray(1 + sum(terms))


def direction_capacity(concentration: float, dimension: int) -> float:
    r"""Return the capacity of the von Mises-Fisher mechanism, :math:`\kappa - g(\kappa)`; zero leaks nothing."""
    return concentration - float(log_growth(dimension / 2 - 1, concentration))


def gaussian_capacity(noise: float, radius: float, dimension: int) -> float:
    r"""Return the capacity of Gaussian noise, its deviation in every real coordinate, on vectors in a ball.

    .. math:: C = \frac{R^p}{\Gamma(p/2 + 1) 2^{p/2} \sigma^p} + \frac{1}{\Gamma(p/2) 2^{p/2} \sigma^p}
              \sum_{i=0}^{p-1} \Gamma\Big(\frac{p-i}{2}\Big) (\sqrt{2} \sigma)^{p-i} \binom{p-1}{i} R^i

    The first term is the mass inside the ball, where the supremum is the peak of the density, the second that outside.
    The paper prints the second term twice as large, so that a ball of radius zero would have a capacity of 2, not 1.
    """
    positive(noise=noise, radius=radius)
    p, i = dimension, np.arange(dimension)
    ratio = math.log(radius / noise)
    outside = (
        gammaln((p - i) / 2) - i * (math.log(2) / 2) + i * ratio
        + gammaln(p) - gammaln(i + 1) - gammaln(p - i)
    )  # fmt: skip
    inside = p * (ratio - math.log(2) / 2) - float(gammaln(p / 2 + 1))
    return float(np.logaddexp(logsumexp(outside) - gammaln(p / 2), inside))
