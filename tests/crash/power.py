"""A disk that forgets, when the power fails, everything that was not synced.

A file keeps what its last ``fsync`` saw of it. A folder keeps the names that it held at its own last ``fsync``.
Removals and renamings that were not synced are undone. Real file systems forget less.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Self
from unittest import mock


class ForgetfulDisk:
    """Record what is synced below a folder, within a ``with`` block.

    Parameters
    ----------
    root
        The folder; it exists, and counts as synced with all that it holds.
    attic
        Another folder on the same file system, for the contents of files that lost their names.
    """

    def __init__(self, root: Path, attic: Path) -> None:
        self.root, self.attic = root, attic
        attic.mkdir(parents=True, exist_ok=True)
        self._lengths: dict[int, int] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        self._root = root.stat().st_ino
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
            self._see_folder(folder)
        for path in root.rglob("*"):
            if path.is_file():
                self._lengths[path.stat().st_ino] = path.stat().st_size

    def __enter__(self) -> Self:
        sync = os.fsync

        def synced(handle: int) -> None:
            sync(handle)
            found = os.fstat(handle)
            if stat.S_ISDIR(found.st_mode):
                self._see_folder(handle)
            else:
                self._lengths[found.st_ino] = found.st_size

        self._patch = mock.patch.object(os, "fsync", synced)
        self._patch.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._patch.stop()

    def _see_folder(self, folder: int | Path) -> None:
        names = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                found = entry.stat()
                names[entry.name] = (found.st_ino, entry.is_dir())
                if not entry.is_dir() and not (self.attic / str(found.st_ino)).exists():
                    where = folder if isinstance(folder, int) else None
                    source = entry.name if isinstance(folder, int) else entry.path
                    os.link(source, self.attic / str(found.st_ino), src_dir_fd=where)
        self._names[os.stat(folder).st_ino] = names  # noqa: PTH116  (it may be an open folder)

    def state(self) -> str:
        """Return a text that is the same where the same would remain."""
        return repr((self._names, self._lengths))

    def remains(self, target: Path) -> Path:
        """Write what would remain if the power failed now to a new folder, and return it."""
        self._restore(self._root, target)
        return target

    def _restore(self, folder: int, target: Path) -> None:
        target.mkdir(parents=True)
        for name, (inode, is_folder) in self._names.get(folder, {}).items():
            if is_folder:
                self._restore(inode, target / name)
            else:
                shutil.copyfile(self.attic / str(inode), target / name)
                os.truncate(target / name, self._lengths.get(inode, 0))
