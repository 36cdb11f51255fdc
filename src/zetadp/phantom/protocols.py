"""Protocols of the simulated scanners: spin echoes, a spoiled gradient echo, and FLAIR after T2 preparation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from zetadp.phantom.physics import (
    inversion_recovery,
    prepared_inversion_recovery,
    spin_echo,
    spoiled_gradient_echo,
)
from zetadp.phantom.tissues import Tissues

STAR_RATIO = 0.6
"""T2* over T2 in brain tissue away from air and iron. It is below 1 because the field in a voxel is never uniform."""


@dataclass(frozen=True)
class Acquisition(ABC):
    """Interface of a protocol: the signal of each tissue, and variation between examinations."""

    @abstractmethod
    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signed signal (7,) of each tissue, in the order of `anatomy.Tissue`."""

    def jittered(self, rng: np.random.Generator, spread: float) -> Self:
        """Return the protocol of one examination, with every setting changed by up to ``spread`` (relative)."""
        settings = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        factors = 1 + rng.uniform(-spread, spread, len(settings))
        pairs = zip(settings.items(), factors, strict=True)
        return replace(self, **{name: None if value is None else value * factor for (name, value), factor in pairs})


@dataclass(frozen=True)
class Protocol(Acquisition):
    """Repetition, echo and inversion time of one sequence, in ms; no inversion time means a plain spin echo."""

    tr: float
    te: float
    ti: float | None = None

    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signed signal of each tissue."""
        if self.ti is None:
            return spin_echo(tissues.density, tissues.t1, tissues.t2, self.tr, self.te)
        return inversion_recovery(tissues.density, tissues.t1, tissues.t2, self.tr, self.te, self.ti)


@dataclass(frozen=True)
class GradientEcho(Acquisition):
    """A spoiled gradient echo in the steady state: repetition and echo time in ms, flip angle in degrees."""

    tr: float
    te: float
    flip: float

    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signal of each tissue."""
        star = STAR_RATIO * tissues.t2
        return spoiled_gradient_echo(tissues.density, tissues.t1, star, self.tr, self.te, np.deg2rad(self.flip))


@dataclass(frozen=True)
class PreparedFlair(Acquisition):
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
