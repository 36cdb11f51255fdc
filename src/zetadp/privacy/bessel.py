r"""Modified Bessel functions of the first kind, at orders up to millions, as gradients need them.

The von Mises-Fisher distribution on the unit sphere of :math:`\mathbb{R}^p` has the density

.. math:: e^{\kappa x^T y} / C_{p,\kappa}, \quad C_{p,\kappa} = (2 \pi)^{\nu+1} I_\nu(\kappa) / \kappa^\nu,
          \quad \nu = p/2 - 1.

At these orders :math:`I_\nu` is far below the smallest double, so this module computes logarithms and ratios only.
Olver's uniform expansion (DLMF 10.41.3) gives the logarithm. A recurrence extends it to orders below `_UNIFORM_FROM`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import ArrayLike

_UNIFORM_FROM = 40
"""Smallest order at which the expansion is exact up to rounding for every argument."""
_TERMS = 10


def order_of(dimension: int) -> float:
    r"""Return the order :math:`\nu = p/2 - 1` for a real dimension p. A complex coordinate counts as two dimensions."""
    if dimension < 2:
        raise ValueError(f"Expected a dimension >= 2, found {dimension}.")
    return dimension / 2 - 1


def log_growth(order: float, x: ArrayLike) -> np.ndarray:
    r"""Return :math:`g(x) = \log {}_0F_1(; \nu + 1; x^2/4) = \log [I_\nu(x) \Gamma(\nu+1) (2/x)^\nu]`, zero at zero.

    This is the logarithm of the normalising constant relative to that of the uniform distribution. The computation
    loses no digits to cancellation.

    Parameters
    ----------
    order
        The order, zero or more.
    x
        Arguments, zero or more, of any shape.

    Raises
    ------
    ValueError
        If the order or an argument is negative.
    """
    values = np.asarray(x, dtype=np.float64)
    if not (order >= 0 and (values >= 0).all()):
        raise ValueError(f"Expected an order and x >= 0, found {order} and {values}.")
    if order < _UNIFORM_FROM:
        # From I_nu = I_(nu+2) + 2 (nu + 1) I_(nu+1) / x: only positive terms.
        step = np.log1p(values * mean_cosine(order + 1, values) / (2 * (order + 1)))
        return np.asarray(log_growth(order + 1, values) + step)
    z = values / order
    root = np.sqrt(1 + z * z)
    excess = z * z / (1 + root)  # root - 1
    exponent = order * (excess - np.log1p(excess / 2))
    series = np.log(_series(order, 1 / root)) - np.log(_series(order, np.ones(())))
    return np.asarray(exponent - 0.5 * np.log(root) + series)


def mean_cosine(order: float, x: ArrayLike) -> np.ndarray:
    r"""Return :math:`A(x) = I_{\nu+1}(x) / I_\nu(x)`, the mean cosine between centre and output at concentration x.

    The continued fraction is evaluated backwards. All of its terms are positive, so no digits are lost.
    """
    values = np.asarray(x, dtype=np.float64)
    terms = 200 + math.ceil(2 * float(values.max(initial=0)))
    ratio = np.zeros_like(values)
    for k in range(terms, 0, -1):
        ratio = values / (2 * (order + k) + values * ratio)
    return np.asarray(ratio)


@lru_cache(maxsize=1)
def _coefficients() -> tuple[np.ndarray, ...]:
    r"""Return the polynomials of the expansion, :math:`U_0` to :math:`U_{10}` (DLMF 10.41.9)."""
    found = [[Fraction(1)]]
    for _ in range(_TERMS):
        last = found[-1]
        following = [Fraction(0)] * (len(last) + 3)
        for power, value in enumerate(last):
            # t^2 (1 - t^2) U' / 2, and the integral of (1 - 5 s^2) U / 8
            following[power + 1] += value * (Fraction(power, 2) + Fraction(1, 8 * (power + 1)))
            following[power + 3] -= value * (Fraction(power, 2) + Fraction(5, 8 * (power + 3)))
        found.append(following)
    return tuple(np.array([float(value) for value in one]) for one in found)


def _series(order: float, t: np.ndarray) -> np.ndarray:
    return np.asarray(sum(polynomial.polyval(t, one) / order**k for k, one in enumerate(_coefficients())))
