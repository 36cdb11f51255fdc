"""Kinds of release: a law of noise together with all that an accountant, a statement or a node needs to know of it.

A kind is a frozen value. Two releases of equal kinds cost a person the same, whatever was summed, because a kind holds
every number on which privacy depends. The base class `Kind` is what the rest of the project knows. The library has two
laws, `NoisySum` and `zetadp.accounting.masked.MaskedSum`; installed packages bring others (`zetadp.accounting.laws`).

Neighbours differ in one person whose contribution is replaced by zero, in both directions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from zetadp.base.epsilon import LARGEST_EXPONENT
from zetadp.base.validation import UserError

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from torch import Tensor

SMALLEST_PROBABILITY = 1e-12
"""Smallest sampling probability. Below it, one minus the probability loses its digits."""
NOISE = (1e-3, 1e9)
"""Range of noise multipliers. One release with less has an epsilon above 100,000."""
MOST_UNITS = 1_000_000
"""Largest number of units of one person."""
FEW_UNITS = 8
"""Up to this many units of a person, every number of units that a round can draw is considered."""
_LEFT_OUT = 1e-15
"""Probability that a round draws more units of a person than are considered. Delta and epsilon are charged for it."""


class Kind(ABC):
    """A law of noise with the numbers on which its privacy depends.

    Subclasses are frozen dataclasses, and their constructors refuse values from which no epsilon can be computed.

    Attributes
    ----------
    law
        Name of the law in ledgers, plans and configurations.
    summary
        What a node sends, in whole sentences for statements, model cards and risk pages. Required of installed laws.
    proof
        Where it is proved that `losses` bounds what a release reveals. Required of installed laws; those of the library
        are proved in their own modules.
    gaussian
        Whether the noise is Gaussian, as only the library draws it. Only then is there an exact sampler, is the law of
        an average over nodes known, and does dp-accounting compose the releases as they are.
    sampling_probability
        Probability that a unit is drawn, above zero.
    units
        Units of one person, each drawn independently.
    """

    law: ClassVar[str]
    summary: ClassVar[str] = ""
    proof: ClassVar[str] = ""
    gaussian: ClassVar[bool] = False
    sampling_probability: float
    units: int = 1

    @classmethod
    def hiding(cls, noisy_sum: NoisySum, dimension: int) -> Kind:
        """Return the kind that hides as much as a noisy sum, or more; by default the noisy sum itself.

        Parameters
        ----------
        noisy_sum
            The noisy sum, with noise.
        dimension
            Real numbers in a release.
        """
        return noisy_sum

    @property
    @abstractmethod
    def noise_multiplier(self) -> float:
        """Noise multiplier of Gaussian noise that hides no more, in units of the clipping norm. Zero hides nothing."""

    @property
    def private(self) -> bool:
        """Whether a release carries noise."""
        return self.noise_multiplier > 0

    @property
    def length(self) -> int | None:
        """Real numbers in a release, or None if privacy does not depend on it."""
        return None

    @property
    @abstractmethod
    def order(self) -> tuple[float, ...]:
        """Numbers by which kinds are sorted. Composition is commutative only up to rounding, so its order is fixed."""

    @property
    @abstractmethod
    def loss_variance(self) -> float:
        """Rough variance of the privacy loss, from which an accountant chooses its first grid."""

    @property
    @abstractmethod
    def largest_loss(self) -> float:
        """Rough largest privacy loss of one release that a grid has to cover."""

    @property
    def left_out(self) -> float:
        """Probability of the draws that `losses` does not consider and the accountant has to charge for."""
        return 0.0

    def squared_mu(self, count: int) -> float | None:
        """Return the exact mu squared of a number of releases, or None where the law has none."""
        return None

    @abstractmethod
    def losses(self, interval: float) -> PrivacyLossDistribution:
        """Return the distributions of the privacy loss of one release, for a person removed and for a person added.

        Parameters
        ----------
        interval
            Distance of the grid's points, in nats. Losses are rounded up, so every interval gives an upper bound.
        """

    @abstractmethod
    def dp_event(self) -> DpEvent:
        """Return one release as an event that dp-accounting can compose, and that costs no less."""

    @abstractmethod
    def of_person(self, units: int) -> Kind:
        """Return the kind for a person who has `units` times as many units, each drawn independently."""

    def always_drawn(self) -> Self:
        """Return the same kind for a unit that takes part in every round."""
        return replace(self, sampling_probability=1.0)  # type: ignore[type-var]

    @abstractmethod
    def with_noise_times(self, factor: float) -> Self:
        """Return the same kind with its noise scaled by a factor."""

    @abstractmethod
    def sample(self, clipped_sum: Tensor, clip: float, expected: float, generator: np.random.Generator) -> Tensor:
        """Return a release with noise from a seeded generator, which protects nobody.

        Parameters
        ----------
        clipped_sum
            Flat and real, float32, shape (dimension,).
        clip
            Bound on the norm of one contribution.
        expected
            The divisor of sums, a public constant.
        generator
            Generator of the noise.
        """

    def values(self) -> dict[str, float]:
        """Return the numbers that define the kind, for a statement."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """Return the kind as a JSON object."""
        return {"law": self.law, **self.values()}


class GaussianSum(Kind):
    """A sum with Gaussian noise in every real coordinate, whose privacy its noise multiplier decides."""

    gaussian: ClassVar[bool] = True

    @property
    def order(self) -> tuple[float, ...]:
        """Sampling probability, noise and units."""
        return self.sampling_probability, self.noise_multiplier, self.units

    @property
    def loss_variance(self) -> float:
        """Rough variance of the privacy loss, for many or for few rounds, whichever is smaller."""
        return sum_variance(self.sampling_probability * self.units, self.noise_multiplier, self.units)

    @property
    def largest_loss(self) -> float:
        """Rough largest privacy loss: that of all units together, ten standard deviations from its mean."""
        mu = self.units / self.noise_multiplier
        return mu * mu / 2 + 10 * mu

    @property
    def left_out(self) -> float:
        """Probability that a round draws more units of the person than `losses` considers."""
        return _count_distribution(self.sampling_probability, self.units)[2]

    def squared_mu(self, count: int) -> float | None:
        """Return the exact mu squared where every unit takes part in every sum, else None."""
        if self.sampling_probability < 1:
            return None
        return math.inf if not self.noise_multiplier else count * self.units**2 / self.noise_multiplier**2

    def losses(self, interval: float) -> PrivacyLossDistribution:
        """Return the distributions of the privacy loss, as `Kind.losses` says.

        A round adds a Binomial number of clipped contributions of the person. In the worst case all of them have the
        same direction (Choquette-Choo et al. 2024, arXiv:2310.15526, Corollary 4.7).
        """
        from dp_accounting.pld import privacy_loss_distribution

        if self.units == 1 or self.sampling_probability == 1:
            # The default neighbours are "add or remove one", in both directions. "Zero-out" has the same distributions.
            # If all units are drawn in every round, they are one contribution of `units` times the norm.
            return privacy_loss_distribution.from_gaussian_mechanism(
                self.noise_multiplier / self.units,
                value_discretization_interval=interval,
                sampling_prob=self.sampling_probability,
            )
        counts, chances, _ = _count_distribution(self.sampling_probability, self.units)
        return privacy_loss_distribution.from_mixture_gaussian_mechanism(
            self.noise_multiplier, counts, chances, value_discretization_interval=interval
        )

    def dp_event(self) -> DpEvent:
        """Return the event in which all units of the person are drawn whenever any unit is. This can only cost more."""
        chance = self.sampling_probability
        probability = chance if self.units == 1 else any_drawn(chance, self.units)
        return gaussian_event(probability, self.noise_multiplier / self.units)

    def of_person(self, units: int) -> Self:
        """Return the sums for a person with `units` times as many units."""
        return replace(self, units=self.units * units)  # type: ignore[type-var]

    def values(self) -> dict[str, float]:
        """Return the numbers that define the kind. One unit is not mentioned."""
        numbers = super().values()
        return numbers if self.units > 1 else {key: value for key, value in numbers.items() if key != "units"}


@dataclass(frozen=True)
class NoisySum(GaussianSum):
    """A sum of clipped contributions with Gaussian noise in every real coordinate.

    Attributes
    ----------
    sampling_probability
        Probability that a unit is drawn, in [`SMALLEST_PROBABILITY`, 1]. One is full participation.
    noise_multiplier
        Standard deviation of the noise in each part, in units of the clipping norm: in the range `NOISE`, or zero for
        no noise and no guarantee.
    units
        Units of one person, each drawn independently.
    """

    law: ClassVar[str] = "gaussian"

    sampling_probability: float
    noise_multiplier: float = 0.0
    units: int = 1

    def __post_init__(self) -> None:
        """Refuse values from which no epsilon can be computed."""
        check_probability(self.sampling_probability)
        check_noise(self.noise_multiplier)
        if not 1 <= self.units <= MOST_UNITS:
            raise UserError(f"Expected from 1 to {MOST_UNITS:,} units of one person, found {self.units}.")

    def with_noise_times(self, factor: float) -> NoisySum:
        """Return the sum with other noise."""
        return replace(self, noise_multiplier=self.noise_multiplier * factor)

    def sample(self, clipped_sum: Tensor, clip: float, expected: float, generator: np.random.Generator) -> Tensor:
        """Return the sum with noise, divided by the expected number of units."""
        from zetadp.accounting.seeded_noise import noisy_mean

        return noisy_mean(clipped_sum, self.noise_multiplier * clip, expected, generator)


def check_probability(probability: float) -> None:
    """Refuse a sampling probability outside [`SMALLEST_PROBABILITY`, 1]."""
    if not SMALLEST_PROBABILITY <= probability <= 1:
        raise UserError(
            f"Expected a sampling probability from {SMALLEST_PROBABILITY:g} to 1, found {probability}. Smaller ones "
            "cannot be told from zero when one minus the probability is computed."
        )


def check_noise(noise_multiplier: float) -> None:
    """Refuse noise that is neither zero nor in the range `NOISE`."""
    least, most = NOISE
    if noise_multiplier != 0 and not least <= noise_multiplier <= most:
        raise UserError(
            f"Expected a noise multiplier from {least:g} to {most:g}, or 0 for no noise, found {noise_multiplier}."
        )


def gaussian_event(probability: float, noise_multiplier: float) -> DpEvent:
    """Return Gaussian noise on a sum of units that are drawn with a probability, as an event of dp-accounting."""
    from dp_accounting import dp_event

    noise = dp_event.GaussianDpEvent(noise_multiplier)
    return noise if probability == 1 else dp_event.PoissonSampledDpEvent(probability, noise)


def sum_variance(mean: float, noise_multiplier: float, units: int = 1) -> float:
    """Return the rough variance of the privacy loss of one noisy sum.

    Parameters
    ----------
    mean
        Mean number of the person's units in a sum.
    noise_multiplier
        The noise, above zero.
    units
        Units of the person.
    """
    many_rounds = mean**2 * math.expm1(min(noise_multiplier**-2, LARGEST_EXPONENT))
    few_rounds = mean * units / noise_multiplier**2
    return min(many_rounds, few_rounds)


def sampled_loss(loss: np.ndarray, probability: float) -> np.ndarray:
    r"""Return :math:`\log(1 - q + q e^x)`: the privacy loss of a unit that is drawn with probability q.

    Parameters
    ----------
    loss
        Losses x of a unit that is always drawn, of any shape.
    probability
        Chance q that the unit is drawn, above zero.
    """
    if probability == 1:
        return loss
    return np.asarray(np.logaddexp(math.log1p(-probability), math.log(probability) + loss))


def any_drawn(probability: float, units: int) -> float:
    """Return the probability that at least one of several units is drawn."""
    return -math.expm1(units * math.log1p(-probability)) if probability < 1 else 1.0


@lru_cache(maxsize=256)
def _count_distribution(probability: float, units: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the numbers of a person's units that a round can draw, their probabilities, and the one left out."""
    from scipy.stats import binom

    most, left_out = units, 0.0
    if units > FEW_UNITS:
        tail = binom.sf(np.arange(units + 1), units, probability)
        most = int(np.argmax(tail <= _LEFT_OUT))
        left_out = float(tail[most])
    counts = np.arange(most + 1)
    chances = binom.pmf(counts, units, probability)
    return counts, chances / chances.sum() if left_out else chances, left_out
