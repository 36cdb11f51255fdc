r"""Poisson sampling and noise in one object, so that the accountant counts exactly what happened.

One round at one node has these steps:

1. Every unit is drawn independently with probability ``p = R / N``.
2. The clipped contributions of the drawn units are summed.
3. Noise of variance :math:`(\sigma B)^2` is added to every real coordinate, and to the real part **and** the imaginary
   part of every complex coordinate.
4. The result is divided by the expected number R of units, a public constant. The number of units that were drawn is
   private and is never the divisor. A round that draws no unit releases noise.

That is the kind `NoisySum`. Another law of noise (`zetadp.accounting.laws`) replaces steps 3 and 4, also in a round
that draws no unit.

A node's part of a `MaskedSum` skips step 4 and stays a whole number: its messages are added up before anybody divides.

There are two sources of randomness. A seed makes draws and noise reproducible and protects nobody: the low-order bits
of floating-point noise can reveal people, and an attacker could learn the seed. The operating system protects: each
clipped gradient is truncated to an integer grid and its norm is checked in integers. Sums are exact, and the noise is
an exactly rounded Gaussian. The release is therefore post-processing of the continuous Gaussian mechanism, for which
every accountant holds.

The method is Algorithm 1 of Riess et al., Complex-valued Federated Learning with Differential Privacy and MRI
Applications, with the noise of its eq. 2. ``torch.randn`` with a complex dtype would give half the variance.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from zetadp.account.ledger import Ledger
from zetadp.accounting.events import Event, sampling_probability
from zetadp.accounting.masked import MaskedSum
from zetadp.accounting.seeded_noise import mean_with_noise, scaled_normal
from zetadp.base.installed import PackageError
from zetadp.base.randomness import ByteSource, Purpose, random_bytes, stream
from zetadp.base.tensors import for_device, keep_until_read, to_device
from zetadp.base.usercode import user_code
from zetadp.mechanism.exact import rounded_normal
from zetadp.mechanism.grid import Grid, from_grid

if TYPE_CHECKING:
    from collections.abc import Callable


DRAWN_AT_ONCE = 1 << 23
"""Number of positions that are drawn together."""
NOISY_AT_ONCE = 1 << 24
"""Number of coordinates to which noise is added at a time."""


@dataclass(frozen=True)
class Draw:
    """The units that one node draws in one round, with the event for the accountant.

    Attributes
    ----------
    event
        Public constants of the round.
    members
        Indices of the units drawn. Private: it never leaves the node.
    rows
        Row for which each member was drawn, if several sums are released together. None for a single sum.
    """

    event: Event
    members: np.ndarray
    rows: np.ndarray | None = None


class NodeMechanism:
    """The mechanism of one node: it draws the units of a round and makes the release.

    Parameters
    ----------
    event
        Public constants of every round, as the ledger records them. The number of the round is filled in later.
    ledger
        Ledger that must record an event before its release.
    rows
        Number of sums that are released together in a round. Each sum has its own draws. The share of the sums for
        which a unit can be drawn is public: it is the count of the event divided by this number.
    grid
        The grid of integer sums, a public constant of the run; None for floating-point sums. Sums are integers if the
        operating system is the source of the noise, or if they are parts of masked sums.
    seed
        Seed of the run, which protects nobody. None takes sampling and noise from the operating system. Only a seed
        can release kinds without Gaussian noise: no exact samplers of them are known.
    node_index
        Number of the node. It separates the node's seeded streams from those of other nodes.

    Raises
    ------
    ValueError
        If the event counts more rows than there are, or if its sampling probability contradicts its other constants.
        If it releases several sums by another law than the Gaussian. If there is no seed and the event has no noise or
        other than Gaussian noise, or if the bound of the grid is not the clipping norm.
    """

    def __init__(
        self,
        event: Event,
        *,
        ledger: Ledger,
        rows: int = 1,
        grid: Grid | None = None,
        seed: int | None = None,
        node_index: int = 0,
    ) -> None:
        self.event, self.ledger, self.rows = event, ledger, rows
        self.grid, self.seed, self.node_index = grid, seed, node_index
        self.probability = sampling_probability(event.population, event.expected, Fraction(event.count, rows))
        if event.count > rows or float(self.probability) != event.sampling_probability:
            raise ValueError(
                f"Expected at most {rows} rows, drawn for with the chance {float(self.probability):g}, found {event}."
            )
        if not event.kind.gaussian and rows > 1:
            raise ValueError(f"Expected Gaussian noise for several rows, found {rows} rows and {event.kind}.")
        if seed is None and not (event.kind.private and event.kind.gaussian):
            raise ValueError(f"Expected Gaussian noise where the operating system is its source, found {event}.")
        integers = seed is None or isinstance(event.kind, MaskedSum)
        if integers != (grid is not None) or (grid is not None and grid.bound != event.clip):
            raise ValueError(
                "Expected a grid of the bound that is clipped to where noise is exact or sums are masked, and nowhere "
                f"else, found {event} and {grid}."
            )
        self._released: set[tuple[int, int]] = set()
        self._ahead: tuple[tuple[Event, int, int], Tensor] | None = None

    @property
    def repeatable(self) -> bool:
        """Whether a round, computed again, releases the same bytes."""
        return self.seed is not None

    def draw(self, round_number: int, *, again: int = 0) -> Draw:
        """Draw the units of a round, each independently. The result may be empty.

        Parameters
        ----------
        round_number
            Number of the round.
        again
            How often this round was released before. Every repetition draws new units, because the accountant
            assumes that releases are independent.
        """
        event = replace(self.event, round=round_number)
        positions = self._draw_positions(event, again)
        if self.rows == 1:
            return Draw(event, positions)
        rows, members = np.divmod(positions, event.population)
        return Draw(event, members, rows)

    def item_choices(self, round_number: int, purpose: Purpose = Purpose.IMAGES) -> np.random.Generator:
        """Return the generator that chooses the items of the node's units in a round, or one of another purpose."""
        if self.seed is None:
            return np.random.default_rng()
        return stream(self.seed, purpose, self.node_index, round_number)

    def draw_ahead(self, round_number: int, size: int, device: torch.device, *, again: int = 0) -> None:
        """Draw the noise of one release before its sum is known, while a GPU computes the sum, and copy it there.

        It is the noise that `release` would draw, since Gaussian noise depends on no data. It serves that release or
        none: `release` takes it away, and any other noise that was drawn ahead is dropped here. Noise without a release
        is never used. Nothing is drawn for kinds whose noise depends on the sum, and for very long sums.

        Parameters
        ----------
        round_number, again
            As in `draw`.
        size
            Real numbers in the sum.
        device
            Device of the sum.
        """
        self._ahead = None
        kind = self.event.kind
        if not kind.private or not kind.gaussian or size > NOISY_AT_ONCE:
            return
        event = replace(self.event, round=round_number)
        if self.grid is None:
            deviation = event.noise_multiplier * event.clip
            noise = scaled_normal(size, deviation, self._noise_stream(event, again), device)
        else:
            noise = for_device(size, torch.int64, device)
            noise.numpy()[:] = self._integers(event, size, self._byte_source(event, again))
        if device.type == "cuda":
            with suppress(torch.OutOfMemoryError):  # sums that need all memory: the release then copies the noise
                noise = to_device(noise, device)
        self._ahead = (event, again, size), noise

    def release(self, draw: Draw, clipped_sum: Tensor, *, again: int = 0) -> Tensor:
        """Return the privatised mean gradient, ready to leave the node.

        Parameters
        ----------
        draw
            The draw of the round. The ledger must already contain its event.
        clipped_sum
            Sum of the clipped contributions of the drawn units, flat and real, shape (dimension,).
        again
            How often this round was released before with another sum. Every release has its own noise: the same noise
            on two sums would reveal their exact difference.

        Returns
        -------
        ``(clipped_sum + noise) / R``, or what another kind releases instead. The shape is that of the sum. A part of a
        masked sum is int64, in steps of the grid, and has no masks yet: it must not leave the node like this.

        Raises
        ------
        RuntimeError
            If this release was not recorded before, because a crash could then leave a release that is in no ledger.
            Also if it was already made, because each release needs its own entry and its own noise.
        ValueError
            If the sum has another dimension than the event.
        """
        if not self.ledger.holds(draw.event, again + 1):
            raise RuntimeError(f"Expected the ledger to hold {draw.event} before its release, {again + 1} times.")
        if (draw.event.round, again) in self._released:
            raise RuntimeError(
                f"Round {draw.event.round} was released already at {self.event.node}: record it again, with new noise."
            )
        if draw.event.kind.length not in (None, len(clipped_sum)):
            raise ValueError(
                f"Expected a sum of {draw.event.kind.length} numbers, as recorded, found {len(clipped_sum)}."
            )
        self._released.add((draw.event.round, again))
        return self._privatised(draw.event, clipped_sum, again)

    def _draw_positions(self, event: Event, again: int) -> np.ndarray:
        """Draw the positions of units: row * population + unit, in ascending order."""
        size = self.rows * event.population
        if self.seed is None:
            return drawn_positions(size, partial(bernoulli_mask, self.probability))
        repeated = (again,) if again else ()
        random = stream(self.seed, Purpose.SAMPLING, self.node_index, event.round, *repeated)
        return drawn_positions(size, lambda number: random.random(number) < event.sampling_probability)

    def _privatised(self, event: Event, clipped_sum: Tensor, again: int) -> Tensor:
        """Add noise and divide by the expected number of units. The division of integers comes last."""
        if not event.kind.private:
            return clipped_sum / event.expected
        noise = self._taken(event, again, len(clipped_sum))
        if self.grid is None:
            if noise is not None:
                return mean_with_noise(clipped_sum, noise, event.expected)
            return _sampled(event, clipped_sum, self._noise_stream(event, again))
        source = self._byte_source(event, again)

        def noisy(part: Tensor) -> Tensor:
            part_noise = torch.from_numpy(self._integers(event, len(part), source)) if noise is None else noise
            return part + to_device(part_noise, part.device)

        if isinstance(event.kind, MaskedSum):
            return noisy(clipped_sum)
        # In parts, because the integer noise of many rows would need more memory than the rows themselves.
        parts = torch.split(clipped_sum, NOISY_AT_ONCE)
        return torch.cat([from_grid(noisy(part), self.grid, event.expected) for part in parts])

    def _taken(self, event: Event, again: int, size: int) -> Tensor | None:
        """Return the noise that was drawn ahead for this release, for its only use, or None."""
        ahead, self._ahead = self._ahead, None
        return keep_until_read(ahead[1]) if ahead is not None and ahead[0] == (event, again, size) else None

    def _noise_stream(self, event: Event, again: int) -> np.random.Generator:
        """Return the seeded stream of the noise of one release."""
        assert self.seed is not None
        return stream(self.seed, Purpose.NOISE, self.node_index, event.round, again)

    def _byte_source(self, event: Event, again: int) -> ByteSource:
        """Return the source of integer noise: the operating system, or for a seeded masked sum its stream."""
        return os.urandom if self.seed is None else self._noise_stream(event, again).bytes

    def _integers(self, event: Event, size: int, source: ByteSource) -> np.ndarray:
        """Draw integer noise in steps of the grid, int64 of shape (size,)."""
        assert self.grid is not None
        kind = event.kind
        sigma = kind.share if isinstance(kind, MaskedSum) else kind.noise_multiplier
        return rounded_normal(size, self.grid.noise_scale(sigma), source=source)


def _sampled(event: Event, clipped_sum: Tensor, generator: np.random.Generator) -> Tensor:
    """Return a release of a kind with noise from a seeded generator; refuse what an installed law must not return."""
    law = event.kind.law
    with user_code(f"Expected a release by the law of noise {law}, found an error: "):
        sample = event.kind.sample(clipped_sum, event.clip, event.expected, generator)
    if event.kind.gaussian:
        return sample
    alike = isinstance(sample, Tensor) and (sample.shape, sample.dtype) == (clipped_sum.shape, clipped_sum.dtype)
    if not alike or not torch.isfinite(sample).all():
        kind = f"{tuple(sample.shape)} of {sample.dtype}" if isinstance(sample, Tensor) else type(sample).__name__
        raise PackageError(
            f"Expected a release of {len(clipped_sum)} finite numbers of type float32 by the law of noise {law}, found "
            f"{'some that are not finite' if alike else kind}. Ask the author of the package."
        )
    return sample


def drawn_positions(size: int, draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """Draw a boolean for each position, and return the positions of those that are true, in ascending order.

    Parameters
    ----------
    size
        Number of positions.
    draw
        Returns the given number of random booleans. It is called for at most `DRAWN_AT_ONCE` positions at a time, which
        limits memory.
    """
    starts = range(0, size, DRAWN_AT_ONCE)
    return np.concatenate([start + np.flatnonzero(draw(min(DRAWN_AT_ONCE, size - start))) for start in starts])


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
