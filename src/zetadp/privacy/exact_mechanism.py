"""The mechanism with draws that nobody can repeat: exact arithmetic, and the operating system's generator.

Floating-point noise gives patients away in its low-order bits, and a seed can be known. Here each clipped gradient is
truncated onto an integer grid, its norm is checked in integers, sums are exact, and the noise is an exactly rounded
Gaussian: the release is post-processing of the continuous Gaussian mechanism, so every accountant holds as it is.
"""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from zetadp.device.transfer import to_device
from zetadp.privacy.byte_source import ByteSource, random_words
from zetadp.privacy.events import Round
from zetadp.privacy.exact import rounded_normal
from zetadp.privacy.grid import Grid, from_grid
from zetadp.privacy.mechanism import Constants, NodeMechanism


class ExactSampledGaussian(NodeMechanism):
    """The mechanism of one node, with sampling and noise from the operating system. It takes no seed.

    Parameters
    ----------
    node, constants
        As in `NodeMechanism`; noise multiplier and clip above zero and finite.
    grid
        The grid of the integer sums, a public constant of the run.
    """

    repeatable = False

    def __init__(self, node: str, *, grid: Grid, **constants: Unpack[Constants]) -> None:
        super().__init__(node, **constants)
        if not self.noise_multiplier > 0 or grid.bound != self.clip:
            raise ValueError(
                f"Expected noise and a grid of bound {self.clip}, found noise_multiplier={self.noise_multiplier} and "
                f"bound {grid.bound}."
            )
        self.grid: Grid = grid

    def image_choices(self, round_number: int) -> np.random.Generator:
        """Return a generator seeded by the operating system."""
        return np.random.default_rng()

    def _drawn(self, event: Round, again: int) -> np.ndarray:
        probability = Fraction(event.expected) / event.population
        return bernoulli_mask(probability, event.population)

    def _privatised(self, event: Round, clipped_sum: Tensor, again: int) -> Tensor:
        """Add exact noise to the integer sum; conversion to float comes last and is post-processing."""
        noise = rounded_normal(len(clipped_sum), self.grid.noise_scale(event.noise_multiplier))
        noisy = clipped_sum + to_device(torch.from_numpy(noise), clipped_sum.device)
        return from_grid(noisy, self.grid, event.expected)


def bernoulli_mask(probability: Fraction | int, size: int, *, source: ByteSource = os.urandom) -> np.ndarray:
    """Draw independent booleans that are true with exactly the given probability.

    Parameters
    ----------
    probability
        A rational number in [0, 1], for instance ``Fraction(expected) / population``. A float is refused: 24 / 44 is
        not the float nearest to it.
    size
        How many.
    source
        Where random bytes come from; the operating system unless a test says otherwise.

    Returns
    -------
    Boolean array of shape (size,).

    Examples
    --------
    >>> bernoulli_mask(Fraction(24, 44), 44).shape
    (44,)
    """
    if not isinstance(probability, Fraction | int) or not 0 <= probability <= 1:
        raise ValueError(f"Expected a Fraction from 0 to 1 as probability, found {probability!r}.")
    if probability in (0, 1):
        return np.full(size, probability == 1)
    first = random_words(source, size)
    whole, rest = divmod(probability * 2**64, 1)
    result: np.ndarray = first < np.uint64(whole)
    # U and the probability agree in 64 bits. What follows them decides: it is uniform again, and must be below `rest`.
    for position in np.flatnonzero(first == np.uint64(whole)):
        result[position] = bernoulli_mask(rest, 1, source=source)[0]
    return result
