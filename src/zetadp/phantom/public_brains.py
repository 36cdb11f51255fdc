"""The brains of the public simulation: from the atlas, or of random shapes.

They are far more varied than those of the simulated cohort (`zetadp.phantom.public` says why).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from zetadp.phantom.anatomy import (
    Brain,
    Variability,
    atlas_coordinates,
    blur_of,
    brain_of_atlas,
    load_atlas,
    sample,
    share_of_blood,
    smooth_field,
)
from zetadp.phantom.lesions import add_public_lesions, with_no_lesion
from zetadp.phantom.procedural import share_covered, share_inside
from zetadp.phantom.settings import CENTRE, VoxelGrid

ATLAS_SPREAD = Variability(
    rotation=5.0,
    scale=0.08,
    shift=4.0,
    displacements=((60.0, 7.0), (25.0, 3.5), (14.0, 1.0)),
    ventricles=(-0.3, 0.9),
)
"""Variation of orientation, size and shape between patients whose brains come from the atlas."""
SLAB = 20.0
"""Largest distance (mm) of the middle slice from its usual height, up or down."""
SHARES = (0.22, 0.46)
"""Least and largest share of the middle slice that the brain fills; between them all are equally likely."""


def draw_anatomy(rng: np.random.Generator, grid: VoxelGrid) -> tuple[np.ndarray, np.ndarray]:
    """Draw a brain with or without lesions.

    Returns
    -------
    Mask (x, y, z) of the brain, and the tissue fractions (7, n) in its voxels.
    """
    points = atlas_coordinates(rng, grid, ATLAS_SPREAD)
    points[2] += np.float32(rng.uniform(-SLAB, SLAB))
    # From the full brain of the young to the wide sulci of the old, and beyond.
    cut, atrophy, vessels = rng.uniform(0.25, 0.75), rng.uniform(-0.6, 0.95), rng.uniform(0.05, 0.4)
    atlas = load_atlas(blur_of(grid.voxel))
    filled = float((sample(atlas.brain, atlas, points[..., grid.shape[2] // 2]) > cut).mean())
    _resize(points, filled, rng.uniform(*SHARES))
    brain = brain_of_atlas(points, grid, cut, atrophy, vessels)
    return brain.inside, add_public_lesions(rng, brain)


def _resize(points: np.ndarray, filled: float, target: float) -> None:
    """Change the size of a brain in the plane, so that it fills another share of the slice (in place).

    Coordinates (3, x, y, z) are those of the brain's space, in mm.
    """
    for axis in range(2):
        points[axis] = CENTRE[axis] + np.float32(np.sqrt(filled / target)) * (points[axis] - np.float32(CENTRE[axis]))


MIDDLE = np.array(CENTRE)
SHAPES_SPREAD = Variability(
    rotation=5.0, scale=0.05, shift=4.0, displacements=((60.0, 6.0), (25.0, 3.0)), ventricles=(0.0, 0.0)
)
"""Variation of orientation and size between brains of random shapes."""
SHAPES_SHARE = 0.33
"""Share of the middle slice that such a brain usually fills before its size is drawn."""


def draw_shapes(rng: np.random.Generator, grid: VoxelGrid) -> tuple[np.ndarray, np.ndarray]:
    """Draw a brain of random shapes, without an atlas, as `draw_anatomy` does with one.

    A brain has an outline, sheets of fluid along the zeros of random fields with a ribbon of grey matter next to them,
    blobs of grey matter deep inside, and ellipsoids of fluid in the middle. Sizes and positions vary far more than in
    adults. The shapes are after Hoffmann et al., IEEE Trans. Med. Imaging 41 (2022) 543-558,
    doi:10.1109/TMI.2021.3116879.
    """
    while True:
        inside, fractions = _draw_brain_of_shapes(rng, grid)
        if inside.any(axis=(0, 1)).all():  # every slice shows the brain
            return inside, fractions


def _draw_brain_of_shapes(rng: np.random.Generator, grid: VoxelGrid) -> tuple[np.ndarray, np.ndarray]:
    points = atlas_coordinates(rng, grid, SHAPES_SPREAD)
    points[2] += np.float32(rng.uniform(-15, 15))
    _resize(points, SHAPES_SHARE, rng.uniform(*SHARES))
    voxel = grid.voxel[0]
    depth = _draw_depth(rng, grid, points)
    inside = depth > rng.uniform(-2, 4)
    tissue, deep = _draw_cortex(rng, grid, points, depth)
    grey, white = np.clip(tissue - deep, 0, 1), np.minimum(deep, tissue)
    field, least = smooth_field(rng, grid, rng.uniform(12, 35)), rng.uniform(0.7, 2.0)
    nuclei = (
        rng.uniform(0.4, 1.0)
        * share_inside((field - least) * 8, voxel)
        * share_inside(depth - rng.uniform(10, 25), 6.0)
    )
    grey, white = grey + nuclei * white, white * (1 - nuclei)
    ventricles = _draw_ventricles(rng, points, voxel)
    grey, white = grey * (1 - ventricles), white * (1 - ventricles)
    if rng.random() < 0.2:  # grey matter scattered in the white
        field = smooth_field(rng, grid, rng.uniform(10, 40))
        scattered = share_inside(field * rng.uniform(3, 10) + rng.normal(0, 4), voxel) * rng.uniform(0.3, 1)
        grey, white = grey + scattered * white * 0.5, white * (1 - 0.5 * scattered)
    fluid = np.clip(1 - grey - white, 0, 1)
    blood = share_of_blood(points[0], rng.uniform(0.03, 0.4)) * np.clip(fluid - ventricles, 0, 1)
    healthy = np.stack([fluid - blood, grey, white, blood]).astype(np.float32)[:, inside]
    healthy = healthy / np.maximum(healthy.sum(0), 1e-6)
    # Lesions begin in white matter; a brain with very little white matter has no lesions.
    if (white[inside] > 0.6).mean() < 0.02:
        return inside, with_no_lesion(healthy)
    brain = Brain(inside, points[:, inside], healthy, _make_lookup(grid, inside, white))
    return inside, add_public_lesions(rng, brain, second=0.3)


def _draw_depth(rng: np.random.Generator, grid: VoxelGrid, points: np.ndarray) -> np.ndarray:
    """Return the depth of voxels below the surface of a rough, tapered superellipsoid."""
    axes = np.array([66, 84, 62]) * np.exp(rng.normal(0, 0.06, 3))
    power = rng.uniform(1.8, 3.2)
    x, y, z = ((points[i] - MIDDLE[i]) / axes[i] for i in range(3))
    z = np.where(z < 0, z / rng.uniform(0.5, 1.0), z)
    x = x / (1 - rng.uniform(-0.05, 0.2) * y)
    radius = np.maximum(sum(np.abs(coordinate) ** power for coordinate in (x, y, z)) ** (1 / power), 0.05)
    rough = rng.uniform(0, 4)
    return np.asarray((1 - radius) * 75 + rough * smooth_field(rng, grid, rng.uniform(25, 60)))


def _draw_cortex(
    rng: np.random.Generator, grid: VoxelGrid, points: np.ndarray, depth: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of every voxel that is not fluid, and the share that is neither fluid nor cortex."""
    half, ribbon = rng.uniform(0.3, 2.0), rng.uniform(2.0, 5.0)
    sheets: list[tuple[Any, ...]] = [(depth, rng.uniform(0.5, 3.5), 1.0, ribbon)]
    for _ in range(rng.integers(1, 3)):
        reach = rng.uniform(8, 32)
        folds = _distance_to_zeros(rng, grid, rng.uniform(9, 28))
        sheets.append((folds, half * rng.uniform(0.5, 1.2), share_inside(reach - depth, 6.0), ribbon))
    if rng.random() < 0.85:  # a fissure near the middle, over some depth or in front and behind
        away = points[0] + rng.normal(0, 2)
        if rng.random() < 0.5:
            presence = share_inside(rng.uniform(0, 40) - depth + 15 * (rng.random() < 0.3), 8.0)
        else:
            presence = share_inside(np.abs(points[1] - MIDDLE[1]) - rng.uniform(10, 50), 8.0)
        sheets.append((away, rng.uniform(0.3, 2.2), presence, ribbon * rng.uniform(0.5, 1.0)))
    voxel = grid.voxel[0]
    tissue, deep = np.ones(grid.shape), np.ones(grid.shape)
    for distance, thin, present, cortex in sheets:
        tissue = tissue * (1 - present * share_covered(distance, thin, voxel))
        deep = deep * (1 - present * share_covered(distance, thin + cortex, voxel))
    return tissue, deep


def _distance_to_zeros(rng: np.random.Generator, grid: VoxelGrid, spacing: float) -> np.ndarray:
    """Return the signed distance to the zeros of a random field, to first order."""
    field = smooth_field(rng, grid, spacing)
    slope = np.sqrt(sum(np.square(derivative) for derivative in np.gradient(field, *grid.voxel)))
    return np.asarray(field / np.maximum(slope, 0.5 * slope.mean()))


def _draw_ventricles(rng: np.random.Generator, points: np.ndarray, voxel: float) -> np.ndarray:
    """Return the share of fluid in one to three pairs of tilted ellipsoids, which differ between the sides."""
    fluid = np.zeros(points.shape[1:])
    size = np.exp(rng.normal(0, 0.45))
    for _ in range(rng.integers(1, 4)):
        middle = np.array([abs(rng.normal(9, 5)), MIDDLE[1] + rng.normal(0, 22), MIDDLE[2] + rng.normal(0, 8)])
        axes = np.array([rng.uniform(3, 9), rng.uniform(6, 28), rng.uniform(5, 16)]) * size
        for side in (-1, 1):
            if rng.random() < 0.05:
                continue
            half_axes, tilt = axes * np.exp(rng.normal(0, 0.1)), rng.normal(0, 0.3)
            x, y, z = side * points[0] - middle[0], points[1] - middle[1], points[2] - middle[2]
            x = x - tilt * y * 0.5
            radius = np.sqrt((x / half_axes[0]) ** 2 + (y / half_axes[1]) ** 2 + (z / half_axes[2]) ** 2)
            fluid = np.maximum(fluid, share_inside((1 - radius) * half_axes.min(), voxel))
    return fluid


def _make_lookup(grid: VoxelGrid, inside: np.ndarray, white: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function for the share of white matter in the voxel nearest to a point, zero outside the brain."""

    def at(points: np.ndarray) -> np.ndarray:
        nearest = [
            (coordinate - axis[0]) / (axis[1] - axis[0]) for coordinate, axis in zip(points, grid.axes(), strict=True)
        ]
        index = tuple(np.clip(np.rint(n).astype(int), 0, side - 1) for n, side in zip(nearest, grid.shape, strict=True))
        return np.where(inside[index], white[index], 0)

    return at
