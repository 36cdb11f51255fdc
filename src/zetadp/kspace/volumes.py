"""From a volume on disk to small axial images in one orientation and one channel order.

Reading is bound by decompression, so it goes through Intel's igzip, in one pass, one channel at a time.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from zetadp.cohort.decathlon import DAMAGED, MEND, SEQUENCES, Volume, read_volume
from zetadp.kspace.slicing import area_weights, centre_slices
from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MOST_NAMED = 5
"""How many bad slices a message names."""


def read_centre_slices(path: Path, order: Sequence[str], count: int = 20, size: int = 32) -> np.ndarray:
    """Read the centre axial slices of a four-dimensional volume as small images.

    Parameters
    ----------
    path
        NIfTI volume with axes (x, y, z, channel), in any orientation.
    order
        Canonical names of its channels, in the order of the file.
    count
        Number of centre slices along the inferior-superior axis.
    size
        Rows and columns of the images, by area averaging.

    Returns
    -------
    float32 array of shape (sequence, slice, row, column), in the units of the file (``scl_slope`` and ``scl_inter``
    applied). Sequences are in canonical order, slices run from inferior to superior, rows from anterior to posterior
    and columns from the patient's left to the right: a picture of an image shows anterior up and left on the left.
    Oblique volumes are turned by whole axes only (nearest canonical orientation); nothing is interpolated.

    Raises
    ------
    UserError
        For everything that `read_volume` refuses, for truncated or altered files, and for slices that are not finite,
        constant or empty.
    """
    if sorted(order) != sorted(SEQUENCES):
        msg = f"Expected order to hold each of {', '.join(SEQUENCES)} once, found {', '.join(order)}."
        raise ValueError(msg)
    volume = read_volume(path, channels=len(order), slices=count)
    kept = centre_slices(volume.axial_slices, count)
    images = np.empty((len(order), count, size, size), dtype=np.float32)
    faults: list[str] = []
    for channel, name in zip(_canonical_channels(volume), order, strict=True):
        slices = np.transpose(channel[:, ::-1, kept], (2, 1, 0))
        faults += _faults(slices, name, first=kept.start, empty=-volume.intercept / volume.slope)
        if not faults:
            # Averaging and scaling commute; scaling the small images is cheaper.
            images[SEQUENCES.index(name)] = volume.slope * _resize(slices, size) + volume.intercept
    if faults:
        more = f"; and {len(faults) - MOST_NAMED} more" if len(faults) > MOST_NAMED else ""
        msg = (
            f"Expected {count} centre slices with finite, varying intensities in {path}, found "
            f"{'; '.join(faults[:MOST_NAMED])}{more} (slices counted from inferior, from 0). "
            "Correct the volume or leave the record out."
        )
        raise UserError(msg)
    return images


def check_complete(volume: Volume) -> None:
    """Raise a `UserError` unless the file holds all voxels that its header announces.

    A gzip file ends with the size of what it holds, modulo 4 GiB. Where that agrees with the header nothing is
    decompressed; damage in the middle is then found by the checksum when the volume is read. Where it does not (the
    file was cut, or was written in several gzip members) the whole file is decompressed to find out.
    """
    announced = volume.offset + int(np.prod(volume.shape)) * volume.dtype.itemsize
    with volume.path.open("rb") as file:
        size = file.seek(-4, os.SEEK_END) + 4
        recorded = int.from_bytes(file.read(4), "little") if volume.path.suffix == ".gz" else size
    if recorded != announced % 2**32:
        for _ in _channels(volume):
            pass


def _canonical_channels(volume: Volume) -> Iterator[np.ndarray]:
    """Yield each channel as a view of shape (right, anterior, superior); it is valid until the next one."""
    import nibabel as nib

    for channel in _channels(volume):
        yield nib.apply_orientation(channel, volume.orientation)  # type: ignore[no-untyped-call]


def _channels(volume: Volume) -> Iterator[np.ndarray]:
    """Yield each channel in file order, through one buffer; raise a `UserError` where the file is damaged."""
    shape = volume.shape[:3]
    buffer = bytearray(int(np.prod(shape)) * volume.dtype.itemsize)
    try:
        with volume.open() as stream:
            stream.read(volume.offset)
            for index in range(volume.shape[3]):
                filled = 0
                while filled < len(buffer) and (got := stream.readinto(memoryview(buffer)[filled:])):  # type: ignore[attr-defined]
                    filled += got
                if filled < len(buffer):
                    msg = (
                        f"Expected {volume.shape[3]} channels of {len(buffer)} bytes in {volume.path}, found that "
                        f"channel {index} ends after {filled} bytes: the file is truncated. {MEND}"
                    )
                    raise UserError(msg)
                yield np.frombuffer(buffer, dtype=volume.dtype).reshape(shape, order="F")
            # The checksum of a gzip file is compared at its end only.
            while stream.readinto(buffer):  # type: ignore[attr-defined]
                pass
    except DAMAGED as error:
        msg = f"Cannot decompress {volume.path}: {error}. The file is truncated or altered. {MEND}"
        raise UserError(msg) from error


def _resize(slices: np.ndarray, size: int) -> np.ndarray:
    """Do what `zetadp.kspace.slicing.resize_area` does, for large slices of shape (slice, row, column).

    Dense products of this size are handed to the threads of the BLAS library; on two busy cores they took six times as
    long as nibabel's decompression. Area weights are nearly all zero, and the sparse product needs no threads.
    """
    count, rows, columns = slices.shape
    pixels = np.asarray(slices, dtype=np.float32).reshape(count, rows * columns)
    return np.asarray(pixels @ _area_matrix(rows, columns, size)).reshape(count, size, size)


@lru_cache(maxsize=4)
def _area_matrix(rows: int, columns: int, size: int) -> Any:  # noqa: ANN401  (scipy is untyped)
    """Return the sparse (rows x columns, size x size) matrix that averages flattened images."""
    from scipy import sparse

    along_rows = sparse.csr_array(area_weights(rows, size))
    along_columns = sparse.csr_array(area_weights(columns, size))
    return sparse.kron(along_rows, along_columns, format="csr").T


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
