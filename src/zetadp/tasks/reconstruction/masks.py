"""Masks of the k-space lines that an accelerated scan measures, drawn as in fastMRI (Zbontar, arXiv:1811.08839)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from zetadp.base.validation import in_range, one_of

KINDS = ("random", "equispaced")


@dataclass(frozen=True)
class MaskSettings:
    """Settings of the masks.

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
