"""The layout of a Medical Segmentation Decathlon task, and the volumes in it.

A task is a folder with ``dataset.json``, ``imagesTr/`` and ``imagesTs/``. Every record is one four-dimensional NIfTI
file with axes (x, y, z, channel). Only ``dataset.json`` names the channels. Most of the time of reading goes to
decompression, so files are read with Intel's igzip, in one pass and one channel at a time.

Source: Antonelli et al., Nature Communications 13:4128, 2022, doi:10.1038/s41467-022-30695-9.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import numpy as np

from zetadp.base.storage import read_json, write_json
from zetadp.base.validation import UserError

SEQUENCES = ("FLAIR", "T1w", "T1gd", "T2w")
"""The canonical pulse sequences in canonical order; the index of a sequence is its class label."""

SPELLINGS = {
    "FLAIR": ("flair", "t2flair", "t2f"),
    "T1w": ("t1", "t1w", "t1n"),
    "T1gd": ("t1gd", "t1ce", "t1wgd", "t1wce", "t1c"),
    "T2w": ("t2", "t2w"),
}
"""Names of the sequences in the Decathlon and in the BraTS challenges, in lower case and without punctuation."""

DAMAGED = (EOFError, OSError, zlib.error)
"""Errors that a truncated or altered gzip stream raises."""

MEND = "Download or copy it again."


@dataclass(frozen=True)
class Listing:
    """Content of ``dataset.json``.

    Attributes
    ----------
    root
        Folder that holds ``dataset.json``.
    sequences
        Canonical names of the channels, in the order in which the files hold them.
    training, test
        Volumes of the two parts, relative to ``root``.
    """

    root: Path
    sequences: tuple[str, ...]
    training: tuple[PurePosixPath, ...]
    test: tuple[PurePosixPath, ...]


@dataclass(frozen=True)
class Volume:
    """A four-dimensional NIfTI file whose header has been checked; its voxels are still on disk.

    Attributes
    ----------
    path
        The file.
    shape
        Lengths of its four axes; the last one is the channel.
    dtype
        Stored type of a voxel.
    offset
        Where the voxels begin in the decompressed file, in bytes. They are in Fortran order: channels are slowest.
    slope, intercept
        An intensity is ``slope * stored + intercept``.
    orientation
        For each spatial axis of the file, the canonical axis (right, anterior, superior) that it runs along and its
        sign there, as `nibabel.orientations.io_orientation` gives it.
    """

    path: Path
    shape: tuple[int, int, int, int]
    dtype: np.dtype[Any]
    offset: int
    slope: float
    intercept: float
    orientation: np.ndarray

    @property
    def axial_slices(self) -> int:
        """Number of slices along the axis that runs from inferior to superior."""
        axis = int(np.flatnonzero(self.orientation[:, 0] == 2)[0])
        return self.shape[axis]

    def open(self) -> IO[bytes]:
        """Open the decompressed bytes of the file as a stream."""
        if self.path.suffix != ".gz":
            return self.path.open("rb")
        from isal import igzip

        return cast("IO[bytes]", igzip.open(self.path, "rb"))  # type: ignore[no-untyped-call]


def canonical_sequence(name: str) -> str | None:
    """Return the canonical name of a pulse sequence, or ``None`` for an unknown one.

    Examples
    --------
    >>> [canonical_sequence(name) for name in ("t1gd", "T1ce", "T2-FLAIR", "DWI")]
    ['T1gd', 'T1gd', 'FLAIR', None]
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((sequence for sequence, known in SPELLINGS.items() if plain in known), None)


def record_name(file: PurePosixPath | Path) -> str:
    """Return the name of a record: that of its file without ``.nii.gz`` or ``.nii``."""
    return re.sub(r"\.nii(\.gz)?$", "", file.name)


def read_task(root: Path) -> Listing:
    """Read ``dataset.json`` of a Decathlon task.

    Raises
    ------
    UserError
        If the file is missing or unreadable, a key is missing, a channel is missing, doubled or unknown, or a listed
        path leaves the folder.
    """
    path = root / "dataset.json"
    if not path.is_file():
        raise UserError(
            f"Expected {path}, found no such file. Give the folder of the task, the one that holds dataset.json."
        )
    content = read_json(path)
    expected = {"modality": dict, "training": list, "test": list}
    wrong = [f"{key} ({kind.__name__})" for key, kind in expected.items() if not isinstance(content.get(key), kind)]
    if wrong:
        raise UserError(
            f"Expected the keys of a Decathlon task in {path}; missing or of the wrong kind: {', '.join(wrong)}."
        )
    return Listing(
        root=root,
        sequences=_sequences(path, content["modality"]),
        training=tuple(_listed(path, entry) for entry in content["training"]),
        test=tuple(_listed(path, entry) for entry in content["test"]),
    )


def write_task(
    root: Path,
    *,
    name: str,
    description: str,
    sequences: Sequence[str],
    training: Sequence[PurePosixPath],
    test: Sequence[PurePosixPath],
) -> None:
    """Write ``dataset.json`` with the official keys; call this after the volumes are written."""
    content = {
        "name": name,
        "description": description,
        "tensorImageSize": "4D",
        "modality": {str(index): sequence for index, sequence in enumerate(sequences)},
        "numTraining": len(training),
        "numTest": len(test),
        "training": [{"image": f"./{file}"} for file in training],
        "test": [f"./{file}" for file in test],
    }
    write_json(root / "dataset.json", content)


def read_volume(path: Path, *, channels: int = len(SEQUENCES), slices: int = 1) -> Volume:
    """Open a four-dimensional NIfTI volume and check its header.

    Parameters
    ----------
    path
        A ``.nii.gz`` or ``.nii`` file.
    channels
        Number of channels that it must hold.
    slices
        Least number of axial slices.

    Raises
    ------
    UserError
        If the file is missing, cannot be read, is not gzip or not NIfTI, is not 4-D, or holds another number of
        channels, too few axial slices, or voxels that are not real numbers.
    """
    import nibabel as nib

    if not path.is_file():
        raise UserError(f"Expected the volume {path}, found no such file. {MEND}")
    try:
        if path.suffix == ".gz" and (magic := _first_bytes(path)) != b"\x1f\x8b":
            raise UserError(f"Expected {path} to be gzip-compressed, found a file that begins with {magic!r}. {MEND}")
        image: Any = nib.load(path)
        orientation = nib.io_orientation(image.affine)  # type: ignore[no-untyped-call]
    except (*DAMAGED, nib.filebasedimages.ImageFileError, nib.spatialimages.HeaderDataError, ValueError) as error:
        raise UserError(f"Cannot read the NIfTI header of {path}: {error}. {MEND}") from error
    if not isinstance(image, nib.Nifti1Image) or len(shape := image.shape) != 4:
        found = f"{len(image.shape)}-D {type(image).__name__} of shape {image.shape}"
        raise UserError(
            f"Expected a 4-D NIfTI volume (x, y, z, channel) in {path}, found {found}. "
            "Join the four sequences of a record in one file."
        )
    if shape[3] != channels:
        raise UserError(
            f"Expected {channels} channels in {path}, found {shape[3]} (shape {shape}). "
            "Correct the file, or 'modality' in dataset.json."
        )
    if np.isnan(orientation).any():
        raise UserError(
            f"Expected an affine of full rank in {path}, found {image.affine.tolist()}. Correct the header."
        )
    data: Any = image.dataobj
    if data.dtype.kind not in "iuf":
        raise UserError(f"Expected real voxels in {path}, found {data.dtype}. Store magnitude images.")
    columns, rows, planes, _ = shape
    shape = (columns, rows, planes, channels)
    volume = Volume(path, shape, data.dtype, data.offset, float(data.slope), float(data.inter), orientation)
    if volume.axial_slices < slices:
        raise UserError(
            f"Expected at least {slices} axial slices in {path}, found {volume.axial_slices} (shape {shape}). "
            "Ask for fewer slices or leave the record out."
        )
    return volume


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(2)


def _sequences(path: Path, modality: dict[str, Any]) -> tuple[str, ...]:
    """Return the canonical channel names in file order, or raise a `UserError` that lists every fault."""
    if sorted(modality) != sorted(map(str, range(len(modality)))):
        raise UserError(
            f"Expected the keys 0 to {len(modality) - 1} under 'modality' in {path}, found {', '.join(modality)}."
        )
    written = [str(modality[str(index)]) for index in range(len(modality))]
    names = [canonical_sequence(name) for name in written]
    faults = [f"{name!r} is unknown" for name, known in zip(written, names, strict=True) if known is None]
    faults += [f"{sequence} is missing" for sequence in SEQUENCES if sequence not in names]
    faults += [
        f"{sequence} appears {names.count(sequence)} times" for sequence in SEQUENCES if names.count(sequence) > 1
    ]
    if faults:
        raise UserError(
            f"Expected each of {', '.join(SEQUENCES)} once under 'modality' in {path}, found {', '.join(written)}: "
            f"{'; '.join(faults)}. Correct the names or bring a cohort with these four sequences."
        )
    return tuple(name for name in names if name is not None)


def _listed(path: Path, entry: Any) -> PurePosixPath:  # noqa: ANN401  (JSON is untyped)
    """Return the volume that one entry of a part names: a path, or a mapping with the key ``image``."""
    name = entry.get("image") if isinstance(entry, dict) else entry
    if not isinstance(name, str) or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise UserError(f"Expected a path inside the folder of the task for each volume in {path}, found {entry!r}.")
    return PurePosixPath(name)


def channels_of(volume: Volume) -> Iterator[np.ndarray]:
    """Yield each channel (x, y, z) in file order; raise a `UserError` if the file is damaged.

    All channels share one buffer, so each is valid only until the next one is read. Values are as stored, not scaled.
    """
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
                    raise UserError(
                        f"Expected {volume.shape[3]} channels of {len(buffer)} bytes in {volume.path}, found that "
                        f"channel {index} ends after {filled} bytes: the file is truncated. {MEND}"
                    )
                yield np.frombuffer(buffer, dtype=volume.dtype).reshape(shape, order="F")
            # The checksum of a gzip file is compared at its end only.
            while stream.readinto(buffer):  # type: ignore[attr-defined]
                pass
    except DAMAGED as error:
        raise UserError(
            f"Cannot decompress {volume.path}: {error}. The file is truncated or altered. {MEND}"
        ) from error


def check_complete(volume: Volume) -> None:
    """Raise a `UserError` unless the file holds all voxels that its header announces.

    A gzip file ends with the size of its content, modulo 4 GiB. If that agrees with the header, nothing is
    decompressed: the checksum finds damage in the middle later, when the volume is read. If it does not agree (the file
    was cut, or has several gzip members), the whole file is decompressed to find out.
    """
    announced = volume.offset + int(np.prod(volume.shape)) * volume.dtype.itemsize
    with volume.path.open("rb") as file:
        size = file.seek(-4, os.SEEK_END) + 4
        recorded = int.from_bytes(file.read(4), "little") if volume.path.suffix == ".gz" else size
    if recorded != announced % 2**32:
        for _ in channels_of(volume):
            pass
