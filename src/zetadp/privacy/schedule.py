r"""Noise that changes over the rounds of a training.

The rounds are cut into at most `STEPS` steps of equal length. Over the steps the noise multiplier goes from
:math:`\sigma` in the first to :math:`\sigma d` in the last, by the same factor from each to the next; with no more
rounds than steps, round t of T has :math:`\sigma d^{t/(T-1)}`. Steps instead of a smooth curve keep the kinds of rounds
few: what composes is one Gaussian mechanism a step, and a privacy-loss distribution is made for each kind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zetadp.privacy.events import Mechanism
from zetadp.validation import in_range, positive

STEPS = 8
"""Most different noise multipliers in one training."""

DECAYS = (0.01, 100.0)
"""Range of the decay."""


@dataclass(frozen=True, slots=True)
class NoiseSchedule:
    """How noise changes over a declared number of rounds; a public constant of a run.

    Attributes
    ----------
    rounds
        Declared number of rounds, T.
    decay
        Noise of the last step relative to that of the first; one keeps it constant.
    """

    rounds: int
    decay: float = 1.0

    def __post_init__(self) -> None:
        """Check both."""
        positive(rounds=self.rounds)
        in_range(*DECAYS, decay=self.decay)

    @property
    def factors(self) -> tuple[float, ...]:
        """Noise of each step relative to the first."""
        if self.decay == 1:
            return (1.0,)
        steps = min(STEPS, self.rounds)
        return tuple(self.decay ** (step / max(1, steps - 1)) for step in range(steps))

    def noise(self, first: float, number: int) -> float:
        """Return the noise multiplier of a round, where rounds of the first step have ``first``.

        Raises
        ------
        ValueError
            If the round, counted from zero, is not among the declared ones.
        """
        if not 0 <= number < self.rounds:
            msg = f"Expected a round from 0 to {self.rounds - 1}, as declared, found {number}."
            raise ValueError(msg)
        factors = self.factors
        return first * factors[number * len(factors) // self.rounds]

    def mechanisms(self, probability: float, first: float) -> Counter[Mechanism]:
        """Return what all declared rounds are to an accountant: how many of each (sampling probability, noise)."""
        return Counter((probability, self.noise(first, number)) for number in range(self.rounds))

    def least(self, first: float) -> float:
        """Return the least noise multiplier of any round."""
        return first * min(self.factors)

    def most(self, first: float) -> float:
        """Return the largest noise multiplier of any round."""
        return first * max(self.factors)

    @property
    def equivalent(self) -> float:
        r"""Noise of the first step over the constant noise of the same cost at full participation.

        Gaussian mechanisms compose by :math:`\sum 1/\sigma_t^2`; this is the root of the mean of
        :math:`(\sigma / \sigma_t)^2`.
        """
        counts = self.mechanisms(1.0, 1.0)
        return math.sqrt(math.fsum(count / noise**2 for (_, noise), count in counts.items()) / self.rounds)


def least_noise(header: Mapping[str, Any]) -> dict[str, float]:
    """Return the least noise of any declared round of each node of a run, by its ledger's header.

    Empty where the noise is constant: then every round shows it. Where it is not, rounds that are still to come can
    have less noise than all that were made.
    """
    training = header.get("training")
    # Programs other than the pipeline write headers of their own, in which this key may be anything.
    if not isinstance(training, Mapping) or training.get("noise_decay", 1.0) == 1:
        return {}
    schedule = NoiseSchedule(training["rounds"], training["noise_decay"])
    return {node["name"]: schedule.least(node["noise_multiplier"]) for node in header["nodes"]}
