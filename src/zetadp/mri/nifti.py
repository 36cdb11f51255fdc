"""NIfTI volumes: their headers and their voxels.

This is the only module that reads NIfTI files, so it detects every fault of a file, for a cohort, a conversion and a
prediction alike. Most of the time of reading goes to decompression, so files are read with Intel's igzip, in one pass.
"""

from __future__ import annotations

import hashlib
import io
import logging
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zetadp.base.validation import UserError, counted
from zetadp.mri.slicing import SPACING, centre_slices

DAMAGED = (EOFError, OSError, zlib.error)
"""Errors that a truncated or altered gzip stream raises."""
CHUNK = 1 << 20
MOST_COMPRESSED = 1100
"""No gzip stream is more than this many times as long when it is decompressed."""
MILLIMETRES = {"meter": 1000.0, "mm": 1.0, "micron": 0.001, "unknown": 1.0}
"""Units of length of a NIfTI header in millimetres."""
VOXELS = (0.02, 100.0)
"""Range of the sizes of a voxel in mm. A header in which all three are outside has a wrong unit of length."""
HEADER_SIZES = (348, 540)
"""The first number in a NIfTI file, of either version."""
LARGEST_SLOPE = 1e30
"""Intensities of a larger scale overflow single precision; its inverse is the smallest."""
LIKELY = (0.05, 50.0)
"""Range in mm of the distance of two axial slices of a head. Another distance in a header is ignored."""
MOST_NAMED = 5
"""Number of faults of a kind that a message names."""
MEND = "Download or copy it again."
ENDINGS = (".nii", ".nii.gz")
"""Endings of the names of NIfTI files."""
CONVERT = "Convert DICOM and other formats to NIfTI first, for example with dcm2niix."

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Volume:
    """A NIfTI file whose header has been checked; its voxels are still on disk.

    Attributes
    ----------
    path
        The file.
    shape
        Lengths of its axes (x, y, z, channel). A file with three axes has one channel.
    dtype
        Stored type of a voxel.
    offset
        Position of the first voxel in the decompressed file, in bytes. Voxels are in Fortran order: channels are
        slowest.
    slope, intercept
        An intensity is ``slope * stored + intercept``.
    affine
        Matrix (4, 4) from voxel index to world coordinates in mm, also where the header has another unit of length.
    orientation
        For each spatial axis of the file, the canonical axis (right, anterior, superior) that it runs along and its
        sign there, as `nibabel.orientations.io_orientation` gives it.
    thickness
        Distance in mm of the centres of neighbouring axial slices, gaps included; NaN if the header gives none.
    assumed
        Gaps of the header about orientation and distances, as sentences.
    """

    path: Path
    shape: tuple[int, int, int, int]
    dtype: np.dtype[Any]
    offset: int
    slope: float
    intercept: float
    affine: np.ndarray
    orientation: np.ndarray
    thickness: float
    assumed: tuple[str, ...] = ()

    @property
    def axial_slices(self) -> int:
        """Number of slices along the axis that runs from inferior to superior."""
        return self.shape[_axial_axis(self.orientation)]

    def centre_slices(self, count: int, spacing: float) -> np.ndarray:
        """Return the indices of the slices, counted from inferior, that are nearest to the centre planes.

        The planes lie around the middle of the volume. If the header gives no distance of slices, the centre slices
        are counted.

        Parameters
        ----------
        count
            Number of planes.
        spacing
            Distance of two planes in mm.

        Raises
        ------
        UserError
            If a plane lies outside of the volume.
        """
        has_thickness = math.isfinite(self.thickness)
        try:
            return centre_slices(self.axial_slices, count, spacing / self.thickness if has_thickness else 1.0)
        except ValueError as error:
            thick = f" of {self.thickness:g} mm for {count} planes {spacing:g} mm apart" if has_thickness else ""
            raise UserError(
                f"{self.path}: {error}{thick} (shape {self.shape}). Ask for fewer slices, or leave the record out."
            ) from error

    @property
    def size(self) -> int:
        """Length of the decompressed file in bytes, up to its last voxel."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize

    def decompress(self, stored: bytes) -> bytes:
        """Return header and voxels from the bytes of the file."""
        if not _is_compressed(self.path):
            return stored
        from isal import igzip

        with igzip.open(io.BytesIO(stored), "rb") as stream:  # type: ignore[no-untyped-call]
            content = bytes(stream.read(self.size))
            # The checksum of a gzip file is compared at its end only.
            while stream.read(CHUNK):
                pass
        return content

    def intensities(self, stored: np.ndarray) -> np.ndarray:
        """Return stored values as intensities: unchanged if the header scales nothing, otherwise in float64."""
        if (self.slope, self.intercept) == (1.0, 0.0):
            return stored
        return np.asarray(self.slope * stored.astype(np.float64) + self.intercept)


def read_volume(path: Path, *, channels: int | None = None, slices: int = 1, spacing: float = SPACING) -> Volume:
    """Open a NIfTI volume and check its header.

    Parameters
    ----------
    path
        A ``.nii.gz`` or ``.nii`` file.
    channels
        Number of channels that it must hold; None for any number.
    slices, spacing
        Number of centre planes that it must hold, and their distance in mm.

    Raises
    ------
    UserError
        If the file is missing, cannot be read, is not gzip or not NIfTI, is neither 3-D nor 4-D, is too short for the
        voxels that it announces, or holds another number of channels, too few axial slices, or voxels that are not real
        numbers. Also if voxels have no usual size in the header's unit of length, or if the scale is negative.
    """
    import nibabel as nib

    if not path.is_file():
        raise UserError(f"Expected the volume {path}, found no such file. Correct the path, or copy the file there.")
    if not path.name.lower().endswith(ENDINGS):
        raise UserError(f"Expected a NIfTI file, whose name ends in .nii or .nii.gz, found {path}. {CONVERT}")
    broken = (nib.filebasedimages.ImageFileError, nib.spatialimages.HeaderDataError, ValueError, ArithmeticError)
    try:
        image: Any = nib.load(path)
        if not isinstance(image, nib.Nifti1Image):
            raise UserError(f"Expected a NIfTI volume in {path}, found {type(image).__name__}. {MEND}")
        unit = _read_unit(image.header)
        affine, has_lengths = _read_affine(image)
        affine = np.diag([*3 * (MILLIMETRES[unit],), 1.0]) @ affine
        orientation = nib.io_orientation(affine)  # type: ignore[no-untyped-call]
        assumed = _list_assumptions(image.header)
    except (*DAMAGED, *broken) as error:
        raise UserError(f"Cannot read the NIfTI header of {path}: {error}. {_mend(path)}") from error
    axes = _read_axes(path, image.shape, channels)
    data: Any = image.dataobj
    slope, intercept = float(data.slope), float(data.inter)
    if min(axes) < 1 or not (1 / LARGEST_SLOPE <= abs(slope) <= LARGEST_SLOPE and math.isfinite(intercept)):
        raise UserError(
            f"Expected axes of at least one voxel and a usual scale in the header of {path}, found shape "
            f"{image.shape}, slope {slope} and intercept {intercept}. {MEND}"
        )
    if np.isnan(orientation).any():
        raise UserError(f"Expected an affine of full rank in {path}, found {affine.tolist()}. Correct the header.")
    if slope < 0:
        raise UserError(
            f"Expected a positive scale (scl_slope) in the header of {path}, found {slope:g}, with which bright tissue "
            "is dark. Correct the header, or store the intensities themselves."
        )
    sizes = np.linalg.norm(affine[:3, :3], axis=0)
    if sizes.max() < VOXELS[0] or sizes.min() > VOXELS[1]:
        raise UserError(
            f"Expected voxels of {VOXELS[0]:g} to {VOXELS[1]:g} mm in {path}, found "
            f"{' x '.join(f'{size:.3g}' for size in sizes)} mm, with the unit of length {unit} (xyzt_units). Correct "
            "unit or sizes in the header."
        )
    if data.dtype.kind not in "iuf":
        raise UserError(f"Expected real voxels in {path}, found {data.dtype}. Store magnitude images.")
    thickness = float(np.linalg.norm(affine[:3, _axial_axis(orientation)]))
    if not has_lengths or not LIKELY[0] <= thickness <= LIKELY[1]:
        thickness = math.nan
        assumed += (
            "gives no distance between axial slices in its header; slices are counted, whatever their distance",
        )
    volume = Volume(path, axes, data.dtype, int(data.offset), slope, intercept, affine, orientation, thickness, assumed)
    if volume.size > path.stat().st_size * (MOST_COMPRESSED if _is_compressed(path) else 1):
        raise UserError(
            f"Expected {volume.size} bytes of voxels of shape {image.shape} in {path}, found a file of "
            f"{path.stat().st_size} bytes: it is truncated, or its header is damaged. {MEND}"
        )
    volume.centre_slices(slices, spacing)
    return volume


def _mend(path: Path) -> str:
    """Return what to do about a file that cannot be opened."""
    if _is_compressed(path) and path.stat().st_size:
        with path.open("rb") as file:
            first = file.read(4)
        if int.from_bytes(first, "little") in HEADER_SIZES or int.from_bytes(first, "big") in HEADER_SIZES:
            return "It is not compressed: rename it, without .gz."
    return MEND


def _is_compressed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _read_axes(path: Path, shape: Sequence[int], channels: int | None) -> tuple[int, int, int, int]:
    """Return the lengths of the axes (x, y, z, channel) of a file of this shape; check the number of channels."""
    axes = [*map(int, shape)]
    while len(axes) > 3 and axes[-1] == 1:
        axes.pop()
    if len(axes) not in (3, 4):
        raise UserError(
            f"Expected a 3-D or 4-D NIfTI volume (x, y, z, channel) in {path}, found {len(shape)}-D of shape {shape}. "
            "Store one channel for each sequence."
        )
    x, y, z, n_channels = axes if len(axes) == 4 else (*axes, 1)
    if channels not in (None, n_channels):
        raise UserError(
            f"Expected {counted(channels, 'channel')} in {path}, found {n_channels} (shape {shape}). Join the "
            "sequences of a record in one 4-D file, or correct 'modality' in dataset.json."
        )
    return x, y, z, n_channels


def _read_unit(header: Any) -> str:  # noqa: ANN401  (nibabel is untyped)
    """Return the unit of length of a NIfTI header: a key of `MILLIMETRES`."""
    try:
        unit = str(header.get_xyzt_units()[0])
    except KeyError:  # a code that NIfTI does not define
        return "unknown"
    return unit if unit in MILLIMETRES else "unknown"


def _axial_axis(orientation: np.ndarray) -> int:
    """Return the axis of a file that runs from inferior to superior or back."""
    return int(np.flatnonzero(orientation[:, 0] == 2)[0])


def _read_affine(image: Any) -> tuple[np.ndarray, bool]:  # noqa: ANN401  (nibabel is untyped)
    """Return the matrix from voxel index to world coordinates, and whether the header gives its lengths.

    Nibabel replaces a length of zero by 1 mm. This function also replaces a length that is not a number.
    """
    header = image.header
    if header["sform_code"] > 0:
        return np.asarray(image.affine), True
    with image.file_map["image"].get_prepare_fileobj("rb") as file:
        lengths = type(header).from_fileobj(file, check=False)["pixdim"][1:4]
    has_lengths = bool(np.isfinite(lengths).all() and (lengths != 0).all())
    if not has_lengths:
        header = header.copy()
        header["pixdim"][1:4] = np.where(np.isfinite(lengths) & (lengths != 0), np.abs(lengths), 1)
    return np.asarray(header.get_best_affine()), has_lengths


def _list_assumptions(header: Any) -> tuple[str, ...]:  # noqa: ANN401  (nibabel is untyped)
    """List the assumptions about orientation that a NIfTI header needs, as sentences."""
    import nibabel as nib

    sform, qform = header.get_sform(coded=True), header.get_qform(coded=True)
    if not (sform[1] or qform[1]):
        return (
            "has no orientation in its header (sform and qform of code 0); right-left was assumed to run backwards",
        )
    if sform[1] and qform[1] and (nib.aff2axcodes(sform[0]) != nib.aff2axcodes(qform[0])):  # type: ignore[no-untyped-call]
        axes = ["".join(map(str, nib.aff2axcodes(form[0]))) for form in (sform, qform)]  # type: ignore[no-untyped-call]
        return (f"has two orientations in its header, {axes[0]} (sform) and {axes[1]} (qform); the sform was used",)
    return ()


def log_assumptions(volumes: Sequence[Volume]) -> None:
    """Log each assumption about volumes once: the first volume by name, the others by number."""
    paths: dict[str, list[Path]] = {}
    for volume in volumes:
        for assumption in volume.assumed:
            paths.setdefault(assumption, []).append(volume.path)
    for assumption, (first, *others) in paths.items():
        more = f" This holds for {counted(len(others), 'other file')}, too." if others else ""
        logger.warning("%s %s.%s", first, assumption, more)


class ChangedError(UserError):
    """The content of a file is not the one that was indexed."""


def read_voxels(volume: Volume, sha256: str | None = None) -> np.ndarray:
    """Return the voxels of a file, which is read and decompressed once.

    Parameters
    ----------
    volume
        The volume.
    sha256
        SHA-256 that the bytes of the file must have, in hexadecimal. None for any.

    Returns
    -------
    Voxels (x, y, z, channel) as stored, not scaled.

    Raises
    ------
    ChangedError
        If the file is whole and has another hash. The hashed bytes are those that the voxels are read from.
    UserError
        If the file is damaged.
    """
    try:
        stored = volume.path.read_bytes()
        content = volume.decompress(stored)
    except DAMAGED as error:
        raise UserError(
            f"Cannot decompress {volume.path}: {error}. The file is truncated or altered. {MEND}"
        ) from error
    if len(content) < volume.size:
        raise UserError(
            f"Expected {volume.size} bytes of header and voxels in {volume.path}, found {len(content)}: the file is "
            f"truncated. {MEND}"
        )
    if sha256 not in (None, hashlib.sha256(stored).hexdigest()):
        raise ChangedError(f"Expected {volume.path} as it was indexed, found another content.")
    voxels = np.frombuffer(content, dtype=volume.dtype, offset=volume.offset, count=math.prod(volume.shape))
    return voxels.reshape(volume.shape, order="F")


def check_complete(volume: Volume) -> None:
    """Raise a `UserError` unless the file holds all voxels that its header announces.

    A gzip file ends with the size of its content, modulo 4 GiB. If that agrees with the header, nothing is
    decompressed: the checksum finds damage in the middle later, when the volume is read. If it does not agree (the file
    was cut, or has several gzip members), the whole file is decompressed to find out.
    """
    with volume.path.open("rb") as file:
        size = file.seek(-4, os.SEEK_END) + 4
        recorded = int.from_bytes(file.read(4), "little") if _is_compressed(volume.path) else size
    if recorded != volume.size % 2**32:
        read_voxels(volume)
