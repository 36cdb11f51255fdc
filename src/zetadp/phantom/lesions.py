"""Gliomas of the simulated cohort: a core, a rim that leaks contrast agent, and oedema along the white matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zetadp.phantom.anatomy import HEALTHY, Brain, Tissue

EDGE = 1.0
"""Softness of the edge of the tumour, in mm; that of the oedema is three times as wide."""
WAVES = 8
"""Number of plane waves that roughen the outline."""


@dataclass(frozen=True)
class Tumour:
    """Size, position and outline of one tumour. Lengths in mm, positions in MNI coordinates.

    Attributes
    ----------
    centre
        Middle of the tumour (3,).
    stretch
        Relative length of the three half-axes (3,), of geometric mean one.
    radius
        Mean radius of core and rim together.
    rim
        Thickness of the rim around the core.
    oedema
        Mean width of the oedema around the tumour.
    enhancing
        Whether the rim leaks contrast agent. A rim without leakage belongs to the core.
    roughness
        Standard deviation of the logarithm of the radius over the surface.
    frequencies, phases
        Wave vectors (3, `WAVES`) in radians per mm and phases (`WAVES`,) of the outline.
    """

    centre: np.ndarray
    stretch: np.ndarray
    radius: float
    rim: float
    oedema: float
    enhancing: bool
    roughness: float
    frequencies: np.ndarray
    phases: np.ndarray

    @property
    def reach(self) -> float:
        """Distance (mm) from the centre beyond which nothing of the lesion is left."""
        return float((self.radius + self.oedema + 12 * EDGE) * self.stretch.max() * np.exp(4 * self.roughness))


def draw_tumour(rng: np.random.Generator, white: Callable[[np.ndarray], np.ndarray]) -> Tumour:
    """Draw a tumour around a random point in the white matter of the cerebrum.

    Sizes are like those in the Decathlon brain task: radii from under one to about three centimetres, oedema often
    wider than the tumour, and a quarter without enhancement (low grade).

    Parameters
    ----------
    rng
        Random generator of size, position and outline.
    white
        Function that returns the share of white matter (n,) at points (3, n).
    """
    while True:
        centre = rng.uniform((-55, -85, -15), (55, 50, 45))
        if white(centre[:, None].astype(np.float32))[0] > 0.5:
            break
    stretch = np.exp(rng.normal(0, 0.2, 3))
    radius = float(rng.uniform(7, 26))
    direction = rng.standard_normal((3, WAVES))
    direction /= np.linalg.norm(direction, axis=0)
    return Tumour(
        centre=centre,
        stretch=stretch / np.prod(stretch) ** (1 / 3),
        radius=radius,
        rim=float(rng.uniform(2, 5)),
        oedema=float(rng.uniform(3, 22)),
        enhancing=bool(rng.random() < 0.75),
        roughness=float(rng.uniform(0.05, 0.2)),
        frequencies=direction * 2 * np.pi / (radius * rng.uniform(0.8, 2.5, WAVES)),
        phases=rng.uniform(0, 2 * np.pi, WAVES),
    )


def add_public_lesions(rng: np.random.Generator, brain: Brain, second: float = 0.2) -> np.ndarray:
    """Add the lesions of a public patient: one or two gliomas of any size, several small lesions, or none (a quarter).

    Parameters
    ----------
    rng
        Random generator of the lesions.
    brain
        The healthy brain.
    second
        Probability that a patient with a glioma has a second one.

    Returns
    -------
    Fractions (7, n) of all tissues. The lesions of some patients are cavities.
    """
    kind = rng.random()
    tumours = []
    if kind < 0.55:
        gliomas = 1 + int(rng.random() < second)
        tumours = [replace(draw_tumour(rng, brain.white), radius=float(rng.uniform(5, 32))) for _ in range(gliomas)]
    elif kind < 0.75:
        tumours = [_small_lesion(rng, brain.white) for _ in range(rng.integers(2, 12))]
    fractions = add_tumours(brain.healthy, brain.points, tumours)
    return hollow_cores(fractions) if tumours and rng.random() < 0.15 else fractions


def _small_lesion(rng: np.random.Generator, white: Callable[[np.ndarray], np.ndarray]) -> Tumour:
    """Draw a lesion of a few millimetres, such as from small-vessel disease, inflammation or a metastasis."""
    return replace(
        draw_tumour(rng, white),
        radius=float(rng.uniform(2, 6)),
        rim=1.0,
        oedema=float(rng.uniform(0.5, 4)),
        enhancing=bool(rng.random() < 0.15),
    )


def add_tumours(fractions: np.ndarray, points: np.ndarray, tumours: Sequence[Tumour]) -> np.ndarray:
    """Replace healthy tissue by tumours and their oedema; where tumours overlap, the larger share of a voxel counts.

    Parameters
    ----------
    fractions
        Fractions (4, n) of the healthy tissues.
    points
        MNI coordinates (3, n) of the same voxels, in mm.
    tumours
        The tumours to add.

    Returns
    -------
    Fractions (7, n) of all tissues, which sum to one.
    """
    whole = with_no_lesion(fractions)
    for tumour in tumours:
        near = np.flatnonzero(
            np.square(points - tumour.centre.astype(np.float32)[:, None]).sum(axis=0) < tumour.reach**2
        )
        added = _add_tumour(fractions[:, near], points[:, near], tumour)
        dominant = added[HEALTHY:].sum(axis=0) > whole[HEALTHY:, near].sum(axis=0)
        whole[:, near[dominant]] = added[:, dominant]
    return whole


def _add_tumour(healthy: np.ndarray, points: np.ndarray, tumour: Tumour) -> np.ndarray:
    """Add one tumour to healthy voxels and return the fractions (7, n) of all tissues."""
    offset = points - tumour.centre.astype(np.float32)[:, None]
    waves = np.cos(tumour.frequencies.T.astype(np.float32) @ offset + tumour.phases.astype(np.float32)[:, None])
    outline = np.exp(tumour.roughness * np.sqrt(2 / WAVES) * waves.sum(axis=0))
    distance = np.sqrt(np.square(offset / tumour.stretch.astype(np.float32)[:, None]).sum(axis=0)) * outline

    mass = _soft_step(tumour.radius - distance, EDGE)
    core = _soft_step(tumour.radius - tumour.rim - distance, EDGE) if tumour.enhancing else mass
    # Fluid from leaking vessels spreads along the fibres: grey matter takes a quarter of it, the ventricles none.
    spread = healthy[Tissue.WHITE] + 0.25 * healthy[Tissue.GREY]
    oedema = _soft_step(tumour.radius + tumour.oedema - distance, 3 * EDGE) * spread * (1 - mass)
    return np.concatenate([healthy * (1 - mass - oedema), np.stack([oedema, core, mass - core])])


def hollow_cores(fractions: np.ndarray) -> np.ndarray:
    """Return fractions (7, n) in which fluid fills the core of every tumour: a cyst, or the cavity of an operation."""
    hollow = fractions.copy()
    hollow[Tissue.CSF] += hollow[Tissue.CORE]
    hollow[Tissue.CORE] = 0
    return hollow


def with_no_lesion(fractions: np.ndarray) -> np.ndarray:
    """Return fractions (7, n) of all tissues from those (4, n) of a healthy brain."""
    lesions = np.zeros((len(Tissue) - HEALTHY, fractions.shape[1]), dtype=np.float32)
    return np.concatenate([fractions, lesions])


def _soft_step(depth: np.ndarray, edge: float) -> np.ndarray:
    """Return a soft step from 0 (outside) to 1 (inside) over a depth (mm) below the surface."""
    return np.asarray(1 / (1 + np.exp(-np.clip(depth / (edge / 2), -30, 30))), dtype=np.float32)
