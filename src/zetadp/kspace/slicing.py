"""From volumes to small axial slices: which slices, and how they are resized."""

from __future__ import annotations

import numpy as np


def centre_slices(depth: int, count: int) -> slice:
    """Return the ``count`` centre indices of an axis of length ``depth``.

    Examples
    --------
    >>> centre_slices(155, 20)
    slice(67, 87, None)
    """
    if count > depth:
        msg = f"Expected at least {count} axial slices, found {depth}."
        raise ValueError(msg)
    start = (depth - count) // 2
    return slice(start, start + count)


def area_weights(size: int, target: int) -> np.ndarray:
    """Return the (target, size) matrix that averages ``size`` samples over ``target`` equal intervals.

    Each row sums to one and weighs a sample by the share of the interval that it covers; this is the area resize of
    image libraries, for any ratio of sizes.
    """
    edges = np.linspace(0.0, size, target + 1)
    index = np.arange(size)
    overlap = np.minimum(edges[1:, None], index + 1) - np.maximum(edges[:-1, None], index)
    return np.asarray(np.clip(overlap, 0.0, None) * (target / size), dtype=np.float32)


def resize_area(images: np.ndarray, target: int) -> np.ndarray:
    """Resize images of shape (..., row, column) to (..., target, target) by area averaging, in float32."""
    rows, columns = area_weights(images.shape[-2], target), area_weights(images.shape[-1], target)
    return np.asarray(rows @ np.asarray(images, dtype=np.float32) @ columns.T)
