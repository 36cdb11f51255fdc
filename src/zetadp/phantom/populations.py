"""Populations of the simulated cohort: brains, diseases and scanners.

Methods were developed on the standard one. The others show how a method does on patients and scanners that it was not
made for. None is fitted to data: they are only meant to be plausible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from zetadp.phantom.anatomy import Tissue, blur_of, healthy_fractions, load_atlas, sample
from zetadp.phantom.deformation import Variability, atlas_coordinates
from zetadp.phantom.grid import VoxelGrid
from zetadp.phantom.lesions import add_tumour, add_tumours, draw_tumour, hollowed, with_no_lesion
from zetadp.phantom.procedural import draw_procedural_brain
from zetadp.phantom.scanners import Scanner, draw_scanner, draw_vendor_scanner


@dataclass(frozen=True)
class Brain:
    """A healthy brain, to which lesions can be added.

    Attributes
    ----------
    inside
        Mask (x, y, z) of the voxels in the brain.
    place
        Coordinates (3, n) of these voxels, in mm, in the space in which lesions are described.
    healthy
        Fractions (4, n) of the healthy tissues in these voxels.
    white
        Function that returns the share of white matter (n,) at coordinates (3, n) of that space.
    """

    inside: np.ndarray
    place: np.ndarray
    healthy: np.ndarray
    white: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Population:
    """A way to draw patients and scanners.

    Attributes
    ----------
    brain
        Draws a brain on a grid.
    tissue
        Adds lesions to a brain with the given probability, and returns the fractions (7, n).
    scanner
        Draws a scanner with its protocols.
    description, reference, licence
        Texts for ``dataset.json``.
    """

    brain: Callable[[np.random.Generator, VoxelGrid], Brain]
    tissue: Callable[[np.random.Generator, Brain, float], np.ndarray]
    scanner: Callable[[np.random.Generator], Scanner] = draw_scanner
    description: str = "Simulated patients with gliomas, in the layout of the Decathlon brain task; not real data"
    reference: str = "zetadp simulated cohort; anatomy from ICBM 152, doi:10.1016/j.neuroimage.2010.07.033"
    licence: str = "simulated; the anatomy is grown from the ICBM 152 maps, see NOTICE"


def draw_patient_brain(rng: np.random.Generator, grid: VoxelGrid, shape: Variability | None = None) -> Brain:
    """Draw a brain from the atlas, of any adult age."""
    # Tools that strip the skull cut a little inside or outside the surface.
    cut, atrophy, vessels = rng.uniform(0.35, 0.65), rng.uniform(-0.5, 0.9), rng.uniform(0.12, 0.3)
    return _from_atlas(atlas_coordinates(rng, grid, shape), grid, cut, atrophy, vessels)


def draw_healthy_brain(rng: np.random.Generator, grid: VoxelGrid) -> Brain:
    """Draw a brain from the atlas whose sulci and ventricles widen together, with an age from 18 to 95 years."""
    age = rng.uniform(18, 95)
    old = (age - 18) / (95 - 18)
    atrophy = float(np.clip(-0.7 + 1.5 * old + rng.normal(0, 0.12), -0.9, 0.95))
    # Fluid in the ventricles grows slowly until sixty, then fast.
    swelling = float(np.clip(-0.3 + 1.1 * old**1.7 + rng.normal(0, 0.08), -0.4, 0.95))
    cut, vessels = rng.uniform(0.35, 0.65), rng.uniform(0.12, 0.3)
    place = atlas_coordinates(rng, grid, Variability(ventricles=(swelling, swelling)))
    return _from_atlas(place, grid, cut, atrophy, vessels)


def draw_brain_without_atlas(rng: np.random.Generator, grid: VoxelGrid, spread: Variability | None = None) -> Brain:
    """Draw a procedural brain."""
    shape = draw_procedural_brain(rng)
    margin = rng.uniform(-0.5, 1.0)
    place = atlas_coordinates(rng, grid, spread or Variability(ventricles=(0.0, 0.0)))
    inside = (shape.below_surface(place.reshape(3, -1)) > margin).reshape(grid.shape)
    place = place[:, inside]
    voxel = float(np.mean(grid.voxel))

    def white(at: np.ndarray) -> np.ndarray:
        # Fractions have a meaning below the surface only.
        return np.where(shape.below_surface(at) > margin, shape.fractions(at, voxel)[Tissue.WHITE], 0)

    return Brain(inside, place, shape.fractions(place, voxel), white)


def _from_atlas(place: np.ndarray, grid: VoxelGrid, cut: float, atrophy: float, vessels: float) -> Brain:
    atlas = load_atlas(blur_of(grid.voxel))
    brain = sample(atlas.brain, atlas, place)
    inside = brain > cut
    place = place[:, inside]
    healthy = healthy_fractions(atlas, place, atrophy, vessels, brain[inside])
    return Brain(inside, place, healthy, white=lambda at: sample(atlas.white, atlas, at))


def with_one_glioma(rng: np.random.Generator, brain: Brain, probability: float) -> np.ndarray:
    """Add a glioma, or nothing."""
    if rng.random() < probability:
        return add_tumour(brain.healthy, brain.place, draw_tumour(rng, brain.white))
    return with_no_lesion(brain.healthy)


def with_heavy_lesions(rng: np.random.Generator, brain: Brain, probability: float) -> np.ndarray:
    """Add two to four large gliomas with wide oedema, which are cavities in two patients of five, or nothing."""
    if rng.random() >= probability:
        return with_no_lesion(brain.healthy)
    tumours = [
        replace(draw_tumour(rng, brain.white), radius=float(rng.uniform(14, 27)), oedema=float(rng.uniform(8, 24)))
        for _ in range(rng.integers(2, 5))
    ]
    fractions = add_tumours(brain.healthy, brain.place, tumours)
    return hollowed(fractions) if rng.random() < 0.4 else fractions


def with_nothing(rng: np.random.Generator, brain: Brain, probability: float) -> np.ndarray:
    """Add nothing, whatever the probability."""
    return with_no_lesion(brain.healthy)


POPULATIONS = {
    "standard": Population(brain=draw_patient_brain, tissue=with_one_glioma),
    "vendor": Population(scanner=draw_vendor_scanner, brain=draw_patient_brain, tissue=with_one_glioma),
    "healthy": Population(
        description="Simulated healthy adults, in the layout of the Decathlon brain task; not real data",
        brain=draw_healthy_brain,
        tissue=with_nothing,
    ),
    "heavy": Population(brain=draw_patient_brain, tissue=with_heavy_lesions),
    "procedural": Population(
        reference="zetadp simulated cohort; anatomy from implicit shapes, no atlas",
        licence="simulated",
        brain=draw_brain_without_atlas,
        tissue=with_one_glioma,
    ),
}
"""Populations by their name in `phantom.PhantomSettings`."""
DRAWN = "drawn"
"""Name of a further population, which is drawn from the cohort's seed (`zetadp.phantom.drawn`)."""
