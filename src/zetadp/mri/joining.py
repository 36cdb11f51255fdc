"""The files of one scan, with one sequence each, and the volume that they are joined to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from zetadp.base.validation import UserError
from zetadp.mri.filenames import NEITHER
from zetadp.mri.grids import join
from zetadp.mri.nifti import Volume, log_assumptions, read_volume, read_voxels
from zetadp.mri.slicing import not_measured
from zetadp.mri.sources import files_of_scan


@contextmanager
def join_files(paths: Sequence[Path], resample: str | None) -> Iterator[tuple[Path, list[Path]]]:
    """Yield the path of one volume, and the files that it was joined from, in the order of its channels.

    A single file is yielded unchanged, with no files. Otherwise the volume is a temporary file.

    Parameters
    ----------
    paths
        One file, several files with one sequence each, or the folder of one scan.
    resample
        Pattern of the name of the file onto whose grid the others are resampled, or None to refuse different grids.

    Raises
    ------
    UserError
        If a file cannot be read, if there are several scans or files of several channels, or if grids differ.
    """
    if len(paths) == 1 and not paths[0].is_dir():
        yield paths[0], []
        return
    files = [file for path in paths for file in (files_of_scan(path) if path.is_dir() else [path])]
    twice = sorted({str(file) for file in files if files.count(file) > 1})
    if twice:
        raise UserError(f"Expected different files of one scan, found {twice[0]} twice. Give each sequence once.")
    headers, values = {}, {}
    for file in files:
        headers[str(file)], values[str(file)] = read_scan(file)
    onto = None
    if resample is not None:
        onto = next((str(file) for file in files if fnmatch(file.name, resample)), None)
        if onto is None:
            raise UserError(
                f"--resample: Expected a pattern of one of the files {', '.join(file.name for file in files)}, found "
                f"{resample!r}. Name the files before the options."
            )
    log_assumptions(list(headers.values()))
    grid, _, problems = join(headers, values, onto, str(files[0].parent))
    if problems:
        raise UserError(problems[0])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "joined.nii"
        write_record(path, list(values.values()), grid.affine)
        try:
            yield path, files
        except UserError as error:
            names = " and ".join(file.name for file in files)
            raise UserError(str(error).replace(str(path), f"the channels from {names}")) from error


def read_scan(path: Path) -> tuple[Volume, np.ndarray]:
    """Read a file with one sequence; return its header, and its intensities of shape (x, y, z).

    Raises
    ------
    UserError
        For everything that `read_volume` and `read_voxels` refuse. Also if intensities are not finite, or if no scanner
        measured them (`not_measured`).
    """
    volume = read_volume(path, channels=1)
    values = volume.intensities(read_voxels(volume)[..., 0])
    if not (np.abs(values) <= np.finfo(np.float32).max).all():
        raise UserError(
            f"Expected finite intensities in {path}, found NaN or infinity. Correct it, or leave it out "
            f"({option_to_leave_out(path)})."
        )
    computed = not_measured(values)
    if computed:
        raise UserError(
            f"Expected a scan in {path}, found {computed}. Leave it out ({option_to_leave_out(path)}), and say which "
            "file is the scan."
        )
    return volume, values


def option_to_leave_out(path: Path) -> str:
    """Return the option that leaves out one file, and none of the same name in other folders."""
    return f"zetadp convert: --sequence '*{escape(path.parent.name)}/{escape(path.name)}={NEITHER}'"


def write_record(path: Path, channels: list[np.ndarray], affine: np.ndarray, note: str = "") -> None:
    """Write channels as one 4-D volume with a note in its header.

    If all of them hold integers that fit into int16, they are stored as such, otherwise as float32.
    """
    import nibabel as nib

    least, most = np.iinfo(np.int16).min, np.iinfo(np.int16).max
    whole = all(channel.dtype.kind in "iu" and least <= channel.min() and channel.max() <= most for channel in channels)
    stacked = np.empty((*channels[0].shape, len(channels)), dtype=np.int16 if whole else np.float32, order="F")
    for index, channel in enumerate(channels):
        stacked[..., index] = channel
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(stacked, affine)  # type: ignore[no-untyped-call]
    image.header.set_xyzt_units("mm")  # type: ignore[no-untyped-call]
    image.header["descrip"] = note[:79]
    nib.save(image, path)
