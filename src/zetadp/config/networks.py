"""Sections of the configuration on networks and their training."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, TypeAlias

from typing_extensions import TypedDict

from zetadp.base.reading import described_by
from zetadp.base.validation import Count, OneOf, Positive, Share, Within
from zetadp.nn.settings import DESCENT, FEATURES, OWN, NetworkSettings
from zetadp.training.settings import (
    Clip,
    Estimator,
    ImagesPerPatient,
    Law,
    MixingSettings,
    Momentum,
    OptimiserName,
    OptimiserSettings,
    Performance,
    Seconds,
    TrainingSettings,
)

EVERYBODY = "all"
"""Value of ``participation``: every patient takes part in every round."""
DrawnUnit: TypeAlias = Literal["patient", "image"]


@described_by(TrainingSettings, OptimiserSettings, Performance)
@dataclass(frozen=True)
class Training:
    """How a model is trained.

    Attributes
    ----------
    optimiser
        The server's, nadam or sgd (plain steps, whose length does not adapt to the noise).
    unit
        Unit that is drawn, clipped and hidden by itself: patient, or image, for comparison with epsilons that hold per
        image, on simulated cohorts only; as many images are drawn as of patients, statements are labelled per image,
        and print the much larger epsilon of a patient in addition.
    """

    images_per_patient: ImagesPerPatient = TrainingSettings.images_per_patient
    optimiser: OptimiserName = OptimiserSettings.name
    clip: Clip = TrainingSettings.clip
    mechanism: Law = TrainingSettings.mechanism
    learning_rate: Positive = OptimiserSettings.learning_rate
    drop_after: Share = OptimiserSettings.drop_after
    drop_factor: Positive = OptimiserSettings.drop_factor
    momentum: Momentum = OptimiserSettings.momentum
    averaged: Share = OptimiserSettings.averaged
    evaluate_every: Count = Performance.evaluate_every
    checkpoint_seconds: Seconds = Performance.checkpoint_seconds
    chunk: Count | None = Performance.chunk
    unit: DrawnUnit = "patient"

    @property
    def optimiser_settings(self) -> OptimiserSettings:
        """The optimiser and its schedule."""
        return OptimiserSettings(
            learning_rate=self.learning_rate,
            drop_after=self.drop_after,
            drop_factor=self.drop_factor,
            name=self.optimiser,
            momentum=self.momentum,
            averaged=self.averaged,
        )


@described_by(MixingSettings)
class OwnMixing(TypedDict, total=False):
    """How the rows of mixed_rows are mixed.

    Attributes
    ----------
    rows
        Rows that each node releases; without it, as many as a node of median size has patients.
    degree
        Patients expected in a row; without it, the number of the theorem for the epsilon of the run.
    """

    rows: Count
    active: Annotated[float, Within(gt=0, le=1)]
    balance: Positive
    real: bool
    shares: tuple[float, ...] | None
    degree: Positive


@described_by(TrainingSettings, OptimiserSettings, Performance)
class OwnTraining(TypedDict, total=False):
    """How one network is trained, in place of what training and its arm say. A key that is not given is absent.

    Attributes
    ----------
    optimiser, unit
        Replaces the key of the same name in the section training.
    mixing
        How the rows of mixed_rows are mixed.
    participation
        sampled draws patients as the arm says; all lets every patient take part in every round, which needs fewer
        rounds and adds no randomness but the noise.
    expected_patients
        Expected number of patients in a round at each node.
    """

    images_per_patient: ImagesPerPatient
    optimiser: OptimiserName
    clip: Clip
    mechanism: Law
    learning_rate: Positive
    drop_after: Share
    drop_factor: Positive
    momentum: Momentum
    averaged: Share
    evaluate_every: Count
    chunk: Count | None
    unit: DrawnUnit
    estimator: Estimator
    mixing: OwnMixing
    feature_norm: Positive
    rounds: Count
    participation: Annotated[str, OneOf(("sampled", EVERYBODY))]
    expected_patients: Positive


@dataclass(frozen=True)
class Network(NetworkSettings):
    """A network, and how it is trained.

    Attributes
    ----------
    training
        How this network is trained, in place of what training and its arm say.
    """

    training: OwnTraining = field(default_factory=OwnTraining)

    def __post_init__(self) -> None:
        """Check the network, which comes from this package."""
        super().__post_init__()
        if self.family == OWN:
            raise ValueError("Expected a family of this package, found own, which only the library has.")

    @property
    def settings(self) -> NetworkSettings:
        """The network without its training."""
        return NetworkSettings(**{item.name: getattr(self, item.name) for item in fields(NetworkSettings)})

    @property
    def estimator(self) -> str:
        """The estimator of its training."""
        return str(self.training.get("estimator", DESCENT))

    @property
    def needs_backbone(self) -> bool:
        """Whether it starts from the public backbone or takes its features."""
        return self.start == "public" or self.domain in FEATURES

    def all_training(self, general: Training) -> Training:
        """Return its training settings: the general ones, replaced by its own where it has some."""
        keys = {field.name for field in fields(general)}
        overrides: dict[str, Any] = {key: value for key, value in self.training.items() if key in keys}
        return replace(general, **overrides)
