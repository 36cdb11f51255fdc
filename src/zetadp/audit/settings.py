"""Settings of audits and of membership inference. This module does not import PyTorch, which takes seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from zetadp.base.constraints import Count, OneOf, Positive, Seed, Within, check_fields

LEAST_TRIALS = 50
"""Fewest trials on each side of an audit."""


@dataclass(frozen=True)
class AuditSettings:
    """Extent of the audits.

    Attributes
    ----------
    trials
        Trials with and without the canary in each audit of whole runs. None: as many as power 0.99 needs.
    most_rounds
        Largest number of rounds in one audit of whole runs, summed over its trials, which limits the computing time.
        Fewer trials have less power, which the table states.
    """

    trials: Annotated[int, Within(ge=LEAST_TRIALS)] | None = None
    most_rounds: Count = 500_000

    def __post_init__(self) -> None:
        """Check every setting."""
        check_fields(self)


@dataclass(frozen=True)
class MembershipSettings:
    """Training settings and number of models for the attack.

    Attributes
    ----------
    epsilon
        Target epsilon of the private arm, against the server.
    patients, nodes
        Number of candidates, each of whom takes part in a run with probability one half, and number of nodes that hold
        them in equal parts.
    slices, size
        Number of images of each sequence, and their side, for the code that makes the patients.
    sampling_probability
        Probability that a patient is drawn in a round.
    rounds
        Number of rounds of a run.
    overfitted
        The unclipped arm has this many times as many rounds.
    learning_rate, clip
        Learning rate of the server's optimiser, and clipping norm.
    shadows
        Number of shadow models of each arm.
    trainings
        Number of attacked models of each arm. Each is one trial.
    seed
        Seed of everything except noise from the operating system.
    noise
        As in `TrainingSettings`.
    """

    epsilon: Positive = 8
    patients: Count = 8
    nodes: Count = 2
    slices: Annotated[int, Within(ge=1, le=24)] = 4
    size: Annotated[int, Within(ge=8)] = 16
    sampling_probability: Annotated[float, Within(gt=0, le=1)] = 0.5
    rounds: Count = 10
    overfitted: Count = 3
    learning_rate: Positive = 0.05
    clip: Positive = 1.0
    shadows: Annotated[int, Within(ge=16)] = 100
    trainings: Annotated[int, Within(ge=16)] = 400
    seed: Seed = 0
    noise: Annotated[str, OneOf(("seeded", "os"))] = "seeded"

    def __post_init__(self) -> None:
        """Check every setting."""
        check_fields(self)
        if self.patients < self.nodes or self.patients % self.nodes:
            raise ValueError(
                f"Expected the same number of patients at each of {self.nodes} nodes, found {self.patients} patients."
            )

    @property
    def population(self) -> int:
        """Number N of patients at one node."""
        return self.patients // self.nodes
