r"""Poisson sampling and noise in one object, so that the accounted event is the one that happened.

For one node and one round: every patient is drawn independently with probability ``p = R / N``; the clipped gradients
of those drawn are summed; noise of variance :math:`(\sigma B)^2` is added to the real part **and** to the imaginary
part of every complex coordinate and to every real one; the result is divided by the expected number R, a public
constant. The divisor is never the realised number, which is private, and a round that draws no patient releases noise.

If the event is of a direction, one drawn around that of the sum is released instead (`zetadp.directions`). A sum
of zero has no direction, whether no patient was drawn or the contributions cancel; a fixed public one replaces it. The
accountant assumes that any two centres are opposite, including this one.

Riess et al., Complex-valued Federated Learning with Differential Privacy and MRI Applications, Algorithm 1, with the
noise of its eq. 2: ``torch.randn`` with a complex dtype would give half the variance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from zetadp.device.transfer import to_device
from zetadp.directions.sampler import draw_direction
from zetadp.privacy.events import Round, sampling_probability
from zetadp.privacy.grid import Grid
from zetadp.privacy.ledger import Ledger
from zetadp.randomness import Purpose, stream

if TYPE_CHECKING:
    from collections.abc import Callable


DRAWN_AT_ONCE = 1 << 23
"""Number of places that are drawn together."""


@dataclass(frozen=True)
class Draw:
    """Units drawn in one round at one node, with the event for the accountant.

    Attributes
    ----------
    event
        Public constants of the round.
    members
        Indices of the patients drawn. Private: it never leaves the node.
    rows
        Where several sums are released together: the row that each of the members was drawn for.
    """

    event: Round
    members: np.ndarray
    rows: np.ndarray | None = None


class NodeMechanism(ABC):
    """The mechanism of one node: who takes part in a round, and what the node then sends.

    Where the draws come from is for its kinds to say.

    Parameters
    ----------
    event
        The public constants of a round: what the ledger will say of every round, but for its number.
    ledger
        Where events must be recorded before anything is released.
    rows
        Sums that are released together in a round, each with draws of its own. Their share that a patient can be drawn
        for is public: it follows from the count of the event.

    Raises
    ------
    ValueError
        If the event counts more rows than there are, or names another chance than the one that follows from its other
        constants.
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
        """Draw the patients of a round, each independently; the result may be empty.

        A round that was released ``again`` times before is drawn anew: the accountant takes releases as independent.
        """
        event = replace(self.event, round=round_number)
        found = self._drawn(event, again)
        if self.rows == 1:
            return Draw(event, found)
        rows, members = np.divmod(found, event.population)
        return Draw(event, members, rows)

    @abstractmethod
    def image_choices(self, round_number: int) -> np.random.Generator:
        """Return the generator by which the images of the node's patients are chosen in a round."""

    def release(self, draw: Draw, clipped_sum: Tensor, *, again: int = 0) -> Tensor:
        """Return the privatised mean gradient, ready to leave the node.

        Parameters
        ----------
        draw
            The round's draw, whose event the ledger must hold already.
        clipped_sum
            Sum of the clipped gradients of the patients drawn, flat and real, shape (dimension,).
        again
            How often this round was released before with another sum. Each release has noise of its own: two sums
            under the same noise would show their difference bare.

        Returns
        -------
        ``(clipped_sum + noise) / R``, or a unit vector drawn round the sum's direction; of the same shape.

        Raises
        ------
        RuntimeError
            If this release was not recorded first: a crash could then leave a release that no ledger knows. Or if it
            was made already: each needs an entry, and noise, of its own.
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
        """Return, for each patient of the node, whether it is drawn."""

    @abstractmethod
    def _privatised(self, event: Round, clipped_sum: Tensor, again: int) -> Tensor:
        """Add noise and divide by the expected number of patients."""


class SampledGaussian(NodeMechanism):
    """The mechanism of one node, with draws from a seed: reproducible, and no protection.

    It alone releases directions, of whose law no exact sampler is known.

    Parameters
    ----------
    event, ledger, rows
        As in `NodeMechanism`.
    place
        Number of the node, which sets its random streams apart from those of other nodes.
    seed
        Seed of the run. Seeded noise makes a simulation reproducible and protects no one.
    """

    def __init__(self, event: Round, place: int, *, seed: int, ledger: Ledger, rows: int = 1) -> None:
        super().__init__(event, ledger=ledger, rows=rows)
        self.place, self.seed = place, seed

    def image_choices(self, round_number: int) -> np.random.Generator:
        """Return a generator of the node's own stream."""
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
    """Return the places, below a size, for which a draw came out true, in ascending order.

    Parameters
    ----------
    size
        Number of places.
    draw
        Returns so many booleans, one after the other: memory holds those of `DRAWN_AT_ONCE` places.
    """
    starts = range(0, size, DRAWN_AT_ONCE)
    return np.concatenate([start + np.flatnonzero(draw(min(DRAWN_AT_ONCE, size - start))) for start in starts])


def noisy_mean(clipped_sum: Tensor, deviation: float, expected: float, generator: np.random.Generator) -> Tensor:
    """Return a clipped sum with Gaussian noise, divided by the expected number of patients.

    On a CPU it goes through NumPy, which lets go of Python's lock and takes one thread: several nodes can be served
    side by side (`zetadp.core.round`).

    Parameters
    ----------
    clipped_sum
        Flat and real, float32.
    deviation
        Standard deviation of the noise in each real component.
    expected
        The divisor, a public constant.
    generator
        Of the noise.
    """
    noise = generator.standard_normal(len(clipped_sum), dtype=np.float32)
    noise *= np.float32(deviation)
    if clipped_sum.device.type != "cpu":
        return (clipped_sum + to_device(torch.from_numpy(noise), clipped_sum.device)) / expected
    noise += clipped_sum.numpy()
    noise /= np.float32(expected)
    return torch.from_numpy(noise)
