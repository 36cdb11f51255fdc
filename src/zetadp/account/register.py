"""Chains of lines, and the register: which ledgers a folder has, where each ends, and which cohorts share patients.

Ledgers and their register are files of lines in JSON. A hash chains each line to the one before, so that edits show. A
file does not show that its last lines were cut off. Anyone who stored a later head of the chain can detect it.

The remaining ledgers do not show that one was deleted or lost its last lines, so a total over them would silently be
too low. The register names every ledger, with its head, when an attempt begins, releases something for the first time,
continues or is closed. `zetadp.account.book` refuses a total if the folder and the register differ. The register also
holds keyed hashes of the cohort's training records and of the people whom single ledgers are about.

Each line of the register holds a keyed hash, so that nobody without the folder's secret can write one,
and each attempt names the register's head in its first line, so that an old copy of the register shows. Whoever can
read the secret and write the folder can forge both; a head that is kept elsewhere shows that.

The secret is a file next to the ledgers, used only there. Do not show or lose it. It also makes keyed hashes of private
data: someone who knows all patients but one could confirm the last one from a plain hash, and a keyed hash reveals
nothing without its key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zetadp.base.storage import lock, make_folder, remove_leftovers, sync_folder, writing, written_whole
from zetadp.base.validation import UserError

START = "0" * 64
"""Head of an empty chain."""
NAME = "secret"
REGISTER = "register"
"""File that names all ledgers of a folder, with a keyed hash in each line."""
BYTES = 32


class BrokenChainError(ValueError):
    """A line that does not follow from the one before, or that is not a line of such a file.

    Attributes
    ----------
    number
        Number of the line, from one.
    why
        What is wrong with it.
    """

    def __init__(self, number: int, why: str = "does not follow from the lines before it") -> None:
        super().__init__(f"line {number} {why}")
        self.number, self.why = number, why


@dataclass(frozen=True)
class Link:
    """One line of a chain.

    Attributes
    ----------
    entry
        Its content.
    head
        Hash of this line and all before it.
    text
        The line as it stands in a file, without its line break.
    """

    entry: dict[str, Any]
    head: str
    text: str

    @classmethod
    def after(cls, head: str, entry: Mapping[str, Any]) -> Link:
        """Return the line with the content ``entry`` that follows a chain with this head."""
        content = json.dumps(entry)
        new = hashlib.sha256((head + content).encode()).hexdigest()
        return cls(dict(entry), new, f'{{"chain":"{new}","entry":{content}}}')


def follow(lines: Iterable[str | bytes], head: str = START) -> Iterator[Link]:
    """Read lines, and check that each follows from the one before.

    A line must be the very text that `Link.after` writes. Another spelling of the same content, such as one with a line
    break in it, would be read differently once it is in a file.

    Raises
    ------
    BrokenChainError
        At the first line that does not follow or is not a line of a chain.
    """
    for number, line in enumerate(lines, start=1):
        try:
            text = line if isinstance(line, str) else line.decode()
            link = Link.after(head, json.loads(text)["entry"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BrokenChainError(number) from error
        if link.text != text:
            raise BrokenChainError(number)
        head = link.head
        yield link


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
                if (folder / REGISTER).exists():
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
    with path.with_name(f".{path.name}.lock").open("ab") as file:
        lock(file, path)
        if path.exists():
            return
        with written_whole(path) as temporary:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(handle, secrets.token_bytes(BYTES).hex().encode())
            finally:
                os.close(handle)


@dataclass
class Register:
    """What the register of a folder says.

    Attributes
    ----------
    exists
        Whether there is a register.
    last
        The last head that is named for each ledger, by the name of its file.
    shares
        Cohorts that share training records with this one, by the name of their folder, and the number of records.
    records
        Keyed hashes of the cohort's training records. Another secret could not recognise them.
    people
        Keyed ids of the people whom a ledger is about, by the name of its file. Without an entry, a ledger is about all
        of the cohort.
    bare_tags
        For each keyed id of a person, the keyed bare form of the id (`zetadp.base.names.bare_key`).
    heads
        Every head that the register has had.
    """

    exists: bool = False
    last: dict[str, str] = field(default_factory=dict)
    shares: dict[str, int] = field(default_factory=dict)
    records: set[str] = field(default_factory=set)
    people: dict[str, set[str]] = field(default_factory=dict)
    bare_tags: dict[str, str] = field(default_factory=dict)
    heads: set[str] = field(default_factory=lambda: {START})

    @classmethod
    def read(cls, folder: Path) -> Register:
        """Read the register of a folder. A folder without one has an empty register.

        Raises
        ------
        UserError
            If the register was edited, is of another version or cannot be read, or if its secret is missing.
        """
        path = folder / REGISTER
        try:
            *lines, _ = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise UserError(f"Cannot read the register {path}: {error.strerror}.") from error
        key, register, head = Secret.of(folder), cls(exists=True), START
        try:
            for number, link in enumerate(follow(lines), start=1):
                content = {name: value for name, value in link.entry.items() if name != "tag"}
                if link.entry.get("tag") != _tag(key, head, content):
                    raise BrokenChainError(number, "was not written with the secret of the folder")
                if not register._take(content):
                    raise UserError(
                        f"Expected lines of the known kinds in the register {path}, found another in line {number}. No "
                        "total can be computed from it here: use the version of zetadp that wrote it."
                    )
                head = link.head
                register.heads.add(head)
        except BrokenChainError as error:
            raise UserError(f"The register {path} was edited or damaged: {error}. Restore it from a backup.") from error
        return register

    def _take(self, content: Mapping[str, Any]) -> bool:
        """Add the content of a line; return whether it is of a kind that this version knows."""
        match dict(content):
            case {"ledger": str(ledger), "head": str(head)}:
                self.last[ledger] = head
            case {"shares": str(other), "records": int(count)}:
                self.shares[other] = max(count, self.shares.get(other, 0))
            case {"records": list(tags)}:
                self.records.update(tags)
            case {"people": list(tags), "bare": list(bare_tags), "ledger": str(ledger)}:
                self.people.setdefault(ledger, set()).update(tags)
                self.bare_tags |= dict(zip(tags, bare_tags, strict=True))
            case _:
                return False
        return True


def head_beside(ledger: Path) -> str:
    """Return the head of the register next to a ledger."""
    path = ledger.parent / REGISTER
    return _last(path.read_bytes()) if path.exists() else START


def note(folder: Path, content: Mapping[str, Any]) -> None:
    """Add a line to the register of a folder, and sync.

    Parameters
    ----------
    folder
        The folder of ledgers.
    content
        ``ledger`` and ``head``; ``shares`` and ``records``, a number; ``records``, keyed hashes; or ``people``,
        ``bare`` and ``ledger``.

    Raises
    ------
    UserError
        If the disk is full or read-only, or if the secret of an existing register is missing.
    """
    path, key = folder / REGISTER, Secret.of(folder)
    with writing(path):
        make_folder(folder)
        with path.open("a+b", buffering=0) as file:
            lock(file, path)
            file.seek(0)
            known = file.read()
            if torn := len(known) - (known.rfind(b"\n") + 1):  # by a crash, before anything named the line
                file.truncate(len(known) - torn)
            head = _last(known)
            line = f"{Link.after(head, {**content, 'tag': _tag(key, head, content)}).text}\n".encode()
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        if not known:
            sync_folder(folder)


def _tag(key: Secret, head: str, content: Mapping[str, Any]) -> str:
    """Return the keyed hash of a line's content and of all lines before it."""
    return key.tag(f"{head} {json.dumps(dict(content))}")


def _last(content: bytes) -> str:
    """Return the head that the last whole line names."""
    lines = content.split(b"\n")[:-1]
    return lines[-1].split(b'"', 4)[3].decode() if lines else START
