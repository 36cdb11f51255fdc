r"""From the space of a patient to the space of the atlas: a random affine map plus a random smooth displacement.

What is drawn does not depend on the grid, so a patient has the same anatomy at any resolution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zetadp.phantom.anatomy import VENTRICLES
from zetadp.phantom.grid import CENTRE, FIELD_OF_VIEW, VoxelGrid

SPLINE_VARIANCE = 151 / 315
"""Integral of the squared cubic B-spline: the mean variance that one axis leaves of independent unit coefficients."""
VENTRICLE_REACH = np.array([26.0, 42.0, 24.0])
"""Distances (mm along x, y, z) over which swelling of the ventricles pushes the tissue around them."""


def spline_weights(positions: np.ndarray, length: float, spacing: float) -> np.ndarray:
    """Return the matrix of uniform cubic B-splines at given positions.

    Parameters
    ----------
    positions
        Places (n,) in mm, measured from the middle of an interval of the given length.
    length, spacing
        Length of the interval, and distance of two knots, in mm.

    Returns
    -------
    Array (n, knots), float32. Rows sum to one inside the interval.
    """
    knots = int(np.ceil(length / spacing)) + 3
    t = (positions + length / 2) / spacing + 1
    distance = np.abs(t[:, None] - np.arange(knots))
    inner = 2 / 3 - distance**2 + distance**3 / 2
    outer = np.clip(2 - distance, 0, None) ** 3 / 6
    return np.asarray(np.where(distance < 1, inner, outer), dtype=np.float32)


def smooth_field(rng: np.random.Generator, grid: VoxelGrid, spacing: float) -> np.ndarray:
    """Draw a smooth random scalar field of mean 0 and variance 1 (on average over space).

    Parameters
    ----------
    rng
        Source of the spline coefficients; their number depends on ``spacing`` only, not on the grid.
    grid
        Where to evaluate the field.
    spacing
        Distance of two knots in mm: about the size of the smallest bump.

    Returns
    -------
    Array of the grid's shape, float32: a tensor product of cubic B-splines.
    """
    x, y, z = (
        spline_weights(axis - centre, length, spacing)
        for axis, centre, length in zip(grid.axes(), CENTRE, FIELD_OF_VIEW, strict=True)
    )
    coefficients = rng.standard_normal((x.shape[1], y.shape[1], z.shape[1]), dtype=np.float32)
    field = np.einsum("ai,ijk,bj,ck->abc", x, coefficients, y, z, optimize=True)
    return np.asarray(field * SPLINE_VARIANCE**-1.5, dtype=np.float32)


@dataclass(frozen=True)
class Variability:
    """Variation of shape between patients, as standard deviations unless stated otherwise.

    Attributes
    ----------
    rotation
        Rotation about each axis, in degrees: what remains after rigid registration to an atlas, as in the Decathlon
        brain task.
    scale
        Relative size along each axis, which rigid registration leaves as it is.
    shift
        Displacement along each axis that remains after registration, in mm.
    displacements
        Pairs of (knot spacing, standard deviation), both in mm, of the smooth displacements that are added up.
    ventricles
        Lowest and highest swelling of the ventricles, as a fraction of their width.
    """

    rotation: float = 2.0
    scale: float = 0.05
    shift: float = 1.5
    displacements: tuple[tuple[float, float], ...] = ((60.0, 5.0), (25.0, 2.0))
    ventricles: tuple[float, float] = (-0.15, 0.4)


def rotation_matrix(angles: np.ndarray) -> np.ndarray:
    """Return the rotation (3, 3) about x, then y, then z by the given angles in radians."""
    matrix = np.eye(3)
    for axis, angle in enumerate(angles):
        turn = np.eye(3)
        i, j = (axis + 1) % 3, (axis + 2) % 3
        turn[i, i] = turn[j, j] = np.cos(angle)
        turn[i, j], turn[j, i] = -np.sin(angle), np.sin(angle)
        matrix = turn @ matrix
    return matrix


def atlas_coordinates(rng: np.random.Generator, grid: VoxelGrid, variability: Variability | None = None) -> np.ndarray:
    r"""Draw one patient's shape and return where each voxel lies in the atlas.

    A voxel at :math:`p` shows the atlas at :math:`w(c + R\,S\,(p - c) + t + \sum_i d_i(p))`, with rotation
    :math:`R`, scaling :math:`S`, shift :math:`t`, smooth displacements :math:`d_i`, and the map :math:`w` that
    magnifies the neighbourhood of the ventricles.

    Returns
    -------
    Array (3, x, y, z) of MNI coordinates in mm, float32.
    """
    spread = variability or Variability()
    turn = rotation_matrix(np.deg2rad(rng.normal(0.0, spread.rotation, 3)))
    matrix = turn @ np.diag(np.exp(rng.normal(0.0, spread.scale, 3)))
    shift = rng.normal(0.0, spread.shift, 3)
    swelling = rng.uniform(*spread.ventricles)

    centre = np.array(CENTRE)
    x, y, z = (np.asarray(axis - middle, dtype=np.float32) for axis, middle in zip(grid.axes(), centre, strict=True))
    place = np.empty((3, *grid.shape), dtype=np.float32)
    for i in range(3):
        along = matrix[i].astype(np.float32)
        place[i] = along[0] * x[:, None, None] + along[1] * y[:, None] + along[2] * z
        place[i] += np.float32(centre[i] + shift[i])
        for spacing, size in spread.displacements:
            place[i] += np.float32(size) * smooth_field(rng, grid, spacing)
    return magnify_ventricles(place, swelling)


def magnify_ventricles(place: np.ndarray, swelling: float) -> np.ndarray:
    """Pull atlas coordinates (3, ...) toward the middle of the ventricles, so that these appear larger."""
    shape = (3,) + (1,) * (place.ndim - 1)
    from_middle = place - np.array(VENTRICLES, dtype=np.float32).reshape(shape)
    reach = np.square(from_middle / VENTRICLE_REACH.astype(np.float32).reshape(shape)).sum(axis=0)
    return np.asarray(place - np.float32(swelling) * np.exp(-reach / 2) * from_middle, dtype=np.float32)
