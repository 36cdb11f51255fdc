"""Settings of masks, simulated examinations and public networks. Their checks need neither the atlas nor torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from zetadp.base.validation import in_range, one_of, positive
from zetadp.nn.settings import NetworkSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FAMILIES = ("unet", "real_unet")
"""Families of public networks."""
KINDS = ("random", "equispaced")


@dataclass(frozen=True)
class MaskSettings:
    """Masks of the k-space lines that an accelerated scan measures, drawn as in fastMRI (Zbontar, arXiv:1811.08839).

    Attributes
    ----------
    kind
        ``random`` measures each line outside the centre with the same probability. ``equispaced`` measures lines at
        equal distances, from a random first line.
    acceleration
        Number of all lines divided by the number of measured lines. It is exact for equispaced lines and an average for
        random lines.
    centre
        Share of the lines that are always measured, in the middle of k-space.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    kind: str = "random"
    acceleration: float = 4.0
    centre: float = 0.08

    def __post_init__(self) -> None:
        """Check every setting."""
        one_of(KINDS, kind=self.kind)
        in_range(1, 1000, acceleration=self.acceleration)
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
        if self.kind == "random":
            found = random.random(lines) < (lines / self.acceleration - middle) / (lines - middle)
        else:
            # The centre adds measured lines, so the others must lie further apart to reach the acceleration.
            step = self.acceleration * (middle - lines) / (middle * self.acceleration - lines)
            found = np.zeros(lines, dtype=bool)
            found[np.rint(np.arange(random.integers(0, round(step)), lines - 1, step)).astype(int)] = True
        start = (lines - middle + 1) // 2
        found[start : start + middle] = True
        return np.asarray(found)

    def of_volume(self, name: str, lines: int) -> np.ndarray:
        """Return the mask of a volume. It depends on the volume's name alone, as in the validation of fastMRI."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
        return self.draw(lines, np.random.default_rng(seed))


@dataclass(frozen=True)
class Examinations:
    """Settings of simulated examinations. The simulation checks the names of populations and sequences.

    Attributes
    ----------
    population
        Population of the patients (`zetadp.phantom.populations.POPULATIONS`).
    sequences
        Pulse sequences (`zetadp.phantom.scanners.CHANNELS`). Each patient gets one of them at random.
    size
        Rows and columns of an image. K-space has twice as many rows, because scanners oversample the readout.
    slices
        Slices per examination.
    noise
        Standard deviation of the noise in each part of an image, relative to the mean signal of the head.
    phase
        Standard deviation of the receiver's smooth phase, in radians.
    shading
        Standard deviation of the logarithm of the coil's smooth sensitivity.
    scalp
        Brightness of the scalp relative to the mean signal of the brain. 0 leaves the scalp out.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    population: str = "standard"
    sequences: Sequence[str] = ("FLAIR", "T1w", "t1gd", "T2w")
    size: int = 96
    slices: int = 4
    noise: float = 0.05
    phase: float = 1.0
    shading: float = 0.3
    scalp: float = 0.0

    def __post_init__(self) -> None:
        """Check every setting."""
        in_range(16, 512, size=self.size)
        positive(slices=self.slices)
        in_range(0, 10, noise=self.noise, phase=self.phase, shading=self.shading, scalp=self.scalp)


@dataclass(frozen=True)
class PublicNetworkSettings:
    """Settings of the public networks and of their training.

    Attributes
    ----------
    families
        Families of the networks, from `FAMILIES`.
    widths, convolutions, activation
        Same as in `zetadp.nn.settings.NetworkSettings`.
    patients
        Number of public patients.
    passes
        Number of passes over all slices. Each pass draws new masks.
    batch
        Slices per step.
    learning_rate
        Highest learning rate of AdamW.
    seed
        Seed of patients, masks and starting weights.
    examinations
        Settings of the public patients (`Examinations`).

    Raises
    ------
    ValueError
        If a family is unknown or a number is not positive.
    """

    families: Sequence[str] = ("unet",)
    widths: Sequence[int] = (8, 16, 32)
    convolutions: int = 1
    activation: str = "crelu"
    patients: int = 100
    passes: int = 12
    batch: int = 8
    learning_rate: float = 3e-3
    seed: int = 1000
    examinations: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every setting."""
        for family in self.families:
            one_of(FAMILIES, families=family)
        positive(patients=self.patients, passes=self.passes, batch=self.batch, learning_rate=self.learning_rate)

    def network(self, family: str) -> NetworkSettings:
        """Return the settings of a public network."""
        shape = {"widths": tuple(self.widths), "convolutions": self.convolutions, "activation": self.activation}
        return NetworkSettings(family, **shape)  # type: ignore[arg-type]
