"""The register of a cohort's ledgers, with the heads of their chains.

The remaining ledgers do not show that a ledger was deleted or lost its last lines, so a total over them would silently
be too low. The register therefore names every ledger, with its head, when an attempt begins, continues or is closed.
`zetadp.privacy.account` refuses to add up the ledgers if one of them, or the end of one, is missing. The register is
itself a chain, and each attempt names the register's head in its first line, so that an old copy of the register is
detected too.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from zetadp.base.storage import make_folder, sync_folder
from zetadp.base.validation import UserError
from zetadp.privacy.chain import START, BrokenChainError, Link, follow

NAME = "register"
"""Name of the file. Unlike that of a ledger it does not end in .jsonl."""
TAIL = 4096
"""Number of bytes at the end of the file that contain its last line."""


def head_beside(ledger: Path) -> str:
    """Return the head of the register next to a ledger."""
    path = ledger.parent / NAME
    if not path.exists():
        return START
    with path.open("rb") as file:
        return _last(_tail(file))


def note(ledger: Path, head: str) -> None:
    """Add a ledger's head to the register next to it, and sync.

    Raises
    ------
    UserError
        If the disk is full or read-only.
    """
    path = ledger.parent / NAME
    try:
        make_folder(path.parent)
        with path.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            content = _tail(file)
            torn = len(content) - (content.rfind(b"\n") + 1)
            if torn:  # by a crash, before anything named the line
                file.truncate(file.seek(0, os.SEEK_END) - torn)
            line = f"{Link.after(_last(content), {'ledger': ledger.name, 'head': head}).text}\n".encode()
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        if not content:
            sync_folder(path.parent)
    except OSError as error:
        raise UserError(
            f"Cannot write the register {path}: {error.strerror or error}. Repair the disk or folder, then run again."
        ) from error


def read_register(folder: Path) -> list[Link]:
    """Return the lines of the register of a folder. Without a register there are none.

    Raises
    ------
    UserError
        If the register was edited or cannot be read.
    """
    path = folder / NAME
    try:
        *lines, _ = path.read_bytes().split(b"\n")
        return list(follow(lines))
    except FileNotFoundError:
        return []
    except (OSError, BrokenChainError) as error:
        raise UserError(f"The register {path} was edited or damaged: {error}. Restore it from a backup.") from error


def _tail(file: IO[bytes]) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    return file.read()


def _last(content: bytes) -> str:
    """Return the head that the last whole line names."""
    lines = content.split(b"\n")[:-1]
    return lines[-1].split(b'"', 4)[3].decode() if lines else START
