"""From a volume on disk to small axial images in one orientation and order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from zetadp.base.validation import UserError
from zetadp.mri.decathlon import SEQUENCES, Volume, channels_of, read_volume
from zetadp.mri.slicing import as_magnitudes, centre_slices, resize_area

MOST_NAMED = 5
"""Number of bad slices that a message names."""


def read_centre_slices(path: Path, order: Sequence[str], count: int = 20, size: int = 32) -> np.ndarray:
    """Read the centre axial slices of a four-dimensional volume as small images.

    Parameters
    ----------
    path
        NIfTI volume with axes (x, y, z, channel), in any orientation.
    order
        Canonical names of its sequences, one a channel, in the order of the file.
    count
        Number of centre slices along the inferior-superior axis.
    size
        Number of rows and of columns of the images. Slices are resized by area averaging.

    Returns
    -------
    float32 array of shape (sequence, slice, row, column), in the units of the file (``scl_slope`` and ``scl_inter``
    applied). A sequence with negative intensities goes through `as_magnitudes` first. Sequences are in canonical order,
    slices run from inferior to superior, rows from anterior to posterior and columns from the patient's left to the
    right: a picture of an image shows anterior up and left on the left. Oblique volumes get the nearest canonical
    orientation by exchange and reversal of axes, without interpolation.

    Raises
    ------
    UserError
        For everything that `read_volume` refuses, for truncated or altered files, and for slices that are constant,
        empty or not finite.
    ValueError
        If ``order`` does not have each sequence once.
    """
    if sorted(order) != sorted(SEQUENCES):
        raise ValueError(f"Expected order to hold each of {', '.join(SEQUENCES)} once, found {', '.join(order)}.")
    volume = read_volume(path, channels=len(order), slices=count)
    kept = centre_slices(volume.axial_slices, count)
    images = np.empty((len(order), count, size, size), dtype=np.float32)
    faults: list[str] = []
    for channel, name in zip(_canonical_channels(volume), order, strict=True):
        slices = np.transpose(channel[:, ::-1, kept], (2, 1, 0))
        faults += _faults(slices, name, first=kept.start, empty=-volume.intercept / volume.slope)
        if not faults:
            images[SEQUENCES.index(name)] = _resized(slices, volume, size)
    if faults:
        more = f"; and {len(faults) - MOST_NAMED} more" if len(faults) > MOST_NAMED else ""
        raise UserError(
            f"Expected {count} centre slices with finite, varying intensities in {path}, found "
            f"{'; '.join(faults[:MOST_NAMED])}{more} (slices counted from inferior, from 0). "
            "Correct the volume or leave the record out."
        )
    return images


def _resized(slices: np.ndarray, volume: Volume, size: int) -> np.ndarray:
    """Return small images of one sequence, none of whose voxels is negative."""
    ends = (volume.slope * float(end) + volume.intercept for end in (slices.min(), slices.max()))
    if min(ends) < 0:
        shown = volume.slope * slices.astype(np.float64) + volume.intercept
        return resize_area(as_magnitudes(shown.astype(np.float32)), size)
    # Averaging and scaling commute; scaling the small images is cheaper.
    return np.asarray(volume.slope * resize_area(slices, size) + volume.intercept)


def _canonical_channels(volume: Volume) -> Iterator[np.ndarray]:
    """Yield each channel as a view of shape (right, anterior, superior); it is valid until the next one."""
    import nibabel as nib

    for channel in channels_of(volume):
        yield nib.apply_orientation(channel, volume.orientation)  # type: ignore[no-untyped-call]


def _faults(slices: np.ndarray, name: str, *, first: int, empty: float) -> list[str]:
    """Describe the slices of shape (slice, row, column) that carry no usable image."""
    low, high = slices.min(axis=(1, 2)), slices.max(axis=(1, 2))
    faults = []
    for index, (least, most) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if not (np.isfinite(least) and np.isfinite(most)):
            faults.append(f"{name} slice {first + index} holds NaN or infinite values")
        elif least == most:
            faults.append(f"{name} slice {first + index} is {'empty' if least == empty else 'constant'}")
    return faults
