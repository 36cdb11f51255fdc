"""Single-coil volumes of k-space in the HDF5 layout of fastMRI (Knoll et al., doi:10.1148/ryai.2020190007).

A file holds one examination, in these arrays and attributes:

- ``kspace``: fully sampled k-space, complex64, shape (slice, ky, kx)
- ``reconstruction_esc``: the magnitude image that a network should reconstruct, float32, shape (slice, row, column)
- the attribute ``patient_id``

Files of fastMRI hold more, which is not read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from papers.complex_dp.reconstruction.settings import MaskSettings
from zetadp.base.storage import Items, hdf5_written_whole
from zetadp.base.tables import check_contents, visible, write_cohort
from zetadp.base.validation import UserError
from zetadp.mri.kspace import to_image, to_kspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTS = {"train": "singlecoil_train", "test": "singlecoil_val"}
"""Folder of each part. The official test folder has no complete k-space, so the official validation folder tests."""
DIFFERENCE = 0.05
"""Largest error of an image of k-space against its target, as a share of the target's norm."""
EMPTY = 0.01
"""A slice whose norm is below this share of the largest counts as empty, and its error is compared with this share."""


@dataclass(frozen=True)
class KspaceVolume:
    """One examination.

    Attributes
    ----------
    name
        Name of the file without its ending.
    patient
        Identifier of the patient, the same for all examinations of one patient.
    kspace
        complex64, shape (slice, ky, kx), in the convention of `zetadp.mri.kspace`. ``ky`` is the readout direction,
        which costs no scan time. ``kx`` counts the lines that an accelerated scan leaves out.
    target
        Magnitude of the image, cut to the size that is shown, float32, shape (slice, row, column).
    """

    name: str
    patient: str
    kspace: np.ndarray
    target: np.ndarray

    def slices(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return complete k-space and target of a square field of view.

        Parameters
        ----------
        size
            Rows and columns of the field of view.

        Returns
        -------
        k-space (complex64) and target (float32), both of shape (slice, size, size), in units of the target's largest
        intensity. The k-space is the Fourier transform of the cut image, like that of a scan with a smaller field of
        view. Its lines can therefore be left out one by one.

        Raises
        ------
        UserError
            If the target is smaller than `size`.
        """
        if min(self.target.shape[1:]) < size:
            raise UserError(
                f"Expected volumes of at least {size} x {size} pixels (task.settings.size), found "
                f"{self.target.shape[1]} x {self.target.shape[2]} in {self.name}. Lower task.settings.size."
            )
        peak = np.float32(self.target.max())
        image = cut(to_image(self.kspace), size, size) / peak
        return to_kspace(image).astype(np.complex64), cut(self.target, size, size) / peak

    def write(self, folder: Path) -> None:
        """Write the volume to a folder as ``<name>.h5``, completely or not at all."""
        with hdf5_written_whole(folder / f"{self.name}.h5") as file:
            for name, values in (("kspace", self.kspace), ("reconstruction_esc", self.target)):
                file.create_dataset(name, data=values, track_times=False)
            file.attrs["patient_id"] = self.patient


def cut(images: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return the middle of images of shape (..., row, column), as a view of shape (..., rows, columns)."""
    top, left = (images.shape[-2] - rows) // 2, (images.shape[-1] - columns) // 2
    return images[..., top : top + rows, left : left + columns]


def read_volume(path: Path) -> KspaceVolume:
    """Read one examination.

    Raises
    ------
    UserError
        If the file is missing or damaged, has another layout, contains values that are not finite, or if its k-space
        does not belong to its target.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            kspace, target = file["kspace"][()], file["reconstruction_esc"][()]
            patient = _text(file.attrs["patient_id"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"Cannot read {path}: {error}. Expected a single-coil file in the layout of fastMRI with kspace, "
            "reconstruction_esc, and the attribute patient_id."
        ) from error
    problem = "expected a patient_id, found an empty one" if not patient.strip() else _problem(kspace, target)
    if problem:
        raise UserError(f"{path}: {problem}. Remove the file from the folder, or replace it by a complete one.")
    return KspaceVolume(path.stem, patient, kspace.astype(np.complex64), target.astype(np.float32))


def _text(value: object) -> str:
    """Return a text that HDF5 may hold as text, as bytes, or as an array of one of these."""
    one = value.item() if isinstance(value, np.ndarray) else value
    if not isinstance(one, str | bytes):
        raise TypeError(f"expected a text, found {one!r}")
    return one.decode() if isinstance(one, bytes) else one


def _problem(kspace: np.ndarray, target: np.ndarray) -> str | None:
    """Return the problem with the arrays of a file, or None."""
    if kspace.ndim != 3 or target.ndim != 3 or not 0 < len(kspace) == len(target):
        return (
            f"expected kspace (slice, ky, kx) of one coil and as many slices of reconstruction_esc, found shapes "
            f"{kspace.shape} and {target.shape}"
        )
    if kspace.dtype.kind != "c" or target.dtype.kind not in "iuf":
        return f"expected complex kspace and real reconstruction_esc, found {kspace.dtype} and {target.dtype}"
    if target.shape[1] > kspace.shape[1] or target.shape[2] > kspace.shape[2]:
        return f"expected kspace of at least the size of reconstruction_esc, {target.shape[1:]}, found {kspace.shape}"
    if not (np.isfinite(kspace).all() and np.isfinite(target).all() and target.max() > 0):
        return "expected finite values and an image that is not empty, found values that are not finite or no image"
    errors = np.linalg.norm(np.abs(cut(to_image(kspace), *target.shape[1:])) - target, axis=(1, 2))
    sizes_of_slices = np.linalg.norm(target, axis=(1, 2))
    wrong = np.flatnonzero(errors > DIFFERENCE * np.maximum(sizes_of_slices, EMPTY * sizes_of_slices.max()))
    if len(wrong):
        return (
            f"expected kspace whose image is reconstruction_esc, found another image in slice {wrong[0]} and "
            f"{len(wrong) - 1} others"
        )
    return None


def read_folder(folder: Path) -> Iterator[tuple[str, KspaceVolume]]:
    """Read all volumes of a folder with the official subfolders (`PARTS`).

    Yields
    ------
    The part (``train`` or ``test``) and the volume of each file.

    Raises
    ------
    UserError
        If a part has no files, or for the reasons of `read_volume`.
    """
    for part, name in PARTS.items():
        files = visible(folder / name, "*.h5")
        if not files:
            raise UserError(f"Expected HDF5 files of fastMRI in {folder / name}, found none.")
        yield from ((part, read_volume(file)) for file in files)


def undersample(
    *, volumes: Path, slices: Path, table: Path, mask: dict[str, Any], size: int, sizes: dict[str, int]
) -> None:
    """Write the slices of a folder's volumes, and one row for each volume: patient, record, part, scanner, sha256.

    The mask of a volume depends on its name alone.

    Parameters
    ----------
    volumes
        Folder of volumes (`read_folder`).
    slices
        File of all slices. Its arrays are ``values`` (k-space, complex64, shape (slice, 1, ky, kx), in units of the
        volume's largest intensity, missing lines zero) and ``labels`` (targets, float32, shape (slice, row, column), in
        the same units). Its names are record and volume (the same), and slice, its number in the volume.
    table
        Table of the volumes.
    mask
        Settings of the masks (`MaskSettings`).
    size
        Rows and columns to which slices are cut.
    sizes
        Declared number of patients in each part.

    Raises
    ------
    UserError
        If a volume cannot be read or is smaller than `size`, a name occurs twice, or the numbers of patients differ.
    """
    masks, rows, seen, magnitudes, contents = MaskSettings(**mask), [], [], [], []
    for part, volume in read_folder(volumes):
        kspace, target = volume.slices(size)
        contents.append(hashlib.sha256(volume.kspace.tobytes()).hexdigest())
        seen.append(kspace * masks.of_volume(volume.name, size))
        magnitudes.append(target)
        rows.append((volume.patient, volume.name, part, "", hashlib.sha256(seen[-1].tobytes()).hexdigest()))
    index = pd.DataFrame(rows, columns=["patient", "record", "part", "scanner", "sha256"])
    check_contents(index, contents, str(volumes))
    write_cohort(table, index, sizes, str(volumes))
    counts = [len(part) for part in seen]
    names = pd.DataFrame({"record": index["record"].repeat(counts), "volume": index["record"].repeat(counts)})
    names["slice"] = np.concatenate([np.arange(count) for count in counts])
    arrays = {"values": np.concatenate(seen)[:, None], "labels": np.concatenate(magnitudes)}
    Items(arrays, names).write(slices, ("slice", "channel", "ky", "kx"), "largest intensity of the volume")
