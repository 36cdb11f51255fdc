r"""Poisson sampling and noise in one object, so that the accountant counts exactly what happened.

One round at one node has these steps:

1. Every unit is drawn independently with probability ``p = R / N``.
2. The clipped contributions of the drawn units are summed.
3. Noise of variance :math:`(\sigma B)^2` is added to every real coordinate, and to the real part **and** the imaginary
   part of every complex coordinate.
4. The result is divided by the expected number R of units, a public constant. The number of units that were drawn is
   private and is never the divisor. A round that draws no unit releases noise.

That is the kind `NoisySum`. Another kind of release (`zetadp.privacy.kinds`) replaces steps 3 and 4. A direction, for
example, is drawn around that of the sum. A sum of zero has no direction, either because no unit was drawn or because
the contributions cancel. A fixed public direction then replaces it. The accountant assumes that any two centres are
opposite, including this one.

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
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from zetadp.base.randomness import ByteSource, Purpose, random_bytes, stream
from zetadp.base.tensors import to_device
from zetadp.privacy.events import Event, sampling_probability
from zetadp.privacy.exact import rounded_normal
from zetadp.privacy.grid import Grid, from_grid
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.masked import MaskedSum

if TYPE_CHECKING:
    from collections.abc import Callable


DRAWN_AT_ONCE = 1 << 23
"""Number of places that are drawn together."""
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
    place
        Number of the node. It separates the node's seeded streams from those of other nodes.

    Raises
    ------
    ValueError
        If the event counts more rows than there are, if its sampling probability contradicts its other constants, or
        if it releases the directions of several sums. Also if there is no seed and the event has no noise or other than
        Gaussian noise, or if the bound of the grid is not the clipping norm.
    """

    def __init__(
        self,
        event: Event,
        *,
        ledger: Ledger,
        rows: int = 1,
        grid: Grid | None = None,
        seed: int | None = None,
        place: int = 0,
    ) -> None:
        self.event, self.ledger, self.rows = event, ledger, rows
        self.grid, self.seed, self.place = grid, seed, place
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
        places = self._drawn(event, again)
        if self.rows == 1:
            return Draw(event, places)
        rows, members = np.divmod(places, event.population)
        return Draw(event, members, rows)

    def item_choices(self, round_number: int, purpose: Purpose = Purpose.IMAGES) -> np.random.Generator:
        """Return the generator that chooses the items of the node's units in a round, or one of another purpose."""
        return np.random.default_rng() if self.seed is None else stream(self.seed, purpose, self.place, round_number)

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

    def _drawn(self, event: Event, again: int) -> np.ndarray:
        """Return the places of the drawn units: row * population + unit, in ascending order."""
        places = self.rows * event.population
        if self.seed is None:
            return drawn_places(places, partial(bernoulli_mask, self.probability))
        repeated = (again,) if again else ()
        random = stream(self.seed, Purpose.SAMPLING, self.place, event.round, *repeated)
        return drawn_places(places, lambda number: random.random(number) < event.sampling_probability)

    def _privatised(self, event: Event, clipped_sum: Tensor, again: int) -> Tensor:
        """Add noise and divide by the expected number of units. The division of integers comes last."""
        if not event.kind.private:
            return clipped_sum / event.expected
        source: ByteSource = os.urandom
        if self.seed is not None:
            generator = stream(self.seed, Purpose.NOISE, self.place, event.round, again)
            source = generator.bytes
            if self.grid is None:
                return event.kind.sample(clipped_sum, event.clip, event.expected, generator)
        assert self.grid is not None  # without a seed
        if isinstance(event.kind, MaskedSum):
            return with_noise(clipped_sum, self.grid.noise_scale(event.kind.share), source=source)
        scale = self.grid.noise_scale(event.noise_multiplier)
        # In parts, because the integer noise of many rows would need more memory than the rows themselves.
        parts = torch.split(clipped_sum, NOISY_AT_ONCE)
        return torch.cat([from_grid(with_noise(part, scale), self.grid, event.expected) for part in parts])


def with_noise(clipped_sum: Tensor, scale: Fraction, *, source: ByteSource = os.urandom) -> Tensor:
    """Return an integer sum with rounded normal noise.

    Parameters
    ----------
    clipped_sum
        int64, shape (number,).
    scale
        Standard deviation of the noise, in steps of the grid.
    source
        Source of random bytes. Another one than the operating system's protects nobody.
    """
    noise = torch.from_numpy(rounded_normal(len(clipped_sum), scale, source=source))
    return clipped_sum + to_device(noise, clipped_sum.device)


def drawn_places(size: int, draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """Draw a boolean for each place, and return the places of those that are true, in ascending order.

    Parameters
    ----------
    size
        Number of places.
    draw
        Returns the given number of random booleans. It is called for at most `DRAWN_AT_ONCE` places at a time, which
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
