"""Several files of one scan as one volume, for a prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

from zetadp.base.validation import UserError
from zetadp.mri.convert import read_scan, write_record
from zetadp.mri.grids import join
from zetadp.mri.sources import files_of_scan
from zetadp.mri.volumes import log_assumptions


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
