"""How a model is trained, and what changes only how fast; checked without PyTorch, which takes seconds to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from typing import Any

from zetadp.nn.settings import AT_ONCE, DESCENT, MIXED_ROWS
from zetadp.validation import UserError, in_range, one_of, positive

GAUSSIAN = "gaussian"
DIRECTION = "von_mises_fisher"
NO_EXACT_DIRECTION = (
    "no exact sampler of directions is known, and the last bits of floating-point ones show who took part"
)


@dataclass(frozen=True)
class OptimiserSettings:
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
        Momentum of ``sgd``, as a running mean of the updates, so that the rate means the same for every momentum.
    averaged
        Fraction of the rounds, the last ones, whose weights are averaged into the final ones (Polyak and Juditsky,
        doi:10.1137/0330046): post-processing that removes noise where the weights have settled.
    """

    learning_rate: float = 2e-4
    drop_after: float = 0.6
    drop_factor: float = 10.0
    name: str = "nadam"
    momentum: float = 0.0
    averaged: float = 0.0

    def __post_init__(self) -> None:
        """Check every setting."""
        positive(learning_rate=self.learning_rate, drop_factor=self.drop_factor)
        in_range(0, 1, drop_after=self.drop_after, averaged=self.averaged)
        in_range(0, 0.999, momentum=self.momentum)
        one_of(("nadam", "sgd"), name=self.name)


@dataclass(frozen=True)
class MixingSettings:
    """How rows are mixed that a node releases (`zetadp.feature_release`).

    Attributes
    ----------
    rows
        Rows that each node releases, T.
    active
        Share of the rows that are open to each class. 1 is Poisson sampling over all patients; less is hierarchical
        sampling: which classes a row is open to is drawn without looking at data, published, and its label.
    balance
        Noise on the labels in units of that on the features, lambda; of no effect where labels cost nothing.
    real
        Whether features have no imaginary part, which is then left out.
    learn
        Whether a head learns from the rows here; else they are released for others alone.
    """

    rows: int
    active: float = 1.0
    balance: float = 1.0
    real: bool = False
    learn: bool = True

    def __post_init__(self) -> None:
        """Check every setting."""
        positive(rows=self.rows, active=self.active, balance=self.balance)
        in_range(0, 1, active=self.active)
        if (self.rows * self.share).denominator != 1:
            raise UserError(
                f"Expected a number of rows of which the share {self.share} is whole, found {self.rows}. Choose a "
                f"multiple of {self.share.denominator}."
            )

    @property
    def share(self) -> Fraction:
        """The share of rows that are open to a class, exactly as written."""
        return Fraction(repr(self.active))

    @property
    def open_rows(self) -> int:
        """Rows that are open to a class: as many as one patient can be in."""
        return int(self.rows * self.share)


@dataclass(frozen=True)
class TrainingSettings:
    """How a model is trained.

    Attributes
    ----------
    rounds
        Declared number of rounds, one optimiser step each. The guarantee is computed for it before training.
    images_per_patient
        Images that make one patient's gradient in a round, equally many of every class.
    optimiser
        The server's optimiser.
    clip
        The clipping norm B.
    noise
        ``seeded``: sampling and noise are reproducible and protect nobody. ``os``: exact integer noise and sampling
        from the operating system's generator. Only the starting weights then come from the seed.
    estimator
        ``descent``; or, for a head, one of `zetadp.nn.settings.AT_ONCE`, which has one round and no optimiser.
    feature_norm
        Of the other estimators, the norm that each image's features are clipped to, in units of their root mean square
        on public images; of mixed rows in a task whose units have one class each, the norm itself.
    mixing
        How rows are mixed, for the estimator ``mixed_rows``.
    release
        Release of a node in a round of descent: the mean of clipped gradients with ``gaussian`` noise, or its direction
        alone, a unit vector from the ``von_mises_fisher`` law round it (`zetadp.directions`), as concentrated as the
        same noise multiplier allows. Seeded only. Without noise, the mean is sent either way.
    tf32
        Let a GPU round the factors of products in convolutions to 10 bits, which is faster (`zetadp.device.precision`).
    """

    rounds: int
    images_per_patient: int = 4
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    clip: float = 1.0
    noise: str = "seeded"
    estimator: str = DESCENT
    feature_norm: float = 0.8
    tf32: bool = False
    mixing: MixingSettings | None = None
    release: str = GAUSSIAN

    @classmethod
    def from_section(cls, section: Mapping[str, Any], *, rounds: int, noise: str) -> TrainingSettings:
        """Return the settings that a section of a configuration gives, in which the optimiser's stand among the others.

        Parameters
        ----------
        section
            Keys of `OptimiserSettings` and of this class; the optimiser's name is called ``optimiser``. Others, such as
            those of `Performance`, are left aside.
        rounds, noise
            Values from other sections.
        """
        optimiser = {key: section[key] for key in _names(OptimiserSettings) - {"name"} if key in section}
        if "optimiser" in section:
            optimiser["name"] = section["optimiser"]
        own = {key: section[key] for key in _names(cls) - {"optimiser", "rounds", "noise", "mixing"} if key in section}
        if "mixing" in section:
            own["mixing"] = MixingSettings(**section["mixing"])
        return cls(rounds=rounds, noise=noise, optimiser=OptimiserSettings(**optimiser), **own)

    def described(self) -> dict[str, Any]:
        """Return the settings as plans and ledgers name them, with mixing and release only where they are used."""
        found = asdict(self)
        if self.release == GAUSSIAN:
            del found["release"]
        if self.mixing is None:
            del found["mixing"]
        return found

    def bare(self) -> TrainingSettings:
        """Return what the noise follows from, and defaults for everything else."""
        if self.mixing is None:
            return TrainingSettings(self.rounds)
        return TrainingSettings(1, estimator=MIXED_ROWS, mixing=MixingSettings(self.mixing.rows, self.mixing.active))

    def __post_init__(self) -> None:
        """Check every setting."""
        positive(rounds=self.rounds, images_per_patient=self.images_per_patient, clip=self.clip)
        one_of(("seeded", "os"), noise=self.noise)
        positive(feature_norm=self.feature_norm)
        one_of((DESCENT, *AT_ONCE), estimator=self.estimator)
        one_of((GAUSSIAN, DIRECTION), release=self.release)
        if self.release == DIRECTION and self.noise == "os":
            raise UserError(f"Expected release {GAUSSIAN} with noise os, found {DIRECTION}: {NO_EXACT_DIRECTION}.")
        if self.release == DIRECTION and self.estimator != DESCENT:
            raise UserError(f"Expected release {GAUSSIAN} with estimator {self.estimator}, found {DIRECTION}.")
        if (self.estimator == MIXED_ROWS) != (self.mixing is not None):
            raise UserError(f"Expected mixing with estimator {MIXED_ROWS} and with no other, found {self.estimator}.")
        if self.estimator != DESCENT and self.rounds != 1:
            raise UserError(f"Expected one round for estimator {self.estimator}, found {self.rounds}. Set rounds to 1.")


@dataclass(frozen=True)
class Performance:
    """Settings that change the speed of a run, its reports and its checkpoints, but not its result.

    Attributes
    ----------
    evaluate_every
        Rounds between two evaluations on the validation patients.
    checkpoint_seconds
        Seconds between two checkpoints. With noise from the operating system the messages of every round since the
        last one are kept as well, since they cannot be computed again.
    chunk
        Images in one pass at most; by default as many as hold half a GiB (`zetadp.core.round`). It moves results
        by rounding alone. With noise from the operating system a pass is one patient, unless all patients take
        part in it, drawn or not (heads), or everybody is drawn in every round.
    """

    evaluate_every: int = 20
    checkpoint_seconds: float = 30.0
    chunk: int | None = None

    @classmethod
    def from_section(cls, section: Mapping[str, Any]) -> Performance:
        """Return the settings that a section of a configuration gives, among others."""
        return cls(**{key: section[key] for key in _names(cls) if key in section})

    def __post_init__(self) -> None:
        """Check every setting."""
        positive(evaluate_every=self.evaluate_every, chunk=1 if self.chunk is None else self.chunk)
        in_range(0, 1e9, checkpoint_seconds=self.checkpoint_seconds)


def _names(kind: type) -> set[str]:
    return {entry.name for entry in fields(kind)}
