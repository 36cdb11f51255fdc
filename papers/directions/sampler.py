r"""Draws from the von Mises-Fisher distribution, in millions of dimensions.

The rejection sampler of Ulrich (1984, doi:10.2307/2347441) with Wood's correction (1994,
doi:10.1080/03610919408813161) draws the cosine between centre and output. The rest of the output is a uniform direction
orthogonal to the centre. The distribution is exact up to the rounding of floating-point numbers. **Rounding can reveal
people**: the low-order bits of an output depend on the centre, for every random generator. This sampler therefore only
simulates the mechanism. Its epsilon holds for the ideal mechanism, not for these outputs.

A complex vector counts as a real vector of twice the length. Its real orthogonal complement contains :math:`j x`, where
x is the centre. Removing the whole complex projection :math:`(x^H w) x` would leave that coordinate without noise.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def draw_direction(centre: Tensor, concentration: float, draws: np.random.Generator) -> Tensor:
    """Draw a unit vector from the von Mises-Fisher distribution around the direction of a vector.

    Parameters
    ----------
    centre
        Flat and real, with at least 3 coordinates. Only its direction matters. If the vector is zero or not finite, the
        direction of the first coordinate replaces it, which is public.
    concentration
        Kappa, zero or more. Zero gives a uniform direction.
    draws
        Generator of all random numbers.

    Returns
    -------
    A unit vector of the same length, type and device. Its mean cosine with the centre is
    `papers.directions.mechanism.mean_cosine`.

    Raises
    ------
    ValueError
        If the centre is complex or has fewer than 3 coordinates, or the concentration is negative or infinite.
    """
    if centre.is_complex():
        raise ValueError("Expected a real vector, found a complex one. Give its real and imaginary parts.")
    x = _unit(centre.cpu().to(torch.float64).numpy())
    cosine = float(draw_cosines(concentration, len(x), 1, draws)[0])
    y = _orthogonal(draws.standard_normal(len(x)), x)
    y *= math.sqrt((1 - cosine) * (1 + cosine)) / np.linalg.norm(y)
    y += cosine * x
    return torch.from_numpy(y).to(centre)


def draw_cosines(concentration: float, dimension: int, count: int, draws: np.random.Generator) -> np.ndarray:
    """Draw cosines between centre and output, float64 of shape (count,).

    Parameters
    ----------
    concentration, dimension
        Kappa, zero or more, and real dimension, at least 3.
    count
        Number of cosines.
    draws
        Generator of all random numbers.

    Raises
    ------
    ValueError
        If the concentration or the dimension is out of range.
    """
    # The envelope and the test use logarithms, in forms that lose no digits to cancellation.
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
    cosines, missing = np.empty(count), np.arange(count)
    while len(missing):
        z = draws.beta(d / 2, d / 2, len(missing))
        cosine = (1 - (1 + b) * z) / (1 - rest * z)
        threshold = np.log1p(-draws.random(len(missing)))
        accepted = concentration * cosine + d * np.log1p(-x0 * cosine) - level >= threshold
        cosines[missing[accepted]] = cosine[accepted]
        missing = missing[~accepted]
    return cosines


def _unit(vector: np.ndarray) -> np.ndarray:
    """Scale a vector to length one. A vector without a direction becomes the first coordinate's direction."""
    largest = float(np.abs(vector).max(initial=0))
    if largest > 0 and math.isfinite(largest):
        scaled = vector / largest  # so that no square overflows or vanishes
        return np.asarray(scaled / np.linalg.norm(scaled))
    first = np.zeros(len(vector))
    first[:1] = 1
    return first


def _orthogonal(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Subtract from a vector its part along the unit vector x."""
    return np.asarray(w - (x @ w) * x)
