"""The packaged backbone, and settings of pretraining another. Importing this takes no PyTorch, which takes seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from zetadp.base.validation import Count, Filled, OneOf, Positive, Seed, Within, check_fields
from zetadp.nn.settings import STUDY

SHIPPED = {
    "features": "data/backbone.safetensors",
    STUDY: "data/study.safetensors",
}
"""Paths of the packaged backbone, relative to the package, by the domain of its features."""


@dataclass(frozen=True)
class BackboneTraining:
    """Settings of the backbone's training.

    Attributes
    ----------
    steps
        Optimiser steps.
    batch
        Number of images in a step. Each patient of a step gives one slice of every sequence.
    learning_rate
        Highest rate of Adam. The rate rises over the first ``warmup`` steps and falls along a cosine to one hundredth.
    warmup
        Number of steps until the highest rate.
    smoothing
        Label smoothing.
    seed
        Seed of weights, batches and variations.
    components
        Numbers of complex components; one public head is fitted for each.
    places
        Number of shifts of each image; features are means over them (`zetadp.brain.backbone.SHIFTS`).
    """

    steps: Count = 5000
    batch: Count = 128
    learning_rate: Positive = 8e-3
    warmup: Seed = 100
    smoothing: Annotated[float, Within(ge=0, lt=1)] = 0.02
    seed: Seed = 1
    components: tuple[Count, ...] = (2, 4, 8, 16, 32, 64)
    places: Annotated[int, OneOf((1, 2, 4))] = 2

    def __post_init__(self) -> None:
        """Check every setting; lists from configuration files become tuples."""
        object.__setattr__(self, "components", tuple(self.components))
        check_fields(self)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from zero."""
        fall = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.learning_rate * min(1.0, (step + 1) / max(1, self.warmup)) * (0.01 + 0.99 * fall)


@dataclass(frozen=True)
class Simulation:
    """Public patients.

    Attributes
    ----------
    seed
        Another seed gives other public patients.
    patients
        Number of public patients.
    shapes
        Number of additional patients with brains of random shapes. Their seed is seed + 500.
    shards
        Jobs that the simulation is cut into.
    """

    seed: Seed = 1
    patients: Annotated[int, Within(ge=2)] = 3200
    shapes: Annotated[int, Within(ge=2)] = 3200
    shards: Count = 16


@dataclass(frozen=True)
class BackboneNetwork:
    """The backbone, as in networks; a complex network with a pooled head.

    Attributes
    ----------
    widths, convolutions, head, groups, transform
        As in networks.
    """

    widths: Annotated[list[Count], Filled()] = field(default_factory=lambda: [16, 32, 64])
    convolutions: Count = 2
    head: Annotated[str, OneOf(("pooled",))] = "pooled"
    groups: Count = 8
    transform: Annotated[str, OneOf(("none", "fourier"))] = "fourier"


@dataclass(frozen=True)
class Pretraining:
    """How a public backbone is trained, on simulated patients only (docs/pretraining.md).

    Attributes
    ----------
    simulation
        The public patients.
    held_out
        Public patients that the backbone is measured on.
    network
        The backbone, as in networks; a complex network with a pooled head.
    training
        Settings of its training.
    """

    simulation: Simulation = field(default_factory=Simulation)
    held_out: Count = 200
    network: BackboneNetwork = field(default_factory=BackboneNetwork)
    training: BackboneTraining = field(default_factory=BackboneTraining)

    def __post_init__(self) -> None:
        """Check that patients of each kind are left to learn from."""
        if self.held_out >= (least := min(self.simulation.patients, self.simulation.shapes)):
            raise ValueError(f"expected held_out below the {least} public patients of a kind; found {self.held_out}.")
