"""Implicit shapes: how deep a place lies below a surface, and which share of a voxel that makes.

Places are arrays (3, n) in mm. Distances are exact or right to first order near the surface, where they matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np


def inside(depth: np.ndarray, voxel: float) -> np.ndarray:
    """Return the share of a voxel on the inner side of a plane at the given depth."""
    return np.asarray(np.clip(depth / voxel + 0.5, 0, 1))


def covered(distance: np.ndarray, half: float, voxel: float) -> np.ndarray:
    """Return the share of a voxel that a sheet covers.

    Parameters
    ----------
    distance
        Signed distance of the voxel's middle from the middle of the sheet.
    half
        Half the thickness of the sheet.
    voxel
        Size of the voxel, which lies parallel to the sheet.
    """
    low, high = distance - voxel / 2, distance + voxel / 2
    return np.asarray((np.clip(high, -half, half) - np.clip(low, -half, half)) / voxel)


def zeros_of_waves(place: np.ndarray, frequencies: np.ndarray, phases: np.ndarray) -> np.ndarray:
    """Return the signed distance to the zeros of a sum of plane waves, to first order."""
    angle = frequencies.T.astype(np.float32) @ place.astype(np.float32) + phases.astype(np.float32)[:, None]
    slope = np.linalg.norm(frequencies.astype(np.float32) @ np.sin(angle), axis=0)
    # Where the field is flat the zeros are far, however small its value is.
    least = 0.3 * np.sqrt(np.square(frequencies).sum() / 2)
    return np.asarray(np.cos(angle).sum(axis=0) / np.maximum(slope, least), dtype=float)


def superellipsoid(reduced: tuple[np.ndarray, ...], axes: tuple[np.ndarray | float, ...], power: float) -> np.ndarray:
    """Return the depth, to first order, below the surface where the coordinates over the half-axes have norm one."""
    norm = np.maximum(sum(np.abs(each) ** power for each in reduced) ** (1 / power), 0.05)
    slope = np.sqrt(
        sum(((np.abs(each) / norm) ** (power - 1) / axis) ** 2 for each, axis in zip(reduced, axes, strict=True))
    )
    return np.asarray((1 - norm) / np.maximum(slope, 1e-3))


def ellipsoid(place: Iterable[np.ndarray], centre: tuple[float, ...], axes: tuple[float, ...]) -> np.ndarray:
    """Return the depth, to first order, below the surface of an ellipsoid."""
    reduced = tuple((each - middle) / axis for each, middle, axis in zip(place, centre, axes, strict=True))
    return superellipsoid(reduced, axes, 2.0)


def capsule(
    place: np.ndarray, start: np.ndarray, end: np.ndarray, first: np.ndarray | float, last: np.ndarray | float
) -> np.ndarray:
    """Return the distance from a rod that tapers from one radius to another; negative within."""
    along = end - start
    t = np.clip((place - start[:, None]).T @ along / (along @ along), 0, 1)
    nearest = start[:, None] + along[:, None] * t
    return np.asarray(np.linalg.norm(place - nearest, axis=0) - (first + (last - first) * t))


def tube(place: np.ndarray, points: tuple[tuple[float, ...], ...], size: np.ndarray | float) -> np.ndarray:
    """Return the distance from a chain of rods with points (x, y, z, radius); negative within."""
    rods = [capsule(place, np.array(a[:3]), np.array(b[:3]), a[3] * size, b[3] * size) for a, b in pairwise(points)]
    return np.asarray(np.min(rods, axis=0))
