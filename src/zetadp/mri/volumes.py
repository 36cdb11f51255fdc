"""Small axial images of volumes, in one orientation and as magnitudes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zetadp.base.validation import UserError
from zetadp.mri.decathlon import SEQUENCES
from zetadp.mri.nifti import MOST_NAMED, Volume, read_volume, read_voxels
from zetadp.mri.slicing import PLANES, SIZE, SPACING, as_magnitudes, implausible, resize_area, within_range


def read_centre_slices(
    path: Path,
    order: Sequence[str],
    count: int = PLANES,
    size: int = SIZE,
    spacing: float = SPACING,
    *,
    sha256: str | None = None,
) -> np.ndarray:
    """Read the centre axial slices of a record as small images.

    Parameters
    ----------
    path
        NIfTI volume with axes (x, y, z, channel), in any orientation.
    order
        Canonical names of the sequences that it holds, each once, in the order of the file.
    count, size, spacing, sha256
        As in `centre_images`.

    Returns
    -------
    The result of `centre_images`, with the four sequences in canonical order. Those that the file lacks are NaN.

    Raises
    ------
    UserError
        For the reasons of `read_volume` and `centre_images`.
    """
    volume = read_volume(path, channels=len(order), slices=count, spacing=spacing)
    images = np.full((len(SEQUENCES), count, size, size), np.nan, dtype=np.float32)
    channels = centre_images(volume, order, count, size, spacing, sha256=sha256)
    images[[SEQUENCES.index(name) for name in order]] = channels
    return images


def centre_images(
    volume: Volume,
    names: Sequence[str],
    count: int,
    size: int,
    spacing: float,
    *,
    sha256: str | None = None,
) -> np.ndarray:
    """Read the centre axial slices of every channel of a volume as small images: `images_of` its voxels.

    Parameters
    ----------
    volume, names, count, size, spacing
        As in `images_of`.
    sha256
        As in `read_voxels`.

    Raises
    ------
    ChangedError
        As `read_voxels` does.
    UserError
        For truncated or altered files, and for the reasons of `images_of`.
    """
    volume.centre_slices(count, spacing)  # before the file is read
    return images_of(volume, read_voxels(volume, sha256), names, count, size, spacing)


def images_of(
    volume: Volume, voxels: np.ndarray, names: Sequence[str], count: int, size: int, spacing: float
) -> np.ndarray:
    """Return the centre axial slices of every channel of a volume as small images.

    Parameters
    ----------
    volume
        Header of the volume, in any orientation.
    voxels
        Its voxels as stored, shape (x, y, z, channel).
    names
        Names of its channels, for messages.
    count
        Number of centre planes along the inferior-superior axis. The image of a plane is that of the nearest slice, so
        planes that are closer than the slices share images (`Volume.centre_slices`).
    size
        Number of rows and of columns of the images. Slices are resized by area averaging.
    spacing
        Distance of two planes in mm.

    Returns
    -------
    float32 array of shape (channel, slice, row, column), in the units of the file (``scl_slope`` and ``scl_inter``
    applied). Voxels far out of the range of the others are set to the end of that range (`within_range`), and a channel
    with negative intensities goes through `as_magnitudes`. Slices run from inferior to superior, rows from anterior to
    posterior and columns from the patient's left to the right: a picture of an image shows anterior up and left on the
    left. Oblique volumes get the nearest canonical orientation by exchange and reversal of axes, without interpolation.

    Raises
    ------
    UserError
        For slices that are constant, empty or not finite, and for channels whose intensities are not those of a head
        (`implausible`).
    """
    import nibabel as nib

    indices, of_planes = np.unique(volume.centre_slices(count, spacing), return_inverse=True)
    images = np.empty((len(names), len(indices), size, size), dtype=np.float32)
    faults: list[str] = []
    canonical = nib.apply_orientation(voxels, volume.orientation)  # type: ignore[no-untyped-call]
    pictures = np.transpose(canonical[:, ::-1, indices], (3, 2, 1, 0))
    for index, (name, slices) in enumerate(zip(names, pictures, strict=True)):
        problems = _find_faults(slices, name, indices, empty=-volume.intercept / volume.slope)
        if not problems:
            images[index] = _resize(slices, volume, size)
            if implausible(images[index]):
                problems = [f"{name} with nearly all voxels at the bottom of its range, as if it held a fill value"]
        faults += problems
    if faults:
        more = f"; and {len(faults) - MOST_NAMED} more" if len(faults) > MOST_NAMED else ""
        raise UserError(
            f"Expected {count} centre slices with finite, varying intensities of a head in {volume.path}, found "
            f"{'; '.join(faults[:MOST_NAMED])}{more} (slices counted from inferior, from 0). "
            "Correct the volume or leave the record out."
        )
    return images[:, of_planes]


def _resize(slices: np.ndarray, volume: Volume, size: int) -> np.ndarray:
    """Return small images of one channel, without negative pixels."""
    slices = within_range(slices)
    ends = (volume.slope * float(end) + volume.intercept for end in (slices.min(), slices.max()))
    if min(ends) < 0:
        intensities = volume.slope * slices.astype(np.float64) + volume.intercept
        return resize_area(as_magnitudes(intensities.astype(np.float32)), size)
    # Averaging and scaling commute; scaling the small images is cheaper.
    return np.asarray(volume.slope * resize_area(slices, size) + volume.intercept)


def _find_faults(slices: np.ndarray, name: str, numbers: np.ndarray, *, empty: float) -> list[str]:
    """Describe the slices of shape (slice, row, column) that carry no usable image, by their numbers."""
    low, high = slices.min(axis=(1, 2)), slices.max(axis=(1, 2))
    faults = []
    for number, least, most in zip(numbers.tolist(), low.tolist(), high.tolist(), strict=True):
        if not (np.isfinite(least) and np.isfinite(most)):
            faults.append(f"{name} slice {number} holds NaN or infinite values")
        elif least == most:
            faults.append(f"{name} slice {number} is {'empty' if least == empty else 'constant'}")
    return faults
