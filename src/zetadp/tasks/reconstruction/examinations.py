"""What a group of simulated examinations has in common: settings alone, so that a task needs no atlas to be checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zetadp.validation import in_range, positive

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Examinations:
    """The settings. Names of populations and sequences are checked by the simulation.

    Attributes
    ----------
    population
        Whose brains they are (`zetadp.cohort.populations.POPULATIONS`).
    sequences
        Pulse sequences (`zetadp.cohort.scanners.CHANNELS`), of which each patient has one.
    size
        Rows and columns of an image; k-space has twice as many rows, as scanners sample them.
    slices
        Slices of an examination.
    noise
        Standard deviation of the noise in each part of an image, relative to the mean signal of the head.
    phase
        Standard deviation of the receiver's smooth phase, in radians.
    shading
        Standard deviation of the logarithm of the coil's smooth sensitivity.
    scalp
        Brightness of the scalp relative to the mean signal of the brain; 0 shows brains alone.
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
