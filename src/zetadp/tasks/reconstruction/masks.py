"""Which lines of k-space an accelerated scan measures, as fastMRI draws them (Zbontar et al., arXiv:1811.08839)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from zetadp.validation import in_range, one_of

KINDS = ("random", "equispaced")


@dataclass(frozen=True)
class MaskSettings:
    """How lines are left out.

    Attributes
    ----------
    kind
        ``random``: each line outside the centre is measured with the same probability. ``equispaced``: lines at equal
        distances from a random first one.
    acceleration
        How many times fewer lines are measured; exactly for equispaced lines, on average for random ones.
    centre
        Share of the lines, in the middle, that are always measured.
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
        """Return which of some lines are measured, shape (line,)."""
        middle = round(lines * self.centre)
        if self.kind == "random":
            found = random.random(lines) < (lines / self.acceleration - middle) / (lines - middle)
        else:
            # The centre has its lines already, so the others lie further apart than the acceleration says.
            step = self.acceleration * (middle - lines) / (middle * self.acceleration - lines)
            found = np.zeros(lines, dtype=bool)
            found[np.rint(np.arange(random.integers(0, round(step)), lines - 1, step)).astype(int)] = True
        start = (lines - middle + 1) // 2
        found[start : start + middle] = True
        return np.asarray(found)

    def of_volume(self, name: str, lines: int) -> np.ndarray:
        """Return the mask of a volume, which follows from its name alone, as in the validation of fastMRI."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
        return self.draw(lines, np.random.default_rng(seed))
