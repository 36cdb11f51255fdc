"""Gaussian noise from a seeded generator: it is reproducible, and it protects nobody.

**Rounding can reveal people**: the low-order bits of an output depend on the sum, for every random generator. This
noise therefore only simulates the mechanism. Its epsilon holds for the ideal mechanism, not for these outputs.
"""

from __future__ import annotations

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
    values = noise.numpy()
    generator.standard_normal(dtype=np.float32, out=values)
    values *= np.float32(deviation)
    return noise


def mean_with_noise(clipped_sum: Tensor, noise: Tensor, expected: float) -> Tensor:
    """Return ``(clipped_sum + noise) / expected`` on the device of the sum.

    Parameters
    ----------
    clipped_sum, expected
        As in `noisy_mean`.
    noise
        Noise that `scaled_normal` returned for this sum alone, or a copy of it on the device of the sum. On a CPU it
        becomes the result.
    """
    if clipped_sum.device.type != "cpu":
        return (clipped_sum + to_device(noise, clipped_sum.device)) / expected
    values = noise.numpy()
    values += clipped_sum.numpy()
    values /= np.float32(expected)
    return noise
