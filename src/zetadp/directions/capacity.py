r"""Bayes' capacity: by how much a release can help an attacker who guesses the data behind it.

The capacity of a channel, :math:`\int \sup_x f(x)(y) \, dy`, is the largest factor by which one observed output
multiplies the chance of a correct guess, over all priors and all gains (also those that reward a guess for being near).
Its logarithm, in nats, is the Sibson mutual information of order infinity. It bounds reconstruction and, unlike
epsilon, promises nothing about one person against all others known. Formulas of Biswas et al. (arXiv:2502.04045),
Theorems 5 and 6, corrected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import gammaln, logsumexp

from zetadp.directions.bessel import log_growth, order_of
from zetadp.validation import positive


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

    The first term is the mass inside the ball, where the supremum is the density's peak; the second is that outside.
    The paper prints the second twice as large, which would give a capacity of 2 to a ball without content.

    Parameters
    ----------
    noise
        Standard deviation of every real coordinate of the released vector: of a mean over L contributions under noise
        :math:`\sigma B / L`, this is :math:`\sigma B / L`, or one takes :math:`\sigma` and a radius of L for B = 1.
    radius
        Of the ball that holds the vectors before the noise, in the complex Euclidean norm. Zero leaks nothing.
    dimension
        Real dimension p; a complex coordinate counts twice.

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
    """Return a bound on the logarithm of the capacity of a training run: logarithms of capacities add up.

    Parameters
    ----------
    capacities
        Logarithm of the capacity of one release, and the number of such releases. Later releases may depend on the
        results of earlier ones. Drawing people at random is not credited.
    """
    return math.fsum(capacity * count for capacity, count in capacities)
