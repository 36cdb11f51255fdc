"""Folders that appear whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``folder`` that takes its place when the block ends without an error.

    Raises
    ------
    UserError
        If ``folder`` holds a file already (folders alone, which workflow engines make in advance, do not count), or
        the disk is full or read-only.
    """
    if folder.exists() and (not folder.is_dir() or any(not path.is_dir() for path in folder.rglob("*"))):
        msg = f"Expected {folder} to be absent or empty, found files in it. Move them away or choose another folder."
        raise UserError(msg)
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
        yield temporary
        # A temporary folder is private to its owner; a folder of data has the usual mode.
        temporary.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    except OSError as error:
        msg = f"Cannot write {folder}: {error.strerror or error}. Free space or choose another folder, then run again."
        raise UserError(msg) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
