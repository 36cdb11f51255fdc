r"""Noise from a seeded generator: it is reproducible, and it protects nobody.

Gaussian noise is added to a sum, or a direction is drawn from the von Mises-Fisher distribution, in millions of
dimensions. The rejection sampler of Ulrich (1984, doi:10.2307/2347441) with Wood's correction (1994,
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

from zetadp.base.tensors import for_device, to_device


def noisy_mean(clipped_sum: Tensor, deviation: float, expected: float, generator: np.random.Generator) -> Tensor:
    """Return a clipped sum with Gaussian noise, divided by the expected number of units.

    On a CPU the computation uses NumPy, which releases Python's lock and needs one thread. Several nodes can then run
    in parallel (`zetadp.training.round`).

    Parameters
    ----------
    clipped_sum
        Flat and real, float32, shape (dimension,).
    deviation
        Standard deviation of the noise in each real component.
    expected
        The divisor, a public constant.
    generator
        Generator of the noise. A seeded generator protects nobody.
    """
    noise = scaled_normal(len(clipped_sum), deviation, generator, clipped_sum.device)
    return mean_with_noise(clipped_sum, noise, expected)


def scaled_normal(size: int, deviation: float, generator: np.random.Generator, device: torch.device) -> Tensor:
    """Return Gaussian noise in the processor's memory, float32 of shape (size,).

    Parameters
    ----------
    size
        Number of real components.
    deviation, generator
        As in `noisy_mean`. Python's lock is released while the generator draws.
    device
        Device to which the noise will be copied.
    """
    noise = for_device(size, torch.float32, device)
    drawn = noise.numpy()
    generator.standard_normal(dtype=np.float32, out=drawn)
    drawn *= np.float32(deviation)
    return noise


def mean_with_noise(clipped_sum: Tensor, noise: Tensor, expected: float) -> Tensor:
    """Return ``(clipped_sum + noise) / expected`` on the device of the sum.

    Parameters
    ----------
    clipped_sum, expected
        As in `noisy_mean`.
    noise
        Noise that `scaled_normal` returned for this sum alone. On a CPU it becomes the result.
    """
    if clipped_sum.device.type != "cpu":
        return (clipped_sum + to_device(noise, clipped_sum.device)) / expected
    drawn = noise.numpy()
    drawn += clipped_sum.numpy()
    drawn /= np.float32(expected)
    return noise


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
    `zetadp.accounting.directions.mean_cosine`.

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
