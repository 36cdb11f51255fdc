"""Scanners of the simulated cohort: one per centre, with its field, its protocol, its coil and its noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from zetadp.cohort.anatomy import Tissue
from zetadp.cohort.physics import inversion_recovery, nulling_time, spin_echo
from zetadp.cohort.tissues import T1

if TYPE_CHECKING:
    from zetadp.cohort.protocols import Acquisition
    from zetadp.cohort.tissues import Tissues

CHANNELS = ("FLAIR", "T1w", "t1gd", "T2w")
"""Sequences in the order of the channels of the Decathlon brain task."""
FLUID_T1 = 4300.0
"""T1 of cerebrospinal fluid (ms) for which centres set the inversion time of FLAIR."""


@dataclass(frozen=True)
class Protocol:
    """Repetition, echo and inversion time of one sequence, in ms; no inversion time means a plain spin echo."""

    tr: float
    te: float
    ti: float | None = None

    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signed signal of each tissue."""
        if self.ti is None:
            return spin_echo(tissues.density, tissues.t1, tissues.t2, self.tr, self.te)
        return inversion_recovery(tissues.density, tissues.t1, tissues.t2, self.tr, self.te, self.ti)

    def jittered(self, rng: np.random.Generator, spread: float) -> Protocol:
        """Return the protocol of one examination, every time off by up to ``spread`` (relative)."""
        tr, te, ti = 1 + rng.uniform(-spread, spread, 3)
        return replace(self, tr=self.tr * tr, te=self.te * te, ti=None if self.ti is None else self.ti * ti)


@dataclass(frozen=True)
class Scanner:
    """One centre's scanner.

    Attributes
    ----------
    field_strength
        1.5 or 3 tesla.
    protocols
        Nominal protocol of each of `CHANNELS`.
    bias
        Standard deviation of the logarithm of the receive field over space.
    noise
        Noise relative to that of the average scanner.
    array
        How much brighter, as a logarithm, the surface of the brain is than its middle: coils near the head see it
        best. Zero where the scanner corrects for it.
    acceleration
        How much noisier the middle of the brain is than its surface, where coils undersample in parallel: the
        geometry factor of Pruessmann et al., Magn. Reson. Med. 42 (1999) 952-962, less one.
    thickness
        Thickness in mm of the slices in which each of `CHANNELS` is acquired before it is resampled to the grid;
        ``None`` for those of the grid.
    """

    field_strength: float
    protocols: tuple[Acquisition, ...]
    bias: float
    noise: float
    array: float = 0.0
    acceleration: float = 0.0
    thickness: tuple[float, ...] | None = None


def draw_scanner(rng: np.random.Generator) -> Scanner:
    """Draw a scanner with the protocols of its centre.

    Ranges cover usual clinical protocols of brain tumour imaging: Ellingson et al., Neuro-Oncology 17 (2015)
    1188-1198, doi:10.1093/neuonc/nov095. A centre acquires T1 weighting by spin echo or with inversion, and with
    the same parameters before and after contrast, as that consensus asks.
    """
    field_strength = float(rng.choice([1.5, 3.0]))
    # At 3 T the longer T1 leaves a spin echo less contrast, so most centres invert there.
    inverted = bool(rng.random() < (0.7 if field_strength > 2 else 0.3))
    t1 = _t1_weighted(rng, float(T1[field_strength][Tissue.GREY]), inverted=inverted)
    tr = rng.uniform(7000, 11000)
    flair = Protocol(tr=tr, te=rng.uniform(95, 140), ti=nulling_time(FLUID_T1, tr) * rng.uniform(0.92, 1.04))
    t2 = Protocol(tr=rng.uniform(2800, 6500), te=rng.uniform(75, 120))
    return Scanner(
        field_strength=field_strength,
        protocols=(flair, t1, t1, t2),
        bias=float(rng.uniform(0.05, 0.25)),
        noise=float(rng.uniform(0.5, 1.5)),
    )


def _t1_weighted(rng: np.random.Generator, grey_t1: float, *, inverted: bool) -> Protocol:
    if inverted:
        # Grey matter must have passed through zero, or its magnitude would rise above that of white matter.
        tr = rng.uniform(1700, 2400)
        return Protocol(tr=tr, te=rng.uniform(3, 12), ti=nulling_time(grey_t1, tr) * rng.uniform(1.25, 1.6))
    return Protocol(tr=rng.uniform(400, 750), te=rng.uniform(8, 18))
