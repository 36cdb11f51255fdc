"""Settings of masks, simulated examinations and public networks. Their checks need neither the atlas nor torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import numpy as np

from zetadp.base.validation import Checked, Count, Filled, OneOf, UserError, Within, check_fields, in_range
from zetadp.nn.settings import NetworkSettings
from zetadp.phantom.settings import CHANNELS, FIXED

FAMILIES = ("unet", "real_unet")
"""Families of public networks."""
SEED = 1000
"""Seed of public patients, and of the masks and starting weights of public networks."""
UpToTen = Annotated[float, Within(ge=0, le=10)]
Settings = TypeVar("Settings")


def settings_of(kind: type[Settings], section: Mapping[str, Any], name: str) -> Settings:
    """Return the settings of a part of a task, from the section ``name`` of the task's settings.

    Raises
    ------
    UserError
        If a key of the section is unknown or a value is out of range.
    """
    try:
        return kind(**section)
    except (TypeError, ValueError) as error:
        raise UserError(f"task.settings.{name}: {str(error).rstrip('.')}.") from error


@dataclass(frozen=True)
class MaskSettings:
    """Masks of the k-space lines that an accelerated scan measures, drawn as in fastMRI (Zbontar, arXiv:1811.08839).

    Each line outside the centre is measured with the same probability.

    Attributes
    ----------
    acceleration
        Number of all lines divided by the number of measured lines, in the mean.
    centre
        Share of the lines that are always measured, in the middle of k-space.
    """

    acceleration: Annotated[float, Within(ge=1, le=1000)] = 4.0
    centre: float = 0.08

    def __post_init__(self) -> None:
        """Check every setting."""
        check_fields(self)
        in_range(0, 1 / self.acceleration, centre=self.centre)

    def draw(self, lines: int, random: np.random.Generator) -> np.ndarray:
        """Draw a mask: which lines are measured, boolean of shape (line,).

        Parameters
        ----------
        lines
            Number of lines of k-space.
        random
            Generator of the mask.
        """
        middle = round(lines * self.centre)
        mask = random.random(lines) < (lines / self.acceleration - middle) / (lines - middle)
        start = (lines - middle + 1) // 2
        mask[start : start + middle] = True
        return np.asarray(mask)

    def of_volume(self, name: str, lines: int) -> np.ndarray:
        """Return the mask of a volume. It depends on the volume's name alone, as in the validation of fastMRI."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
        return self.draw(lines, np.random.default_rng(seed))


@dataclass(frozen=True)
class Examinations(Checked):
    """Settings of simulated examinations.

    Attributes
    ----------
    population
        Population of the patients, from `zetadp.phantom.settings.FIXED`.
    sequences
        Pulse sequences (`zetadp.phantom.settings.CHANNELS`). Each patient gets one of them at random.
    size
        Rows and columns of an image. K-space has twice as many rows, because scanners oversample the readout.
    slices
        Slices per examination.
    noise
        Standard deviation of the noise in each part of an image, relative to the mean signal of the head.
    scalp
        Brightness of the scalp relative to the mean signal of the brain. 0 leaves the scalp out.
    """

    population: Annotated[str, OneOf(FIXED)] = "standard"
    sequences: Sequence[Annotated[str, OneOf(CHANNELS)]] = CHANNELS
    size: Annotated[int, Within(ge=16, le=512)] = 96
    slices: Count = 4
    noise: UpToTen = 0.05
    scalp: UpToTen = 0.0


@dataclass(frozen=True)
class PublicNetworkSettings:
    """Settings of the public networks and of their training.

    Attributes
    ----------
    families
        Families of the networks, from `FAMILIES`.
    widths, convolutions
        Same as in `zetadp.nn.settings.NetworkSettings`.
    patients
        Number of public patients.
    passes
        Number of passes over all slices. Each pass draws new masks.
    batch
        Slices per step.
    examinations
        Settings of the public patients (`Examinations`).
    """

    families: Annotated[Sequence[Annotated[str, OneOf(FAMILIES)]], Filled()] = ("unet",)
    widths: Sequence[int] = (8, 16, 32)
    convolutions: int = 1
    patients: Count = 100
    passes: Count = 12
    batch: Count = 8
    examinations: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every setting."""
        check_fields(self)
        slices = self.patients * Examinations(**self.examinations).slices
        if slices < self.batch:
            raise ValueError(f"Expected batch to be at most the {slices} slices of all patients, found {self.batch}.")

    def network(self, family: str) -> NetworkSettings:
        """Return the settings of a public network."""
        widths = tuple(self.widths)
        return NetworkSettings(family, widths=widths, convolutions=self.convolutions, activation="crelu")
