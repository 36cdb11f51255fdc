r"""Poisson sampling and noise in one object, so that the accountant counts exactly what happened.

One round at one node has these steps:

1. Every patient is drawn independently with probability ``p = R / N``.
2. The clipped gradients of the drawn patients are summed.
3. Noise of variance :math:`(\sigma B)^2` is added to every real coordinate, and to the real part **and** the imaginary
   part of every complex coordinate.
4. The result is divided by the expected number R of patients, a public constant. The number of patients who were drawn
   is private and is never the divisor. A round that draws no patient releases noise.

If the event releases a direction, a random direction around that of the sum is released instead (`zetadp.directions`).
A sum of zero has no direction, either because no patient was drawn or because the contributions cancel. A fixed public
direction then replaces it. The accountant assumes that any two centres are opposite, including this one.

The method is Algorithm 1 of Riess et al., Complex-valued Federated Learning with Differential Privacy and MRI
Applications, with the noise of its eq. 2. ``torch.randn`` with a complex dtype would give half the variance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from zetadp.base.randomness import Purpose, stream
from zetadp.base.transfer import to_device
from zetadp.directions.sampler import draw_direction
from zetadp.privacy.events import Round, sampling_probability
from zetadp.privacy.grid import Grid
from zetadp.privacy.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable


DRAWN_AT_ONCE = 1 << 23
"""Number of places that are drawn together."""


@dataclass(frozen=True)
class Draw:
    """The units that one node draws in one round, with the event for the accountant.

    Attributes
    ----------
    event
        Public constants of the round.
    members
        Indices of the patients drawn. Private: it never leaves the node.
    rows
        Row for which each member was drawn, if several sums are released together. None for a single sum.
    """

    event: Round
    members: np.ndarray
    rows: np.ndarray | None = None


class NodeMechanism(ABC):
    """The mechanism of one node: it draws the patients of a round and makes the release.

    Subclasses define the source of randomness.

    Parameters
    ----------
    event
        Public constants of every round, as the ledger records them. The number of the round is filled in later.
    ledger
        Ledger that must record an event before its release.
    rows
        Number of sums that are released together in a round. Each sum has its own draws. The share of the sums for
        which a patient can be drawn is public: it is the count of the event divided by this number.

    Raises
    ------
    ValueError
        If the event counts more rows than there are, if its sampling probability contradicts its other constants, or
        if it releases the directions of several sums.
    """

    grid: Grid | None = None
    """The grid of integer sums, or None for floating-point sums."""
    repeatable = True
    """Whether a round, computed again, releases the same bytes."""

    def __init__(self, event: Round, *, ledger: Ledger, rows: int = 1) -> None:
        self.event, self.ledger, self.rows = event, ledger, rows
        self.probability = sampling_probability(event.population, event.expected, Fraction(event.count, rows))
        if event.count > rows or float(self.probability) != event.sampling_probability:
            raise ValueError(
                f"Expected at most {rows} rows, drawn for with the chance {float(self.probability):g}, found {event}."
            )
        if event.dimension and rows > 1:
            raise ValueError(f"Expected one sum where its direction is released, found {rows} rows.")
        self._released: set[tuple[int, int]] = set()

    def draw(self, round_number: int, *, again: int = 0) -> Draw:
        """Draw the patients of a round, each independently. The result may be empty.

        Parameters
        ----------
        round_number
            Number of the round.
        again
            How often this round was released before. Every repetition draws new patients, because the accountant
            assumes that releases are independent.
        """
        event = replace(self.event, round=round_number)
        found = self._drawn(event, again)
        if self.rows == 1:
            return Draw(event, found)
        rows, members = np.divmod(found, event.population)
        return Draw(event, members, rows)

    @abstractmethod
    def image_choices(self, round_number: int) -> np.random.Generator:
        """Return the generator that chooses the images of the node's patients in a round."""

    def release(self, draw: Draw, clipped_sum: Tensor, *, again: int = 0) -> Tensor:
        """Return the privatised mean gradient, ready to leave the node.

        Parameters
        ----------
        draw
            The draw of the round. The ledger must already contain its event.
        clipped_sum
            Sum of the clipped gradients of the drawn patients, flat and real, shape (dimension,).
        again
            How often this round was released before with another sum. Every release has its own noise: the same noise
            on two sums would reveal their exact difference.

        Returns
        -------
        ``(clipped_sum + noise) / R``, or a random unit vector around the sum's direction. The shape is that of the sum.

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
        if draw.event.dimension not in (0, len(clipped_sum)):
            raise ValueError(
                f"Expected a sum of {draw.event.dimension} numbers, as recorded, found {len(clipped_sum)}."
            )
        self._released.add((draw.event.round, again))
        return self._privatised(draw.event, clipped_sum, again)

    @abstractmethod
    def _drawn(self, event: Round, again: int) -> np.ndarray:
        """Return the places of the drawn patients: row * population + patient, in ascending order."""

    @abstractmethod
    def _privatised(self, event: Round, clipped_sum: Tensor, again: int) -> Tensor:
        """Add noise and divide by the expected number of patients."""


class SampledGaussian(NodeMechanism):
    """The mechanism of one node with randomness from a seed. It is reproducible and protects nobody.

    Only this mechanism releases directions: no exact sampler of their distribution is known.

    Parameters
    ----------
    event, ledger, rows
        Same as for `NodeMechanism`.
    place
        Number of the node. It separates the node's random streams from those of other nodes.
    seed
        Seed of the run.
    """

    def __init__(self, event: Round, place: int, *, seed: int, ledger: Ledger, rows: int = 1) -> None:
        super().__init__(event, ledger=ledger, rows=rows)
        self.place, self.seed = place, seed

    def image_choices(self, round_number: int) -> np.random.Generator:
        """Return a generator with the node's own stream."""
        return stream(self.seed, Purpose.IMAGES, self.place, round_number)

    def _drawn(self, event: Round, again: int) -> np.ndarray:
        repeated = (again,) if again else ()
        random = stream(self.seed, Purpose.SAMPLING, self.place, event.round, *repeated)
        return drawn_places(self.rows * event.population, lambda n: random.random(n) < event.sampling_probability)

    def _privatised(self, event: Round, clipped_sum: Tensor, again: int) -> Tensor:
        if not event.noise_multiplier > 0:
            return clipped_sum / event.expected
        generator = stream(self.seed, Purpose.NOISE, self.place, event.round, again)
        if event.dimension:
            return draw_direction(clipped_sum, event.concentration, generator)
        return noisy_mean(clipped_sum, event.noise_multiplier * event.clip, event.expected, generator)


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


def noisy_mean(clipped_sum: Tensor, deviation: float, expected: float, generator: np.random.Generator) -> Tensor:
    """Return a clipped sum with Gaussian noise, divided by the expected number of patients.

    On a CPU the computation uses NumPy, which releases Python's lock and needs one thread. Several nodes can then run
    in parallel (`zetadp.core.round`).

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
    noise = generator.standard_normal(len(clipped_sum), dtype=np.float32)
    noise *= np.float32(deviation)
    if clipped_sum.device.type != "cpu":
        return (clipped_sum + to_device(torch.from_numpy(noise), clipped_sum.device)) / expected
    noise += clipped_sum.numpy()
    noise /= np.float32(expected)
    return torch.from_numpy(noise)
