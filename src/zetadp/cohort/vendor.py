"""Scanners of another vendor: three-dimensional protocols, uncorrected coil arrays, noise of parallel imaging."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zetadp.cohort.physics import prepared_nulling_time
from zetadp.cohort.protocols import GradientEcho, PreparedFlair
from zetadp.cohort.scanners import FLUID_T1, Protocol, Scanner

if TYPE_CHECKING:
    import numpy as np

    from zetadp.cohort.protocols import Acquisition

FLUID_T2 = 2000.0
"""T2 of cerebrospinal fluid (ms) for which the inversion time after T2 preparation is set."""


def draw_vendor_scanner(rng: np.random.Generator) -> Scanner:
    """Draw a scanner whose protocols lie outside the ranges of `scanners.draw_scanner`.

    T1 weighting is by a spoiled gradient echo, FLAIR by a short three-dimensional train after T2 preparation, T2
    weighting by late echoes at short repetition, in thick slices. The receive field is that of a coil array close to
    the head, and noise gathers in the middle, where parallel imaging amplifies it.
    """
    t1 = _gradient_echo(rng)
    tr, preparation = rng.uniform(4800, 5600), rng.uniform(110, 170)
    flair = PreparedFlair(
        tr=tr,
        te=rng.uniform(68, 88),
        ti=prepared_nulling_time(FLUID_T1, FLUID_T2, tr, preparation) * rng.uniform(0.95, 1.03),
        preparation=preparation,
    )
    t2 = Protocol(tr=rng.uniform(2000, 2600), te=rng.uniform(130, 170))
    return Scanner(
        field_strength=float(rng.choice([1.5, 3.0])),
        protocols=(flair, t1, t1, t2),
        bias=float(rng.uniform(0.02, 0.1)),
        noise=float(rng.uniform(0.5, 1.2)),
        array=float(rng.uniform(0.4, 0.9)),
        acceleration=float(rng.uniform(0.5, 1.5)),
        # Inversion and gradient echoes are read as volumes; T2w is still a stack of slices.
        thickness=(float(rng.integers(1, 3)), 1.0, 1.0, float(rng.integers(3, 6))),
    )


def _gradient_echo(rng: np.random.Generator) -> Acquisition:
    """Draw a fast gradient echo, or a slower one with a larger flip angle."""
    if rng.random() < 0.5:
        return GradientEcho(tr=rng.uniform(7, 11), te=rng.uniform(2.5, 4.6), flip=rng.uniform(15, 22))
    return GradientEcho(tr=rng.uniform(22, 30), te=rng.uniform(3, 6), flip=rng.uniform(26, 34))
