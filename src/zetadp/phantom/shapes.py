"""Brains of random shapes: public patients without an atlas, for training or for the choice of settings.

A brain has an outline, sheets of fluid along the zeros of random fields with a ribbon of grey matter next to them,
blobs of grey matter deep inside, and ellipsoids of fluid in the middle. Sizes and places vary far more than in adults.
Lesions, scanners, protocols and faults of the image are those of the public simulation (`zetadp.phantom.public`). The
shapes are after Hoffmann et al., IEEE Trans. Med. Imaging 41 (2022) 543-558, doi:10.1109/TMI.2021.3116879. Lengths are
in mm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from zetadp.phantom.anatomy import CENTRE, Brain, Variability, atlas_coordinates, smooth_field
from zetadp.phantom.lesions import add_public_lesions, with_no_lesion
from zetadp.phantom.procedural import covered
from zetadp.phantom.procedural import inside as share

if TYPE_CHECKING:
    from collections.abc import Callable

    from zetadp.phantom.anatomy import VoxelGrid

MIDDLE = np.array(CENTRE)
VARIABILITY = Variability(
    rotation=5.0, scale=0.05, shift=4.0, displacements=((60.0, 6.0), (25.0, 3.0)), ventricles=(0.0, 0.0)
)


def draw_shapes(rng: np.random.Generator, grid: VoxelGrid) -> tuple[np.ndarray, np.ndarray]:
    """Draw a brain; return the mask (x, y, z) of its voxels, and the tissue fractions (7, n) in them."""
    while True:
        inside, fractions = _brain(rng, grid)
        if inside.any(axis=(0, 1)).all():  # no slice passes above or below it
            return inside, fractions


def _brain(rng: np.random.Generator, grid: VoxelGrid) -> tuple[np.ndarray, np.ndarray]:
    place = atlas_coordinates(rng, grid, VARIABILITY)
    place[2] += np.float32(rng.uniform(-15, 15))
    voxel = grid.voxel[0]
    depth = _depth(rng, grid, place)
    inside = depth > rng.uniform(-2, 4)
    tissue, deep = _cortex(rng, grid, place, depth)
    grey, white = np.clip(tissue - deep, 0, 1), np.minimum(deep, tissue)
    field, least = smooth_field(rng, grid, rng.uniform(12, 35)), rng.uniform(0.7, 2.0)
    nuclei = rng.uniform(0.4, 1.0) * share((field - least) * 8, voxel) * share(depth - rng.uniform(10, 25), 6.0)
    grey, white = grey + nuclei * white, white * (1 - nuclei)
    ventricles = _ventricles(rng, place, voxel)
    grey, white = grey * (1 - ventricles), white * (1 - ventricles)
    if rng.random() < 0.2:  # grey matter scattered in the white
        field = smooth_field(rng, grid, rng.uniform(10, 40))
        scattered = share(field * rng.uniform(3, 10) + rng.normal(0, 4), voxel) * rng.uniform(0.3, 1)
        grey, white = grey + scattered * white * 0.5, white * (1 - 0.5 * scattered)
    fluid = np.clip(1 - grey - white, 0, 1)
    vessels = rng.uniform(0.03, 0.4)
    gathered = 1 + 3 * np.exp(-np.square(place[0] / 5) / 2)
    blood = np.minimum(vessels * gathered, 1) * np.clip(fluid - ventricles, 0, 1)
    healthy = np.stack([fluid - blood, grey, white, blood]).astype(np.float32)[:, inside]
    healthy = healthy / np.maximum(healthy.sum(0), 1e-6)
    # Lesions begin in white matter; a brain with hardly any has none.
    if (white[inside] > 0.6).mean() < 0.02:
        return inside, with_no_lesion(healthy)
    brain = Brain(inside, place[:, inside], healthy, _looked_up(grid, inside, white))
    return inside, add_public_lesions(rng, brain, second=0.3)


def _depth(rng: np.random.Generator, grid: VoxelGrid, place: np.ndarray) -> np.ndarray:
    """Return how deep voxels lie below the surface of a rough, tapered superellipsoid."""
    axes = np.array([66, 84, 62]) * np.exp(rng.normal(0, 0.06, 3))
    power = rng.uniform(1.8, 3.2)
    x, y, z = ((place[i] - MIDDLE[i]) / axes[i] for i in range(3))
    z = np.where(z < 0, z / rng.uniform(0.5, 1.0), z)
    x = x / (1 - rng.uniform(-0.05, 0.2) * y)
    radius = np.maximum(sum(np.abs(each) ** power for each in (x, y, z)) ** (1 / power), 0.05)
    rough = rng.uniform(0, 4)
    return np.asarray((1 - radius) * 75 + rough * smooth_field(rng, grid, rng.uniform(25, 60)))


def _cortex(
    rng: np.random.Generator, grid: VoxelGrid, place: np.ndarray, depth: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of every voxel that is not fluid, and the share that is neither fluid nor cortex."""
    half, ribbon = rng.uniform(0.3, 2.0), rng.uniform(2.0, 5.0)
    sheets: list[tuple[Any, ...]] = [(depth, rng.uniform(0.5, 3.5), 1.0, ribbon)]
    for _ in range(rng.integers(1, 3)):
        reach = rng.uniform(8, 32)
        folds = _zeros(rng, grid, rng.uniform(9, 28))
        sheets.append((folds, half * rng.uniform(0.5, 1.2), share(reach - depth, 6.0), ribbon))
    if rng.random() < 0.85:  # a fissure near the middle, over some depth or in front and behind
        away = place[0] + rng.normal(0, 2)
        if rng.random() < 0.5:
            parted = share(rng.uniform(0, 40) - depth + 15 * (rng.random() < 0.3), 8.0)
        else:
            parted = share(np.abs(place[1] - MIDDLE[1]) - rng.uniform(10, 50), 8.0)
        sheets.append((away, rng.uniform(0.3, 2.2), parted, ribbon * rng.uniform(0.5, 1.0)))
    voxel = grid.voxel[0]
    tissue, deep = np.ones(grid.shape), np.ones(grid.shape)
    for distance, thin, present, beside in sheets:
        tissue = tissue * (1 - present * covered(distance, thin, voxel))
        deep = deep * (1 - present * covered(distance, thin + beside, voxel))
    return tissue, deep


def _zeros(rng: np.random.Generator, grid: VoxelGrid, spacing: float) -> np.ndarray:
    """Return the signed distance to the zeros of a random field, to first order."""
    field = smooth_field(rng, grid, spacing)
    slope = np.sqrt(sum(np.square(each) for each in np.gradient(field, *grid.voxel)))
    return np.asarray(field / np.maximum(slope, 0.5 * slope.mean()))


def _ventricles(rng: np.random.Generator, place: np.ndarray, voxel: float) -> np.ndarray:
    """Return the share of fluid that one to three pairs of tilted ellipsoids hold, which differ between the sides."""
    found = np.zeros(place.shape[1:])
    size = np.exp(rng.normal(0, 0.45))
    for _ in range(rng.integers(1, 4)):
        middle = np.array([abs(rng.normal(9, 5)), MIDDLE[1] + rng.normal(0, 22), MIDDLE[2] + rng.normal(0, 8)])
        axes = np.array([rng.uniform(3, 9), rng.uniform(6, 28), rng.uniform(5, 16)]) * size
        for side in (-1, 1):
            if rng.random() < 0.05:
                continue
            own, tilt = axes * np.exp(rng.normal(0, 0.1)), rng.normal(0, 0.3)
            x, y, z = side * place[0] - middle[0], place[1] - middle[1], place[2] - middle[2]
            x = x - tilt * y * 0.5
            radius = np.sqrt((x / own[0]) ** 2 + (y / own[1]) ** 2 + (z / own[2]) ** 2)
            found = np.maximum(found, share((1 - radius) * own.min(), voxel))
    return found


def _looked_up(grid: VoxelGrid, inside: np.ndarray, white: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function for the share of white matter in the voxel nearest to a place, zero outside the brain."""

    def at(place: np.ndarray) -> np.ndarray:
        nearest = [(each - axis[0]) / (axis[1] - axis[0]) for each, axis in zip(place, grid.axes(), strict=True)]
        index = tuple(np.clip(np.rint(n).astype(int), 0, side - 1) for n, side in zip(nearest, grid.shape, strict=True))
        return np.where(inside[index], white[index], 0)

    return at
