"""The surroundings of a public patient's brain: fluid, bone with marrow, muscle, fat, skin, eyes and sinuses.

Real volumes come with the whole head, with the brain alone, or with a mask that cuts somewhere between the two. Layers
follow the distance from the surface of the brain. Their thickness varies over the head and between patients about twice
as much as in adults. Fat relaxes fast and is bright in most sequences unless it is suppressed; bone gives no signal.
Properties of muscle and fat are drawn around those of de Bazelaire et al., Radiology 230 (2004) 652-659,
doi:10.1148/radiol.2303021331, over the usual fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np
from scipy import ndimage

from zetadp.phantom.anatomy import smooth_field
from zetadp.phantom.procedural import share_inside
from zetadp.phantom.scanners import Tissues
from zetadp.phantom.settings import CHANNELS, VoxelGrid


class Layer(IntEnum):
    """Tissues around the brain, from the inside to the outside, in the order of the rows of their fractions."""

    FLUID = 0
    INNER_BONE = 1
    MARROW = 2
    OUTER_BONE = 3
    MUSCLE = 4
    FAT = 5
    SKIN = 6


THICKNESS = {
    Layer.FLUID: (0.5, 5.0),
    Layer.INNER_BONE: (0.8, 2.0),
    Layer.MARROW: (0.2, 4.0),
    Layer.OUTER_BONE: (0.8, 2.0),
    Layer.MUSCLE: (0.3, 2.0),
    Layer.FAT: (1.0, 8.0),
    Layer.SKIN: (1.0, 2.5),
}
"""Least and largest mean thickness of each layer, in mm."""
TEMPLE, TEMPORAL = 70.0, 12.0
"""Angle from the front (degrees) at which the temporal muscle lies, and its largest thickness (mm)."""
ORBITS, SINUS = 0.35, 0.35
"""Share of heads whose slices show the eyes, and a frontal sinus."""
SUPPRESSED = dict(zip(CHANNELS, (0.25, 0.15, 0.3, 0.25), strict=True))
"""Share of the images of each sequence in which fat is suppressed."""


@dataclass(frozen=True)
class Head:
    """The surroundings of a brain on a grid.

    Attributes
    ----------
    distance
        Signed distance (mm) of each voxel from the surface of the brain, without its sulci and ventricles; positive
        outside. Shape (x, y, z), float32.
    fractions
        Fractions of the `Layer` tissues, shape (7, x, y, z), float32; zero in the brain and in air.
    """

    distance: np.ndarray
    fractions: np.ndarray

    def visible(self, rng: np.random.Generator) -> np.ndarray:
        """Draw a crude mask: it cuts within the brain in some places, and leaves bone or scalp in others."""
        grid = VoxelGrid((self.distance.shape[0], self.distance.shape[1], self.distance.shape[2]))
        edge = rng.uniform(-3, 10) + rng.uniform(0.5, 6) * smooth_field(rng, grid, rng.uniform(25, 70))
        return np.asarray(self.distance < edge)


def distance_from(inside: np.ndarray, grid: VoxelGrid) -> np.ndarray:
    """Return the signed distance (mm) of each voxel from the surface of the brain, positive outside, float32."""
    disc = np.hypot(*np.mgrid[-2:3, -2:3]) < 2.5
    padded = np.pad(inside, ((3, 3), (3, 3), (0, 0)))
    closed = ndimage.binary_closing(padded, disc[:, :, None])[3:-3, 3:-3]
    filled = ndimage.binary_fill_holes(closed | inside, np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]])[:, :, None])
    outside = ndimage.distance_transform_edt(~filled, sampling=grid.voxel)
    within = ndimage.distance_transform_edt(filled, sampling=grid.voxel)
    # Distances are to the middle of the nearest voxel on the other side of the surface.
    signed = np.where(filled, grid.voxel[0] / 2 - within, outside - grid.voxel[0] / 2)
    return np.asarray(ndimage.gaussian_filter(signed, (0.8, 0.8, 1.5)), dtype=np.float32)


def draw_head(rng: np.random.Generator, grid: VoxelGrid, inside: np.ndarray) -> Head:
    """Draw the surroundings of a brain.

    Parameters
    ----------
    rng
        Random generator of all thicknesses, eyes and sinuses.
    grid
        The voxels.
    inside
        Mask (x, y, z) of the brain.
    """
    distance = distance_from(inside, grid)
    x, y, z = np.meshgrid(*grid.axes(), indexing="ij", sparse=True)
    middle = [float(axis[index].mean()) for axis, index in zip(grid.axes(), np.nonzero(inside), strict=True)]
    from_front = np.degrees(np.arctan2(np.abs(x - middle[0]), y - middle[1]))
    temporal = rng.uniform(0, TEMPORAL) * np.exp(-np.square((from_front - TEMPLE) / 25) / 2)
    edges = [np.zeros_like(distance)]
    for layer in Layer:
        thickness = rng.uniform(*THICKNESS[layer]) * np.exp(0.3 * smooth_field(rng, grid, rng.uniform(40, 90)))
        edges.append(edges[-1] + thickness + (temporal if layer == Layer.MUSCLE else 0))
    # Share of a voxel that lies outside of each surface; the difference of two is the share of the layer between them.
    beyond = [share_inside(distance - edge, grid.voxel[0]) for edge in edges]
    fractions = np.stack([inner - outer for inner, outer in pairwise(beyond)]).astype(np.float32)
    front = float(grid.axes()[1][np.nonzero(inside)[1]].max())
    low = float(grid.axes()[2].min())
    if rng.random() < ORBITS:
        eye_distance, height = rng.uniform(28, 36), low + rng.uniform(-14, 14)
        for side in (-1, 1):
            offsets = (x - middle[0] - side * eye_distance, y - front + rng.uniform(2, 14), z - height)
            radius = np.sqrt(sum(offset**2 for offset in offsets))
            _fill(fractions, share_inside(rng.uniform(16, 22) - radius, grid.voxel[0]), Layer.FAT)
            _fill(fractions, share_inside(rng.uniform(10, 13) - radius, grid.voxel[0]), Layer.FLUID)
    if rng.random() < SINUS:
        width, depth, height = rng.uniform(8, 30), rng.uniform(3, 9), rng.uniform(10, 40)
        offsets = ((x - middle[0]) / width, (y - front - depth) / depth, (z - low) / height)
        radius = np.sqrt(sum(offset**2 for offset in offsets))
        _fill(fractions, share_inside((1 - radius) * depth, grid.voxel[0]), None)
    fractions *= ~inside
    return Head(distance, fractions)


def _fill(fractions: np.ndarray, filled: np.ndarray, layer: Layer | None) -> None:
    """Replace everything in a share of each voxel by one tissue, or by air (in place)."""
    fractions *= (1 - filled).astype(np.float32)
    if layer is not None:
        fractions[layer] += filled.astype(np.float32)


def draw_head_tissues(rng: np.random.Generator, relaxivity: float) -> Tissues:
    """Draw the properties of the `Layer` tissues; arrays (7,) in their order."""
    fat_t1, fat_t2 = rng.uniform(230, 420), rng.uniform(55, 170)
    muscle_t1, muscle_t2 = 1100 * np.exp(rng.normal(0, 0.2)), rng.uniform(28, 50)
    marrow, muscle, fat, skin = (rng.uniform(*ends) for ends in ((0.15, 0.9), (0.65, 0.85), (0.8, 1.0), (0.4, 0.8)))
    marrow_t1, skin_t1 = fat_t1 * rng.uniform(1.0, 1.6), muscle_t1 * rng.uniform(0.5, 1)
    marrow_t2 = fat_t2 * rng.uniform(0.6, 1)
    return Tissues(
        density=np.array([1.0, 0.05, marrow, 0.05, muscle, fat, skin]),
        t1=np.array([4300.0, 400.0, marrow_t1, 400.0, muscle_t1, fat_t1, skin_t1]),
        t2=np.array([2000.0, 1.0, marrow_t2, 1.0, muscle_t2, fat_t2, muscle_t2]),
        uptake=np.exp(rng.normal(0, 0.5, len(Layer))) * np.array([0.002, 0.01, 0.02, 0.01, 0.05, 0.01, 0.1]),
        relaxivity=relaxivity,
    )


def suppress_fat(rng: np.random.Generator, signal: np.ndarray, sequence: str) -> np.ndarray:
    """Return the signal (7,) of the `Layer` tissues in one image, in some images with suppressed fat."""
    weights = np.ones(len(Layer), dtype=np.float32)
    if rng.random() < SUPPRESSED[sequence]:
        weights[[Layer.MARROW, Layer.FAT]] = rng.uniform(0, 0.4)
    return np.asarray(weights * signal, dtype=np.float32)
