"""The mechanism that protects: exact arithmetic, and randomness from the operating system that nobody can repeat.

The low-order bits of floating-point noise can reveal patients, and an attacker could learn a seed. Here each clipped
gradient is truncated to an integer grid and its norm is checked in integers. Sums are exact, and the noise is an
exactly rounded Gaussian. The release is therefore post-processing of the continuous Gaussian mechanism, for which every
accountant holds.
"""

from __future__ import annotations

import os
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from torch import Tensor

from zetadp.base.transfer import to_device
from zetadp.privacy.byte_source import ByteSource, random_bytes
from zetadp.privacy.events import Round
from zetadp.privacy.exact import rounded_normal
from zetadp.privacy.grid import Grid, from_grid
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.mechanism import NodeMechanism, drawn_places

NOISY_AT_ONCE = 1 << 24
"""Number of coordinates to which noise is added at a time."""


class ExactSampledGaussian(NodeMechanism):
    """The mechanism of one node, with sampling and noise from the operating system. It takes no seed.

    Parameters
    ----------
    event, ledger, rows
        Same as for `NodeMechanism`. The event must have Gaussian noise.
    grid
        The grid of the integer sums, a public constant of the run.

    Raises
    ------
    ValueError
        If the event has no noise or releases a direction, if the bound of the grid is not the clipping norm, or for
        the reasons of `NodeMechanism`.
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
        """Add exact noise to the integer sum. The conversion to float comes last and is post-processing."""
        scale = self.grid.noise_scale(event.noise_multiplier)

        def noisy(part: Tensor) -> Tensor:
            noise = torch.from_numpy(rounded_normal(len(part), scale))
            return from_grid(part + to_device(noise, part.device), self.grid, event.expected)

        # In parts, because the integer noise of many rows would need more memory than the rows themselves.
        return torch.cat([noisy(part) for part in torch.split(clipped_sum, NOISY_AT_ONCE)])


def bernoulli_mask(probability: Fraction | int, size: int, *, source: ByteSource = os.urandom) -> np.ndarray:
    """Draw independent booleans that are true with exactly the given probability.

    Parameters
    ----------
    probability
        A rational number in [0, 1], for instance ``Fraction(expected) / population``. Floats are refused, because a
        float such as 24 / 44 is rounded.
    size
        Number of booleans.
    source
        Source of random bytes. Only tests replace the operating system's generator.

    Returns
    -------
    Boolean array of shape (size,).

    Raises
    ------
    ValueError
        If the probability is not rational or outside [0, 1].

    Examples
    --------
    >>> bernoulli_mask(Fraction(24, 44), 44).shape
    (44,)
    """
    if not isinstance(probability, Fraction | int) or not 0 <= probability <= 1:
        raise ValueError(f"Expected a Fraction from 0 to 1 as probability, found {probability!r}.")
    if probability in (0, 1):
        return np.full(size, probability == 1)
    # A uniform number U is compared with the probability, byte by byte. If the first bytes are equal, the remaining
    # bytes decide: they are uniform as well and are compared with the rest of the probability. This happens for one
    # number in 256.
    first = np.frombuffer(random_bytes(source, size), dtype=np.uint8)
    whole, rest = divmod(probability * 256, 1)
    result: np.ndarray = first < whole
    undecided = np.flatnonzero(first == whole)
    if len(undecided):
        result[undecided] = bernoulli_mask(rest, len(undecided), source=source)
    return result
