"""Settings shared by a group of simulated examinations. This module can check them without the atlas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zetadp.base.validation import in_range, positive

if TYPE_CHECKING:
    from collections.abc import Sequence


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
