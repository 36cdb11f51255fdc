"""The server's copy of a node's ledger: every line is checked against the chain before it is believed."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zetadp.base.storage import make_folder, read_json, sync_folder, write_json
from zetadp.base.validation import UserError
from zetadp.privacy.chain import START, BrokenChainError, follow
from zetadp.privacy.events import Round

IDENTITIES = "identities.json"
"""File next to the copies of the nodes' ledgers."""


class Mirror:
    """A copy of one node's ledger, on the server's disk.

    Parameters
    ----------
    path
        The copy; made when the first lines come.

    Attributes
    ----------
    head
        Head of the chain so far.

    Raises
    ------
    UserError
        If the copy was edited.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = START
        self._heads = {START}
        self._earlier: list[Round] = []
        self._events: list[Round] = []
        self._attempt: str | None = None
        if path.exists():
            *lines, torn = path.read_text(encoding="utf-8").split("\n")
            try:
                self._take(lines)
            except BrokenChainError as error:
                raise UserError(
                    f"The copy {path} of a node's ledger was edited or damaged: {error}. Restore it from a backup."
                ) from error
            if torn:  # a crash cut the last line off; the node sends it again, since the head is the one before
                with path.open("r+b") as file:
                    file.truncate(path.stat().st_size - len(torn.encode()))

    @property
    def known(self) -> str:
        """The head to name in a request; empty where no line is known."""
        return "" if self.head == START else self.head

    def extend(self, lines: Sequence[str]) -> None:
        """Check lines against the chain, then append and sync those that are new.

        Raises
        ------
        BrokenChainError
            If the lines do not follow: the node's ledger was cut, edited or exchanged. Nothing is kept then.
        UserError
            If the disk is full or read-only.
        """
        lines = self._take(lines)
        if not lines:
            return
        try:
            make_folder(self.path.parent)
            with self.path.open("ab") as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self.path.parent)
        except OSError as error:
            raise UserError(
                f"Cannot write {self.path}: {error.strerror or error}. Free space or allow writing, then run again."
            ) from error

    @property
    def releases(self) -> list[Round]:
        """Every release in the ledger, of all attempts."""
        return [*self._earlier, *self._events]

    def of_attempt(self, attempt: str) -> list[Round]:
        """Return the releases that the node has recorded for the server's present attempt, in their order."""
        return list(self._events) if self._attempt == attempt else []

    def _take(self, lines: Sequence[str]) -> list[str]:
        """Follow the chain over lines and return those that are new; state changes only where all of them follow."""
        attempt, events, earlier = self._attempt, list(self._events), list(self._earlier)
        # Lines shown before: a head stands for its line and for all before it.
        new = list(itertools.dropwhile(lambda line: _head_of(line) in self._heads, lines))
        links = list(follow(new, self.head))
        for number, link in enumerate(links, start=1):
            if link.entry.get("kind") == "start":
                attempt, events, earlier = link.entry.get("federation"), [], earlier + events
                continue
            try:
                events += _events(link.entry, events)
            except (KeyError, TypeError, UserError) as error:
                raise BrokenChainError(number) from error
        self.head, self._attempt, self._events = links[-1].head if links else self.head, attempt, events
        self._earlier = earlier
        self._heads.update(link.head for link in links)
        return new


def copies_of(ledger: Path) -> Path:
    """Return the folder of the copies of nodes' ledgers, beside the account of a training."""
    return ledger.with_name(f"{ledger.stem}.nodes")


def note_identities(folder: Path, identities: Mapping[str, str]) -> None:
    """Note whose ledgers the copies in a folder are: the identity of each node (`protocol.Line.identity`)."""
    write_json(folder / IDENTITIES, identities)


def heads_elsewhere(folder: Path, identity: str) -> list[str]:
    """Return the last head of each copy of a node's ledgers from other trainings, in the folders next to one.

    Parameters
    ----------
    folder
        Folder of the copies of the present training.
    identity
        The node's.

    Raises
    ------
    UserError
        If a copy was edited.
    """
    found = []
    for other in sorted(folder.parent.glob(f"*.nodes/{IDENTITIES}")):
        if other.parent == folder:
            continue
        names = [name for name, known in read_json(other).items() if known == identity]
        found += [Mirror(other.with_name(f"{name}.jsonl")).known for name in names]
    return [head for head in found if head]


def _head_of(line: str) -> str | None:
    """Return the head that a line names, if it is a line of a chain."""
    try:
        found = json.loads(line)["chain"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def _events(entry: dict[str, Any], before: Sequence[Round]) -> list[Round]:
    """Return the releases that a line stands for; a torn line stands for one more of the last round."""
    if entry["kind"] == "torn":
        return list(before[-1:])
    if entry["kind"] != "round":
        return []
    return [
        Round.from_json({**{key: value for key, value in release.items() if key != "nodes"}, "node": node})
        for release in entry["releases"]
        for node in release["nodes"]
    ]
