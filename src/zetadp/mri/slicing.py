"""Choice of the centre slices of a volume, and resizing of slices.

Reading of files is in `zetadp.mri.volumes`, because stages that simulate need no package that reads volumes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


def centre_slices(depth: int, count: int) -> slice:
    """Return the slice of the ``count`` centre indices of an axis of length ``depth``; `ValueError` if it is shorter.

    Examples
    --------
    >>> centre_slices(155, 20)
    slice(67, 87, None)
    """
    if count > depth:
        raise ValueError(f"Expected at least {count} axial slices, found {depth}.")
    start = (depth - count) // 2
    return slice(start, start + count)


def as_magnitudes(slices: np.ndarray) -> np.ndarray:
    """Undo the subtraction of a mean: give a sequence that has negative intensities those of a magnitude image.

    Volumes are often stored as z-scores, of the whole volume or of the brain alone. A network that learnt from
    magnitudes has never seen a background that is as bright as the brain or brighter. Here the background, which is the
    most frequent value, becomes 0, and the darkest other voxel too. The scale stays: whitening removes it.

    Parameters
    ----------
    slices
        Intensities of one sequence of one person, of shape (slice, row, column).

    Returns
    -------
    The same array if nothing in it is negative.
    """
    if not slices.min() < 0:  # NaN included
        return slices
    values, counts = np.unique(slices, return_counts=True)
    background = values[counts.argmax()]
    darkest = values[values != background].min(initial=values[-1])
    return np.where(slices == background, 0, slices - darkest).astype(slices.dtype)


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
