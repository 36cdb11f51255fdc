"""Choice of the centre slices of a volume, their intensities, and resizing of slices.

Reading of files is in `zetadp.mri.nifti`, because stages that simulate need no package that reads volumes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from zetadp.base.validation import Within

TAIL = 0.001
"""Share of the voxels at each end of a sequence's intensities that do not count as its range."""
FAR = 4
"""Number of lengths of the range beyond which a voxel is not a measurement."""
FEWEST_VALUES = 16
"""Fewest different values of a scan. Masks and label maps have fewer."""
SATURATED = 0.1
"""Largest share of a scan's voxels above the lowest value that have the largest value, to one in a thousand. In a map
of tissue probability more have, inside the tissue.
"""
OVERSHOOT = 0.1
"""Largest share of negative intensity of a magnitude image. Of scores, whose mean is zero, about half is negative."""


PlaneCount = Annotated[int, Within(ge=1, le=1000)]
PLANES, SPACING = 20, 1.0
"""Default number of the planes that slices are taken from, and their distance in mm."""
SIZE = 32
"""Default number of rows and of columns of the images."""


def centre_slices(depth: int, count: int, step: float = 1.0) -> np.ndarray:
    """Return the indices of the slices nearest to ``count`` equidistant planes around the middle of an axis.

    Nothing is interpolated. Where slices are thicker than the distance of the planes, several planes have one slice. A
    plane half-way between two slices has the lower one.

    Parameters
    ----------
    depth
        Number of slices along the axis.
    count
        Number of planes.
    step
        Distance of two planes, in slices.

    Raises
    ------
    ValueError
        If a plane lies outside of all slices.

    Examples
    --------
    >>> centre_slices(155, 4), centre_slices(24, 4, step=1 / 6)
    (array([75, 76, 77, 78]), array([11, 11, 12, 12]))
    """
    planes = (depth - 1) / 2 + (np.arange(count) - (count - 1) / 2) * step
    # Headers hold distances in single precision, whose rounding must not decide between two slices.
    nearest = np.ceil(np.round(planes, 3) - 0.5).astype(int)
    if nearest[0] < 0 or nearest[-1] >= depth:
        least = int(np.round((count - 1) * step, 3)) + 1
        raise ValueError(f"expected at least {least} axial slices, found {depth}")
    return nearest


def within_range(slices: np.ndarray) -> np.ndarray:
    """Set the few voxels that are far out of the range of all others to the end of that range.

    A single hot voxel or sentinel would take the contrast of a whole image. The range is that of all but a thousandth
    of the voxels at each end. A voxel is far out if it lies more than four times the length of that range beyond it,
    which no tissue, vessel or contrast agent does.

    Parameters
    ----------
    slices
        Finite intensities of one sequence of one person, of shape (slice, row, column).

    Returns
    -------
    The same array if no voxel is far out.
    """
    low, high = _find_range(slices)
    reach = FAR * (high - low)
    if reach == 0 or (slices.min() >= low - reach and slices.max() <= high + reach):
        return slices
    far = (slices < low - reach) | (slices > high + reach)
    return np.asarray(np.where(far, np.clip(slices, low, high), slices), dtype=slices.dtype)


def as_magnitudes(slices: np.ndarray) -> np.ndarray:
    """Convert a sequence with negative intensities to the intensities of a magnitude image.

    Three kinds of such sequences exist. Resampled magnitudes overshoot a little below zero: their negative voxels
    become 0. A fill value far below all others marks where nothing was measured: it becomes 0. And volumes are often
    stored as z-scores, of the whole volume or of the brain alone. A network that learnt from magnitudes has never seen
    a background that is as bright as the brain or brighter. Of scores the background, which is the most frequent value,
    becomes 0, and the darkest other voxel too. The scale stays: whitening removes it.

    Parameters
    ----------
    slices
        Finite intensities of one sequence of one person, of shape (slice, row, column).

    Returns
    -------
    The same array if nothing in it is negative.
    """
    if not slices.min() < 0:
        return slices
    values, counts = np.unique(slices, return_counts=True)
    background = values[counts.argmax()]
    if len(values) > 2 and background != values[0] and counts[0] > TAIL * slices.size:
        low, high = _find_range(slices[slices > values[0]])
        if values[1] - values[0] > (high - low) / 4:
            filled = slices == values[0]
            return as_magnitudes(np.where(filled, np.clip(background, 0, None), slices).astype(slices.dtype))
    low, high = _find_range(slices)
    usual = np.clip(slices[slices != background], low, high)
    overshoots = -usual[usual < 0].sum(dtype=float) <= OVERSHOOT * np.abs(usual).sum(dtype=float)
    # Without a frequent value, as with noise, no value counts as background.
    if overshoots and not (background < 0 and counts.max() > TAIL * slices.size):
        return np.asarray(np.maximum(slices, 0))
    darkest = values[values != background].min(initial=values[-1])
    if darkest < low - (high - low) / 2:
        darkest = low
    return np.where(slices == background, 0, np.clip(slices - darkest, 0, None)).astype(slices.dtype)


def implausible(images: np.ndarray) -> bool:
    """Return whether three quarters of the positive pixels of a sequence take less than 0.5 % of its range.

    No image of a head has this property; a region with a fill value or a file that is not an image has.
    """
    positive = images[images > 0]
    return bool(positive.size) and bool(np.quantile(positive, 0.75) < 0.005 * _find_range(positive)[1])


def not_measured(values: np.ndarray) -> str:
    """Return why no scanner measured these intensities, such as those of a mask, or an empty text.

    Parameters
    ----------
    values
        Finite intensities of one sequence of one person, in any shape and unit.
    """
    flat = values.ravel(order="K")
    # Finding all values of a volume means sorting it; a few thousand voxels of a scan have enough.
    if (
        len(np.unique(flat[:: max(1, flat.size // 4096)])) < FEWEST_VALUES
        and len(unique := np.unique(flat)) < FEWEST_VALUES
    ):
        number = "one value in all voxels" if len(unique) == 1 else f"{len(unique)} different values"
        return f"{number}, as in a mask or label map"
    low, high = float(flat.min()), float(flat.max())
    if high > 0 and np.count_nonzero(flat >= 0.999 * high) > SATURATED * np.count_nonzero(flat > low):
        return "many voxels at its largest value, as in a map of tissue probability"
    return ""


def _find_range(values: np.ndarray) -> tuple[float, float]:
    """Return the range of all but a thousandth of the values at each end."""
    flat = values.ravel()
    tail = int(TAIL * flat.size)
    ordered = np.partition(flat, (tail, flat.size - 1 - tail))
    return float(ordered[tail]), float(ordered[flat.size - 1 - tail])


def area_weights(size: int, target: int) -> np.ndarray:
    """Return the (target, size) matrix that averages ``size`` samples over ``target`` equal intervals.

    The weight of a sample is the share of the interval that it covers, so each row sums to one. This is the area resize
    of image libraries, for any ratio of sizes.
    """
    edges = np.linspace(0.0, size, target + 1)
    index = np.arange(size)
    overlap = np.minimum(edges[1:, None], index + 1) - np.maximum(edges[:-1, None], index)
    return np.asarray(np.clip(overlap, 0.0, None) * (target / size))


def resize_area(images: np.ndarray, target: int) -> np.ndarray:
    """Resize images of shape (..., row, column) to (..., target, target) by area averaging; the result is float32.

    Sums are in double precision, because a thousand terms in single precision would lose three digits. Nearly all area
    weights are zero, so the product is sparse, and needs no threads. A dense product would use the threads of the BLAS
    library, and on busy cores would take longer than the decompression of a volume.
    """
    *leading, rows, columns = images.shape
    averages = images.reshape(-1, rows * columns) @ _area_matrix(rows, columns, target)
    return np.asarray(averages, dtype=np.float32).reshape(*leading, target, target)


@lru_cache(maxsize=8)
def _area_matrix(rows: int, columns: int, target: int) -> Any:  # noqa: ANN401  (scipy is untyped)
    """Return the sparse (rows x columns, target x target) matrix that averages flattened images."""
    from scipy import sparse

    along_rows = sparse.csr_array(area_weights(rows, target))
    along_columns = sparse.csr_array(area_weights(columns, target))
    return sparse.kron(along_rows, along_columns, format="csr").T
