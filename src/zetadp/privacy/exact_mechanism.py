"""The mechanism with draws that nobody can repeat: exact arithmetic, and the operating system's generator.

Floating-point noise gives patients away in its low-order bits, and a seed can be known. Here each clipped gradient is
truncated onto an integer grid, its norm is checked in integers, sums are exact, and the noise is an exactly rounded
Gaussian: the release is post-processing of the continuous Gaussian mechanism, so every accountant holds as it is.
"""

from __future__ import annotations

import os
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from torch import Tensor

from zetadp.device.transfer import to_device
from zetadp.privacy.byte_source import ByteSource, random_bytes
from zetadp.privacy.events import Round
from zetadp.privacy.exact import rounded_normal
from zetadp.privacy.grid import Grid, from_grid
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.mechanism import NodeMechanism, drawn_places

NOISY_AT_ONCE = 1 << 24
"""Numbers that noise is added to together."""


class ExactSampledGaussian(NodeMechanism):
    """The mechanism of one node, with sampling and noise from the operating system. It takes no seed.

    Parameters
    ----------
    event, ledger, rows
        As in `NodeMechanism`; with noise.
    grid
        The grid of the integer sums, a public constant of the run.
    """

    repeatable = False

    def __init__(self, event: Round, *, grid: Grid, ledger: Ledger, rows: int = 1) -> None:
        super().__init__(event, ledger=ledger, rows=rows)
        if not event.noise_multiplier > 0 or event.dimension or grid.bound != event.clip:
            raise ValueError(
                f"Expected Gaussian noise and a grid of the bound that is clipped to, found {event} and {grid}."
            )
        self.grid: Grid = grid

    def image_choices(self, round_number: int) -> np.random.Generator:
        """Return a generator seeded by the operating system."""
        return np.random.default_rng()

    def _drawn(self, event: Round, again: int) -> np.ndarray:
        return drawn_places(self.rows * event.population, partial(bernoulli_mask, self.probability))

    def _privatised(self, event: Round, clipped_sum: Tensor, again: int) -> Tensor:
        """Add exact noise to the integer sum; conversion to float comes last and is post-processing."""
        scale = self.grid.noise_scale(event.noise_multiplier)

        def noisy(part: Tensor) -> Tensor:
            noise = torch.from_numpy(rounded_normal(len(part), scale))
            return from_grid(part + to_device(noise, part.device), self.grid, event.expected)

        # In parts: of many rows, the noise as integers would take more room than the rows.
        return torch.cat([noisy(part) for part in torch.split(clipped_sum, NOISY_AT_ONCE)])


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
    # U and the probability are compared byte by byte. Where they agree so far, what follows decides: it is uniform
    # again, and must be below what is left of the probability. One in 256 gets as far as its second byte.
    first = np.frombuffer(random_bytes(source, size), dtype=np.uint8)
    whole, rest = divmod(probability * 256, 1)
    result: np.ndarray = first < whole
    undecided = np.flatnonzero(first == whole)
    if len(undecided):
        result[undecided] = bernoulli_mask(rest, len(undecided), source=source)
    return result
