r"""Bayes' capacity: how much a release can help an attacker to guess the data behind it.

The capacity of a mechanism, :math:`\int \sup_x f(x)(y) \, dy`, is the largest factor by which a release can raise the
chance of a correct guess. The factor holds for all priors and all gains, including gains that reward a near guess. Its
logarithm, in nats, is the Sibson mutual information of order infinity. Capacity bounds reconstruction. Unlike epsilon,
it promises nothing to one person if the attacker knows all others. The formulas are Theorems 5 and 6 of Biswas et al.
(arXiv:2502.04045), corrected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import gammaln, logsumexp

from zetadp.base.validation import positive
from zetadp.directions.bessel import log_growth, order_of


def direction_capacity(concentration: float, dimension: int) -> float:
    r"""Return the logarithm of the capacity of the von Mises-Fisher mechanism, :math:`\kappa - g(\kappa)`.

    Parameters
    ----------
    concentration
        Kappa, zero or more. Zero returns a uniform direction and leaks nothing.
    dimension
        Real dimension p; a complex coordinate counts twice.

    Examples
    --------
    >>> round(direction_capacity(2.0, dimension=3), 7)
    1.4047798
    """
    return concentration - float(log_growth(order_of(dimension), concentration))


def gaussian_capacity(noise: float, radius: float, dimension: int) -> float:
    r"""Return the logarithm of the capacity of Gaussian noise on vectors in a ball.

    .. math:: C = \frac{R^p}{\Gamma(p/2 + 1) 2^{p/2} \sigma^p} + \frac{1}{\Gamma(p/2) 2^{p/2} \sigma^p}
              \sum_{i=0}^{p-1} \Gamma\Big(\frac{p-i}{2}\Big) (\sqrt{2} \sigma)^{p-i} \binom{p-1}{i} R^i

    The first term is the mass inside the ball, where the supremum is the peak of the density. The second term is the
    mass outside. The paper prints the second term twice as large, which would give a ball of radius zero a capacity of
    2 instead of 1.

    Parameters
    ----------
    noise
        Standard deviation of the noise in every real coordinate of the released vector. Only its ratio to the radius
        matters.
    radius
        Radius of the ball that contains the vectors before the noise, in the complex Euclidean norm. Zero leaks
        nothing.
    dimension
        Real dimension p; a complex coordinate counts twice.

    Raises
    ------
    ValueError
        If the noise is not positive, or the radius is negative or infinite.

    Examples
    --------
    >>> round(gaussian_capacity(noise=0.7, radius=1.3, dimension=2), 8)
    1.61979869
    """
    positive(noise=noise)
    order_of(dimension)
    if not (radius >= 0 and math.isfinite(radius)):
        raise ValueError(f"Expected a finite radius >= 0, found {radius}.")
    if radius == 0:
        return 0.0
    p, i = dimension, np.arange(dimension)
    ratio = math.log(radius / noise)
    outside = (
        gammaln((p - i) / 2) - i * (math.log(2) / 2) + i * ratio
        + gammaln(p) - gammaln(i + 1) - gammaln(p - i)
    )  # fmt: skip
    inside = p * (ratio - math.log(2) / 2) - float(gammaln(p / 2 + 1))
    return float(np.logaddexp(logsumexp(outside) - gammaln(p / 2), inside))


def run_capacity(capacities: Iterable[tuple[float, int]]) -> float:
    """Return an upper bound on the logarithm of the capacity of a run: the sum over its releases.

    The bound also holds if later releases depend on earlier ones. It does not credit the random drawing of people.

    Parameters
    ----------
    capacities
        Pairs of the logarithm of the capacity of one release and the number of such releases.
    """
    return math.fsum(capacity * count for capacity, count in capacities)
