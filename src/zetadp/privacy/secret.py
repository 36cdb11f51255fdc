"""The secret of a cohort's ledgers, and keyed hashes of private data.

Someone who knows all patients but one could confirm the last one from a plain hash of the data. A keyed hash reveals
nothing without its key. The key is a secret file next to the ledgers, used only there. Do not show or lose it.
"""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from zetadp.base.storage import make_folder, remove_leftovers, sync_folder, writing
from zetadp.base.validation import UserError

NAME = "secret"
RECORDS = "records"
"""File of the keyed hashes of a cohort's training records. Another secret could not recognise them."""
REGISTER = "register"
"""File that names all ledgers of a folder, with a keyed hash in each line (`zetadp.privacy.register`)."""
BYTES = 32


class Secret:
    """A secret, and what can be done with it.

    Parameters
    ----------
    key
        At least 32 random bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of(cls, folder: Path) -> Secret:
        """Return the secret of a folder of ledgers, and create it if there is none.

        Raises
        ------
        UserError
            If the file cannot be read or written, holds no secret, or was lost while hashes made with it remain.
        """
        path = folder / NAME
        with writing(path):
            make_folder(folder)
            remove_leftovers(path)
            if not path.exists():
                if any((folder / name).exists() for name in (RECORDS, REGISTER)):
                    raise UserError(
                        f"The secret {path} is missing: without it, the register cannot be checked, and patients who "
                        "also belong to another cohort cannot be recognised. Restore it from a backup."
                    )
                _make(path)
        try:
            key = bytes.fromhex(path.read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            raise UserError(f"Cannot read the secret {path}: {error}. Restore it from a backup.") from error
        if len(key) != BYTES:
            raise UserError(f"Expected {BYTES} bytes in the secret {path}, found {len(key)}. Restore it from a backup.")
        return cls(key)

    @property
    def name(self) -> str:
        """Name of the secret, which reveals nothing else about it."""
        return self.tag("name of this secret")

    def tag(self, content: str) -> str:
        """Return the keyed hash (HMAC-SHA256) of a text."""
        return hmac.digest(self._key, content.encode(), "sha256").hex()


def _make(path: Path) -> None:
    """Write a new secret, whole, unless another process does so first."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(handle, secrets.token_bytes(BYTES).hex().encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        with suppress(FileExistsError):
            path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
