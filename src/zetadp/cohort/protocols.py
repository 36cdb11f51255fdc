"""Protocols beside plain and inverted spin echoes: a spoiled gradient echo, and FLAIR after T2 preparation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from zetadp.cohort.physics import prepared_inversion_recovery, spoiled_gradient_echo

if TYPE_CHECKING:
    from zetadp.cohort.tissues import Tissues

STAR_RATIO = 0.6
"""T2* over T2 in brain tissue away from air and iron: the field of a voxel is never quite even."""


class Acquisition(Protocol):
    """What every protocol can do: give the signal of each tissue, and vary from examination to examination."""

    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signed signal of each tissue."""
        ...

    def jittered(self, rng: np.random.Generator, spread: float) -> Acquisition:
        """Return the protocol of one examination, every setting off by up to ``spread`` (relative)."""
        ...


@dataclass(frozen=True)
class GradientEcho:
    """A spoiled gradient echo in the steady state: repetition and echo time in ms, flip angle in degrees."""

    tr: float
    te: float
    flip: float

    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signal of each tissue."""
        star = STAR_RATIO * tissues.t2
        return spoiled_gradient_echo(tissues.density, tissues.t1, star, self.tr, self.te, np.deg2rad(self.flip))

    def jittered(self, rng: np.random.Generator, spread: float) -> GradientEcho:
        """Return the protocol of one examination, every setting off by up to ``spread`` (relative)."""
        tr, te, flip = 1 + rng.uniform(-spread, spread, 3)
        return replace(self, tr=self.tr * tr, te=self.te * te, flip=self.flip * flip)


@dataclass(frozen=True)
class PreparedFlair:
    """FLAIR whose inversion follows a T2 preparation: repetition, echo, inversion and preparation time in ms."""

    tr: float
    te: float
    ti: float
    preparation: float

    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signed signal of each tissue."""
        return prepared_inversion_recovery(
            tissues.density, tissues.t1, tissues.t2, self.tr, self.te, self.ti, self.preparation
        )

    def jittered(self, rng: np.random.Generator, spread: float) -> PreparedFlair:
        """Return the protocol of one examination, every time off by up to ``spread`` (relative)."""
        tr, te, ti, preparation = 1 + rng.uniform(-spread, spread, 4)
        return replace(
            self, tr=self.tr * tr, te=self.te * te, ti=self.ti * ti, preparation=self.preparation * preparation
        )
