"""Files that are written whole or not at all, and the format of items.

Arrays go to HDF5 with axis names, units and provenance as attributes; statements go to JSON. Nothing is pickled.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from zetadp.base.validation import UserError

if TYPE_CHECKING:
    import h5py
    import pandas as pd

logger = logging.getLogger(__name__)

DIGEST = "sha256"
"""Attribute of a dataset with the digest of its values. No other check detects one flipped bit in an image."""
_PRIVATE = threading.Lock()
_private_blocks = 0
_before_private = 0
"""Blocks of `private_files` that are open in all threads, and the mask before the first."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``; it replaces ``path`` when the block ends without an error.

    The content is synced to disk before the rename, so a reader sees the old file, the new file, and nothing between.
    A full disk or a read-only folder becomes a `UserError`; the temporary file is removed. A process that is killed
    leaves its temporary file. The next process that writes ``path`` on the same machine removes it.
    """
    with writing(path):
        make_folder(path.parent)
        remove_leftovers(path)
        temporary = _temporary(path, os.getpid())
        try:
            yield temporary
            with temporary.open("rb") as handle:
                os.fsync(handle.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path, consequence: str = "") -> Iterator[None]:
    """Turn a full disk, a read-only folder or a limited file system into a `UserError` that names the file.

    Parameters
    ----------
    path
        The file.
    consequence
        Sentence on what follows from the error, for the message.
    """
    try:
        yield
    except OSError as error:
        sentences = filter(None, [f"Cannot write {path}: {error.strerror or error}.", consequence, remedy(error)])
        raise UserError(" ".join(sentences)) from error


_NOT_SUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.ENOLCK}
"""Errors of file systems that do not support an operation."""
_REMEDIES = {
    "Free space or choose another folder": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    "Choose a folder that you may write to": (errno.EACCES, errno.EPERM, errno.EROFS),
    "Choose another name": (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ENOTEMPTY),
    "The file system cannot do what is needed here: choose a folder on another one": _NOT_SUPPORTED,
}


def remedy(error: OSError) -> str:
    """Return advice about an error of writing, in one sentence."""
    remedies = (text for text, numbers in _REMEDIES.items() if error.errno in numbers)
    return f"{next(remedies, 'Look at the disk and the folder')}, then run again."


def lock(file: IO[bytes], path: Path, *, wait: bool = True) -> None:
    """Lock an open file until it is closed, by ``flock``.

    Parameters
    ----------
    file, path
        The file, and its path for the message.
    wait
        Whether to wait until other processes have closed it.

    Raises
    ------
    BlockingIOError
        If another process has the lock and ``wait`` is false.
    UserError
        If the file system has no locks. Nothing replaces them: two processes could release the same, or spend the same
        room below a limit.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        raise UserError(
            f"Cannot lock {path}: {error.strerror}. Its file system has no locks (flock), without which two processes "
            "could release the same. Nothing was released. Choose a folder on a local disk, or mount this one with "
            "locks (NFS: without the option nolock; Lustre: with flock), then run again."
        ) from error


def check_writable(path: Path) -> None:
    """Raise a `UserError` if a file cannot be written; called before the work whose result it will hold."""
    with writing(path):
        make_folder(path.parent)
        tempfile.TemporaryFile(dir=path.parent).close()
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to ``folder``; it replaces ``folder`` when the block ends without an error.

    A process that is killed leaves its temporary folder. The next process that writes ``folder`` removes it.

    Raises
    ------
    UserError
        If ``folder`` already contains a file, or the disk is full or read-only. Empty folders in it are allowed,
        because workflow engines make them in advance.
    """
    if folder.exists() and (not folder.is_dir() or any(not path.is_dir() for path in folder.rglob("*"))):
        raise UserError(
            f"Expected {folder} to be absent or empty, found files in it. Move them away or choose another folder."
        )
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        temporary = _temporary(folder, os.getpid())
        temporary.mkdir(mode=0o700)
        try:
            yield temporary
            # A temporary folder is private to its owner; a folder of data has the usual mode.
            temporary.chmod(0o755)
            if folder.exists():
                shutil.rmtree(folder)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, and sync the names of the new ones."""
    new = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for parent in new:
        sync_folder(parent.parent)


@contextmanager
def private_files() -> Iterator[None]:
    """Make new files and folders of this process readable by their owner only, in a block."""
    global _before_private, _private_blocks
    with _PRIVATE:
        if not _private_blocks:
            _before_private = os.umask(0o077)
        _private_blocks += 1
    try:
        yield
    finally:
        with _PRIVATE:
            _private_blocks -= 1
            if not _private_blocks:
                os.umask(_before_private)


def keep_private(path: Path) -> None:
    """Make a file or folder readable by its owner only, where the file system can."""
    with suppress(OSError):
        path.chmod(0o700 if path.is_dir() else 0o600)


def settle(paths: Iterable[Path]) -> None:
    """Make finished files readable by their owner only, and set the time of all of them to the present time."""
    now = time.time()
    for path in paths:
        keep_private(path)
        with suppress(OSError):
            os.utime(path, (now, now))


_WARNED: set[int] = set()
"""Devices whose users were warned that folders cannot be synced."""


def sync_folder(folder: Path) -> None:
    """Sync a folder: without this, a power failure may lose the name of a new file although its content was synced.

    Some network file systems and other operating systems cannot sync folders. Work then continues after one warning.
    Contents are synced in any case. The register reports a missing ledger, and the runs report a missing account.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        device = os.fstat(handle).st_dev
        if device not in _WARNED:
            _WARNED.add(device)
            logger.warning(
                "The file system of %s cannot sync folders. A power failure may lose the names of new files there. "
                "Keep ledgers on a local disk if you can",
                folder,
            )
    finally:
        os.close(handle)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files and folders of processes that were killed while they wrote ``path``."""
    for other in path.parent.iterdir() if path.parent.is_dir() else ():
        process = other.name.removeprefix(f".{path.stem}.").partition(".")[0]
        if process.isdecimal() and other == _temporary(path, int(process)) and not _alive(int(process)):
            if other.is_dir():
                shutil.rmtree(other, ignore_errors=True)
            else:
                other.unlink(missing_ok=True)


def _temporary(path: Path, process: int) -> Path:
    """Return the temporary path of a process that writes ``path``."""
    # The suffix stays last: some writers choose the format by it.
    return path.with_name(f".{path.stem}.{process}.partial{path.suffix}")


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object, whole or not at all; as JSON has no infinity, that becomes the string ``"inf"``."""
    write_text(path, json.dumps(_plain(content), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or raise a `UserError` that names the file and the place of the fault."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise UserError(f"Expected the file {path}, found none. Name one that exists.") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"Cannot read {path} as JSON: {error}.") from error
    if not isinstance(content, dict):
        raise UserError(f"Expected a JSON object in {path}, found {type(content).__name__}.")
    return content


def _plain(value: Any) -> Any:  # noqa: ANN401  (JSON is untyped)
    """Convert NumPy scalars, paths and non-finite floats to types of JSON."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else str(float(value))
    if isinstance(value, Path):
        return value.as_posix()
    return value


def present(values: np.ndarray) -> np.ndarray:
    """Return which parts each record has, shape (record, part), for values of shape (record, part, ...).

    A part that a record lacks, such as a sequence that was not acquired, is NaN throughout.
    """
    return np.asarray(~np.isnan(values).all(axis=tuple(range(2, values.ndim))))


@dataclass(frozen=True)
class Items:
    """Items, or records of several items, with their names.

    Attributes
    ----------
    arrays
        Arrays by name.
    names
        Table of texts with one row per item. The column ``record`` names the record that the item belongs to.
    source
        File that the items were read from, for error messages.
    provenance
        How the arrays were made: settings, versions, source.
    """

    arrays: Mapping[str, np.ndarray]
    names: pd.DataFrame
    source: Path = Path()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def part(self, selection: np.ndarray) -> Items:
        """Return the items at some positions, or those for which a boolean mask is true."""
        arrays = {name: values[selection] for name, values in self.arrays.items()}
        return replace(
            self, arrays=arrays, names=self.names[selection] if selection.dtype == bool else self.names.iloc[selection]
        )

    def write(self, path: Path, axes: Sequence[str], units: str) -> None:
        """Write the items to HDF5.

        Parameters
        ----------
        path
            The file, written whole or not at all.
        axes, units
            Names of the axes of the first array, and units of its values.
        """
        import h5py

        with hdf5_written_whole(path) as file:
            data = [file.create_dataset(name, data=values, track_times=False) for name, values in self.arrays.items()]
            data[0].attrs.update({"axes": list(axes), "units": units})
            for dataset, values in zip(data, self.arrays.values(), strict=True):
                dataset.attrs[DIGEST] = _digest(values)
            for column in self.names:
                texts = list(self.names[column].astype(str))
                file.create_dataset(str(column), data=texts, dtype=h5py.string_dtype(), track_times=False)
            file.attrs["provenance"] = json.dumps(_plain(dict(self.provenance)), sort_keys=True)

    @classmethod
    def read(
        cls, path: Path, arrays: Sequence[str] = ("values", "labels"), names: Sequence[str] = ("record",)
    ) -> Items:
        """Read the arrays and columns of these names from a file that `write` wrote.

        Raises
        ------
        UserError
            If the file is missing, in use, damaged even in one bit, or lacks an array or a column.
        """
        import pandas as pd

        with _reading(path) as file:
            table = pd.DataFrame({name: list(file[name].asstr()[()]) for name in names}, dtype=str)
            values = {name: _checked(file[name]) for name in arrays}
            return cls(values, table, path, json.loads(file.attrs["provenance"]))


@contextmanager
def hdf5_written_whole(path: Path) -> Iterator[h5py.File]:
    """Yield an HDF5 file that is written, whole or not at all, when the block ends without an error.

    It is made in memory and written by Python, because HDF5 ends the process with a segmentation fault if the disk is
    full.
    """
    import h5py

    with h5py.File(path.name, "w", driver="core", backing_store=False) as file:
        yield file
        file.flush()
        content = file.id.get_file_image()
    with written_whole(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def _reading(path: Path) -> Iterator[h5py.File]:
    """Yield an HDF5 file; a file that cannot be opened now and a damaged one become different `UserError`."""
    import h5py

    try:
        # Items are written whole. A lock only shows that another program uses the file. Some file systems lack locks.
        with h5py.File(path, "r", locking="best-effort") as file:
            yield file
    except OSError as error:
        if error.errno is None:  # the content is at fault, not the operating system
            raise UserError(f"Cannot read the items {path}: {error}. Delete the file and run again.") from error
        reason = "another program holds it" if error.errno == errno.EAGAIN else os.strerror(error.errno)
        raise UserError(
            f"Cannot open the items {path}: {reason}. The file is probably not damaged: close the programs that use "
            "it, check the disk and the permissions, and run again."
        ) from error
    except (KeyError, ValueError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read the items {path}: {error}. Delete the file and run again.") from error


def _checked(data: h5py.Dataset) -> np.ndarray:
    """Return the values of a dataset; raise ``ValueError`` if they are not the values that were written."""
    values = np.asarray(data[()])
    if data.attrs[DIGEST] != _digest(values):
        raise ValueError(f"the values of {data.name} are not those that were written")
    return values


def _digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()
