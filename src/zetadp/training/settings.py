"""Settings of a training run, and settings that change only its speed or how long a server waits.

This module does not import PyTorch, which takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from numbers import Real
from typing import Annotated, Any

from zetadp.accounting.kinds import NoisySum
from zetadp.accounting.laws import installed_kind
from zetadp.accounting.threat import NOISE_SOURCES, NoiseSource
from zetadp.base.installed import PackageError
from zetadp.base.validation import Checked, Count, OneOf, Positive, Share, Spelled, UserError, Within, check_fields
from zetadp.nn.settings import AT_ONCE, DESCENT, MIXED_ROWS

MOST_ROUNDS = 100_000
"""Most rounds of a run; accounting for more would take minutes, and no training needs them."""
ROUNDED = 0.01
"""Largest difference from one of the sum of shares that were rounded."""
GAUSSIAN = NoisySum.law
IMAGE = "image"
"""Unit of a guarantee for single images."""
NO_EXACT_SAMPLER = (
    "other laws of noise are sampled in floating point, and the last bits of such a sample reveal who took part"
)

ImagesPerPatient = Annotated[int, Within(ge=1, le=10**6)]
Clip = Annotated[float, Within(ge=1e-9, le=1e9)]
Estimator = Annotated[str, OneOf((DESCENT, *AT_ONCE))]
Law = Annotated[str, Spelled("[a-z][a-z0-9_]*")]
OptimiserName = Annotated[str, OneOf(("nadam", "sgd"))]
Momentum = Annotated[float, Within(ge=0, le=0.999)]
Seconds = Annotated[float, Within(ge=0, le=1e9)]


@dataclass(frozen=True)
class OptimiserSettings(Checked):
    """The server's optimiser and its schedule.

    Attributes
    ----------
    learning_rate
        Rate at the start.
    drop_after
        Fraction of the rounds after which the rate is divided by ``drop_factor``.
    drop_factor
        Divisor of the rate.
    name
        ``nadam``, or ``sgd``: plain steps with momentum, whose length does not adapt to the noise.
    momentum
        Momentum of ``sgd``. It is a running mean of the updates, so the rate means the same for every momentum.
    averaged
        Fraction of the rounds, counted from the end, whose weights are averaged into the final weights (Polyak and
        Juditsky, doi:10.1137/0330046). This is post-processing. It removes noise once the weights have settled.
    recipe
        An optimiser of the user's own, and its scheduler, as `zetadp.training.optimisers.Recipe` describes them. They
        take the place of name, rate, momentum and drop.
    """

    learning_rate: Positive = 2e-4
    drop_after: Share = 0.6
    drop_factor: Positive = 10
    name: OptimiserName = "nadam"
    momentum: Momentum = 0
    averaged: Share = 0
    recipe: Mapping[str, Any] | None = None


def open_share(active: object) -> Fraction:
    """Return a share of rows as the fraction that the number stands for: 1/4 for 0.25, and 1/3 for Python's 1 / 3.

    Raises
    ------
    UserError
        If it is not a share above 0, or not a fraction of whole numbers up to a million.
    """
    number = float(active) if isinstance(active, Real) and not isinstance(active, bool) else 0.0
    fraction = Fraction(number).limit_denominator(10**6) if 0 < number <= 1 else Fraction(0)
    if not fraction or float(fraction) != number:
        raise UserError(
            f"Expected active above 0 and at most 1, a fraction of whole numbers up to a million, such as 0.25 or "
            f"1 / 3, found {active!r}.",
            "active",
        )
    return fraction


@dataclass(frozen=True)
class MixingSettings:
    """How a node mixes the rows that it releases (`zetadp.own.rows`).

    Attributes
    ----------
    rows
        Number T of rows that each node releases.
    active
        Share of the rows that are open to each class. 1 is Poisson sampling over all patients. Less is hierarchical
        sampling: the classes that a row is open to are drawn without looking at data, and published as its label.
    balance
        Noise on the labels divided by the noise on the features, lambda. It has no effect where labels cost nothing.
    real
        Whether features have no imaginary part. It is then left out.
    learn
        Whether a head is trained on the rows here. Otherwise the rows are only released for others.
    shares
        Declared share of each class among the people, public constants that add up to 1 (to within 0.01, for rounded
        ones). They make the labels of hierarchical sampling. None assumes classes of equal size. It has no use where
        all rows are open to all classes.
    """

    rows: Count
    active: Annotated[float, Within(gt=0, le=1)] = 1.0
    balance: Positive = 1.0
    real: bool = False
    learn: bool = True
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check every setting."""
        check_fields(self)
        if self.shares is not None:
            object.__setattr__(self, "shares", tuple(self.shares))  # a plan's file has a list
            self._check_shares(self.shares)
        if (self.rows * self.share).denominator != 1:
            raise UserError(
                f"Expected rows to be a multiple of {self.share.denominator}, because the share {self.share} of them "
                f"is open to each class, found {self.rows}.",
                "rows",
            )

    def _check_shares(self, shares: tuple[float, ...]) -> None:
        if self.active == 1:
            raise UserError(
                "Expected shares only with active below 1, found shares with active 1, where the noisy label of each "
                "row counts its people. Leave shares out, or set active.",
                "shares",
            )
        numbers = all(isinstance(share, Real) and 0 < share <= 1 for share in shares)
        if not (numbers and math.isclose(math.fsum(shares), 1, abs_tol=ROUNDED)):
            raise UserError(
                f"Expected a share above 0 for each class, which add up to 1, found {list(shares)}. Declare the part "
                "of the people that each class has, in the order of the labels.",
                "shares",
            )

    def shares_of(self, classes: int) -> tuple[float, ...]:
        """Return the declared share of each class, scaled to add up to one; equal ones if none are declared.

        Raises
        ------
        UserError
            If another number of shares was declared.
        """
        if self.shares is None:
            return (1 / classes,) * classes
        if len(self.shares) != classes:
            raise UserError(f"Expected a share for each of {classes} classes, found {len(self.shares)}.", "shares")
        return tuple(share / math.fsum(self.shares) for share in self.shares)

    def described(self) -> dict[str, Any]:
        """Return the settings for plans, ledgers and seeds; shares are left out where none are declared."""
        content = asdict(self)
        if self.shares is None:
            del content["shares"]
        return content

    @property
    def share(self) -> Fraction:
        """The share of rows that are open to a class, exactly."""
        return open_share(self.active)

    @property
    def open_rows(self) -> int:
        """Number of rows that are open to a class: a patient with one class can be in as many."""
        return int(self.rows * self.share)


@dataclass(frozen=True)
class TrainingSettings:
    """How a model is trained.

    Attributes
    ----------
    rounds
        Declared number of rounds, with one optimiser step each. The guarantee is computed for this number before
        training.
    images_per_patient
        Images that make one patient's gradient in a round, equally many of every class. A patient with fewer
        images contributes all of them.
    optimiser
        The server's optimiser.
    clip
        The clipping norm B.
    noise
        ``seeded``: sampling and noise are reproducible and protect nobody. ``os``: exact integer noise and sampling
        from the operating system's generator. Only the starting weights then come from the seed.
    estimator
        ``descent``; or, for a head, class_means or mixed_rows, which have one round and no optimiser.
    feature_norm
        Norm to which the other estimators clip each image's features, in units of their root mean square on public
        images. For mixed rows in a task whose units have one class each, it is the norm itself.
    mixing
        How rows are mixed, for the estimator ``mixed_rows``.
    mechanism
        Law of noise of what a node releases in a round of descent. ``gaussian``: the mean of clipped gradients, with
        Gaussian noise. Others come with installed packages (docs/mechanisms.md) and are for seeded noise only:
        ``von_mises_fisher`` of the papers sends a random unit vector around the direction of that mean. Every law hides
        as much as Gaussian noise of the same multiplier, or more. Without noise, the mean itself is sent.
    """

    rounds: Annotated[int, Within(ge=1, le=MOST_ROUNDS)]
    images_per_patient: ImagesPerPatient = 4
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    clip: Clip = 1.0
    noise: Annotated[NoiseSource, OneOf(NOISE_SOURCES)] = NoiseSource.SEEDED
    estimator: Estimator = DESCENT
    feature_norm: Positive = 0.8
    mixing: MixingSettings | None = None
    mechanism: Law = GAUSSIAN

    def described(self) -> dict[str, Any]:
        """Return the settings for plans and ledgers; mixing and mechanism are left out where they are not used."""
        content = asdict(self)
        if self.mechanism == GAUSSIAN:
            del content["mechanism"]
        if self.mixing is None:
            del content["mixing"]
        else:
            content["mixing"] = self.mixing.described()
        if self.optimiser.recipe is None:
            del content["optimiser"]["recipe"]
        return content

    @property
    def seeded(self) -> bool:
        """Whether sampling and noise follow from a seed, so that the run can be repeated and protects nobody."""
        return self.noise == NoiseSource.SEEDED

    def for_calibration(self) -> TrainingSettings:
        """Return the settings that determine the noise, with defaults for everything else."""
        if self.mixing is None:
            return TrainingSettings(self.rounds)
        return TrainingSettings(1, estimator=MIXED_ROWS, mixing=MixingSettings(self.mixing.rows, self.mixing.active))

    def __post_init__(self) -> None:
        """Check every setting."""
        check_fields(self)
        object.__setattr__(self, "noise", NoiseSource(self.noise))
        if self.mechanism != GAUSSIAN:
            self._check_mechanism()
        if (self.estimator == MIXED_ROWS) != (self.mixing is not None):
            raise UserError(f"Expected mixing with estimator {MIXED_ROWS} and with no other, found {self.estimator}.")
        if self.estimator != DESCENT and self.rounds != 1:
            raise UserError(f"Expected one round for estimator {self.estimator}, found {self.rounds}. Set rounds to 1.")

    def _check_mechanism(self) -> None:
        """Refuse a law of noise that is not installed, or that does not go with the other settings."""
        try:
            installed_kind(self.mechanism)
        except PackageError as error:
            error.key = "mechanism"
            raise
        expected = f"Expected mechanism {GAUSSIAN} with"
        if not self.seeded:
            raise UserError(f"{expected} noise os, found {self.mechanism}: {NO_EXACT_SAMPLER}.", "mechanism")
        if self.estimator != DESCENT:
            raise UserError(f"{expected} estimator {self.estimator}, found {self.mechanism}.", "mechanism")


@dataclass(frozen=True)
class Performance(Checked):
    """Settings that change the speed of a run, its reports and its checkpoints, but not its result.

    Attributes
    ----------
    evaluate_every
        Rounds between two evaluations on the validation patients.
    checkpoint_seconds
        Seconds between two checkpoints. With noise from the operating system, the messages of every round since the
        last checkpoint are stored as well, because they cannot be computed again.
    chunk
        Largest number of images in one pass; by default, the number that takes half a GiB, or 4 GiB on a GPU
        (`zetadp.training.round`). It changes results by rounding only. With noise from the operating system a pass is
        one patient, unless all patients are computed, drawn or not (heads), or all are drawn in every round.
    """

    evaluate_every: Count = 20
    checkpoint_seconds: Seconds = 30
    chunk: Count | None = None


@dataclass(frozen=True)
class Patience(Checked):
    """Rules of the server for nodes that do not answer.

    Attributes
    ----------
    least_nodes
        Fewest nodes that make a round, which continues with those that answered after ``round_seconds``. By
        default, all nodes of the plan. Masked sums may declare that they need more.
    round_seconds
        Seconds after which a round continues without the missing nodes, where it may.
    give_up_seconds
        Seconds after which the run ends with an error. It can be resumed.
    tries
        How often a node may fail in one round before it counts as missing from it.
    poll_seconds
        Seconds between two checks for new answers.
    """

    least_nodes: Count | None = None
    round_seconds: Positive = 600
    give_up_seconds: Positive = 3600
    tries: Count = 3
    poll_seconds: Positive = 0.25

    def least_of(self, nodes: int) -> int:
        """Return the fewest of a number of nodes that make a round; raise `UserError` if there are fewer nodes."""
        least = nodes if self.least_nodes is None else self.least_nodes
        if least > nodes:
            raise UserError(
                f"Expected least_nodes of at most {nodes}, the number of nodes, found {least}.", "least_nodes"
            )
        return least
