r"""Draw from the von Mises-Fisher distribution, in millions of dimensions.

The rejection sampler of Ulrich (1984, doi:10.2307/2347441) with Wood's correction (1994, doi:10.1080/03610919408813161)
draws the cosine between centre and output; the rest of the output is a uniform direction orthogonal to the centre. The
law is exact up to the rounding of floating-point numbers. **Rounding is enough to give people away**: low-order bits of
an output depend on the centre, whatever generator is used. So outputs of this sampler simulate the mechanism, and its
epsilon holds for the ideal one only.

A complex vector is a real one of twice the length. What is orthogonal to a complex centre x in that sense includes
:math:`j x`; taking out the whole complex product :math:`(x^H w) x` would leave that coordinate without noise.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from zetadp.privacy.byte_source import ByteSource, random_words


class Draws(Protocol):
    """Where random numbers come from: NumPy's generators, for instance `zetadp.randomness.stream`, or `SystemDraws`."""

    def random(self, size: int, /) -> np.ndarray:
        """Return uniform numbers from 0 to 1."""

    def standard_normal(self, size: int, /) -> np.ndarray:
        """Return normal numbers."""

    def beta(self, a: float, b: float, size: int, /) -> np.ndarray:
        """Return numbers of a beta distribution."""


class SystemDraws:
    """Random numbers from the operating system's generator, which nobody can predict or repeat.

    They are still floating-point numbers: see the module on what that means for privacy.
    """

    def __init__(self, source: ByteSource = os.urandom) -> None:
        self._source = source

    def random(self, size: int, /) -> np.ndarray:
        """Return uniform numbers strictly between 0 and 1, with 52 random bits each."""
        return np.asarray(((random_words(self._source, size) >> np.uint64(12)) + 0.5) * 2.0**-52)

    def standard_normal(self, size: int, /) -> np.ndarray:
        """Return normal numbers, by the inverse of their distribution function."""
        return np.asarray(ndtri(self.random(size)))

    def beta(self, a: float, b: float, size: int, /) -> np.ndarray:
        """Return numbers of a beta distribution, a and b at least 1, as shares of gamma distributions."""
        first, second = self._gamma(a, size), self._gamma(b, size)
        return np.asarray(first / (first + second))

    def _gamma(self, shape: float, size: int) -> np.ndarray:
        """Return numbers of a gamma distribution (Marsaglia and Tsang 2000, doi:10.1145/358407.358414)."""
        found = np.empty(size)
        left, d = np.arange(size), shape - 1 / 3
        while len(left):
            x, u = self.standard_normal(len(left)), self.random(len(left))
            v = np.maximum(1 + x / math.sqrt(9 * d), 0) ** 3
            with np.errstate(divide="ignore"):
                taken = np.log(u) < x * x / 2 + d - d * v + d * np.log(v)
            found[left[taken]] = d * v[taken]
            left = left[~taken]
        return found


def draw_direction(centre: Tensor, concentration: float, draws: Draws) -> Tensor:
    """Return a unit vector drawn around the direction of a vector.

    Parameters
    ----------
    centre
        Real or complex, of any shape with at least 3 real coordinates and any length: only the direction counts. Where
        it is zero or not finite, the fixed direction of the first coordinate takes its place, which is public.
    concentration
        Kappa, zero or more; zero gives a uniform direction.
    draws
        Where random numbers come from.

    Returns
    -------
    Of the same shape, type and device. Its mean cosine with the centre is `zetadp.directions.bessel.mean_cosine`.
    """
    flat = torch.view_as_real(centre.detach().resolve_conj()) if centre.is_complex() else centre.detach()
    x = _unit(flat.cpu().reshape(-1).to(torch.float64).numpy())
    cosine = float(draw_cosines(concentration, len(x), 1, draws)[0])
    y = _orthogonal(draws.standard_normal(len(x)), x)
    y *= math.sqrt((1 - cosine) * (1 + cosine)) / np.linalg.norm(y)
    y += cosine * x
    drawn = torch.from_numpy(y).reshape(flat.shape).to(flat)
    return torch.view_as_complex(drawn) if centre.is_complex() else drawn


def draw_cosines(concentration: float, dimension: int, count: int, draws: Draws) -> np.ndarray:
    """Return cosines between centre and output, in double precision: shape (count,).

    The envelope and the test are written so that nothing cancels, and in logarithms.
    """
    if dimension < 3 or not (concentration >= 0 and math.isfinite(concentration)):
        raise ValueError(
            f"Expected a dimension >= 3 and a finite concentration >= 0, found {dimension} and {concentration}."
        )
    d = dimension - 1
    root = math.hypot(2 * concentration, d)
    b = d / (2 * concentration + root)
    rest = 2 * concentration * (1 + 2 * concentration / (root + d)) / (2 * concentration + root)  # 1 - b
    x0 = rest / (1 + b)
    level = concentration * x0 + d * math.log1p(-x0 * x0)
    found, left = np.empty(count), np.arange(count)
    while len(left):
        z = draws.beta(d / 2, d / 2, len(left))
        cosine = (1 - (1 + b) * z) / (1 - rest * z)
        threshold = np.log1p(-draws.random(len(left)))
        taken = concentration * cosine + d * np.log1p(-x0 * cosine) - level >= threshold
        found[left[taken]] = cosine[taken]
        left = left[~taken]
    return found


def _unit(vector: np.ndarray) -> np.ndarray:
    """Return a vector at length one, and the first coordinate's direction where it has none."""
    largest = float(np.abs(vector).max(initial=0))
    if largest > 0 and math.isfinite(largest):
        scaled = vector / largest  # so that no square overflows or vanishes
        return np.asarray(scaled / np.linalg.norm(scaled))
    first = np.zeros(len(vector))
    first[:1] = 1
    return first


def _orthogonal(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return what is left of a vector without its part along the unit vector x."""
    return np.asarray(w - (x @ w) * x)
