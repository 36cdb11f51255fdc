"""Settings of the attacks on our own code. This module does not import PyTorch, which takes seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from zetadp.accounting.threat import NOISE_SOURCES, NoiseSource
from zetadp.base.epsilon import Target
from zetadp.base.validation import Checked, Count, Filled, OneOf, Positive, Seed, Within, check_fields

LEAST_TRIALS = 50
"""Fewest trials on each side of an audit."""
NODES = 2
"""Nodes of the runs that membership inference attacks."""


@dataclass(frozen=True)
class AuditSettings(Checked):
    """Extent of the audits.

    Attributes
    ----------
    trials
        Trials with and without the canary in each audit of whole runs. By default, as many as power 0.99 needs.
    most_rounds
        Largest number of rounds in one audit of whole runs, summed over its trials, which limits the computing time.
        Fewer trials have less power, which the table states.
    """

    trials: Annotated[int, Within(ge=LEAST_TRIALS)] | None = None
    most_rounds: Count = 500_000


@dataclass(frozen=True)
class MembershipSettings:
    """Membership inference against finished models (rule audit_membership, docs/membership.md).

    Attributes
    ----------
    epsilon
        Target epsilon of the private arm, against the server.
    patients
        Number of candidates, each of whom takes part in a run with probability one half. Two nodes hold them in
        equal parts.
    sampling_probability
        Probability that a patient is drawn in a round.
    rounds
        Number of rounds of a run.
    overfitted
        The unclipped arm has this many times as many rounds.
    learning_rate
        Learning rate of the server's optimiser.
    shadows
        Number of shadow models of each arm.
    trainings
        Number of attacked models of each arm. Each is one trial.
    seed
        Seed of everything except noise from the operating system.
    noise
        Source of the noise, as in privacy.noise.
    """

    epsilon: Positive = 8
    patients: Count = 8
    sampling_probability: Annotated[float, Within(gt=0, le=1)] = 0.5
    rounds: Count = 10
    overfitted: Count = 3
    learning_rate: Positive = 0.05
    shadows: Annotated[int, Within(ge=16)] = 100
    trainings: Annotated[int, Within(ge=16)] = 400
    seed: Seed = 0
    noise: Annotated[str, OneOf(NOISE_SOURCES)] = NoiseSource.SEEDED.value

    def __post_init__(self) -> None:
        """Check every setting."""
        check_fields(self)
        if self.patients % NODES:
            raise ValueError(
                f"Expected the same number of patients at each of {NODES} nodes, found {self.patients} patients."
            )

    @property
    def population(self) -> int:
        """Number N of patients at one node."""
        return self.patients // NODES


@dataclass(frozen=True)
class InvertedMessage:
    """A kind of message to attack.

    Attributes
    ----------
    network
        Name from networks, of family complex and domain kspace.
    patients
        Patients in the message.
    images
        Images of each patient.
    epsilons
        Epsilons of the one message; inf adds no noise.
    objectives
        Objective of the search: cosine (the direction of the message, Geiping et al. 2020) or euclidean (the message,
        Zhu et al. 2019).
    """

    network: str
    patients: Count = 1
    images: Annotated[int, Within(ge=1, le=80)] = 1
    epsilons: Annotated[list[Target], Filled()] = field(default_factory=lambda: [Target(math.inf)])
    objectives: Annotated[list[Annotated[str, OneOf(("cosine", "euclidean"))]], Filled()] = field(
        default_factory=lambda: ["cosine"]
    )


@dataclass(frozen=True)
class Inversion:
    """Images rebuilt from single messages of training (rule invert_gradients), of patients simulated for this alone.

    Attributes
    ----------
    messages
        Messages of each kind.
    steps
        Steps of the search from each start. A step evaluates about twenty gradients.
    kinds
        The kinds of messages to attack. An empty list attacks none.
    """

    messages: Count = 3
    steps: Count = 10
    kinds: list[InvertedMessage] = field(default_factory=list)


@dataclass(frozen=True)
class Candidates:
    """Naming the right one of several candidates from all messages of a training (rule name_candidates).

    Attributes
    ----------
    networks
        Names of networks to attack, which are in runs and in whose training everybody takes part in every round. An
        empty list attacks none.
    patients
        Simulated patients, of whom candidates are drawn.
    candidates
        Numbers of candidates.
    epsilons
        Epsilons of the whole training.
    """

    networks: list[str] = field(default_factory=list)
    patients: Annotated[int, Within(ge=2)] = 100
    candidates: Annotated[list[Annotated[int, Within(ge=2)]], Filled()] = field(default_factory=lambda: [10, 100])
    epsilons: Annotated[list[Positive], Filled()] = field(default_factory=lambda: [1, 8, 30])

    def __post_init__(self) -> None:
        """Check that there are as many patients as candidates."""
        check_fields(self)
        if (most := max(self.candidates)) > self.patients:
            raise ValueError(f"expected at most the {self.patients} patients as candidates; found {most}.")


@dataclass(frozen=True)
class Audit:
    """Attacks on the shipped code; they simulate patients and never touch the cohort.

    Attributes
    ----------
    training
        Audits of whole trainings with the noise of this experiment (rule audit, docs/audit.md).
    membership
        Membership inference against finished models (rule audit_membership, docs/membership.md).
    inversion
        Images rebuilt from single messages of training (rule invert_gradients, docs/inversion.md), of patients
        simulated for this alone.
    candidates
        Naming the right one of several candidates from all messages of a training (rule name_candidates,
        docs/inversion.md), of patients simulated for this alone.
    """

    training: AuditSettings = field(default_factory=AuditSettings)
    membership: MembershipSettings = field(default_factory=MembershipSettings)
    inversion: Inversion = field(default_factory=Inversion)
    candidates: Candidates = field(default_factory=Candidates)
