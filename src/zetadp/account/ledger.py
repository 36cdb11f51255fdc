"""The append-only list of every release, written and synced before the release that it describes.

Each run has one file, with one JSON object per line. A hash chains each line to the one before, so edits show. After a
crash, the ledger can contain a round that was never released, which over-counts. It can never lack a round that was
released. Ledgers are not declared outputs of the workflow, because Snakemake deletes these when a job fails or runs
again. Training a model again appends to its ledger, because earlier releases stay released.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from zetadp.account import register
from zetadp.account.attempts import (
    FORMAT,
    Attempt,
    LostError,
    fault_of,
    heads_of,
    parse_ledger,
    permitted_attempts,
    protected_attempts,
    require_attempts,
    take_line,
)
from zetadp.account.declaration import Declaration, Limit
from zetadp.account.register import REGISTER, START, Link, Register
from zetadp.accounting.events import Event, entries_of
from zetadp.accounting.threat import NoiseSource
from zetadp.base.names import checked_name
from zetadp.base.storage import lock, make_folder, sync_folder, writing, written_whole
from zetadp.base.validation import UserError, shown

_NONE = Declaration(training={}, noise=NoiseSource.SEEDED, delta=0.5, cohort_unit="record")
"""Declaration of an attempt that has not begun."""
_CONSEQUENCE = "Nothing was released."
"""What follows from every error of writing, since a release is recorded before it is made."""


def check_ledger_name(path: Path) -> None:
    """Refuse a name for a new ledger that totals would not find, or that another file of an account has.

    Raises
    ------
    UserError
        If it is not ``NAME.jsonl``, with a name that a run may have.
    """
    if path.suffix != ".jsonl":
        raise UserError(
            f"Expected the name of a ledger that ends with .jsonl, such as {path.with_suffix('.jsonl').name}, found "
            f"{shown(str(path))}."
        )
    checked_name(path.stem, f"the ledger {shown(str(path))}")


class Ledger:
    """An open ledger of one run.

    The register (`zetadp.account.register`) names the head when an attempt begins, releases something for the first
    time, continues or is closed. While the ledger is open, a lock file next to it keeps other processes out; the ledger
    itself may be replaced by another file, so it cannot be the thing that is locked.

    Parameters
    ----------
    path
        The ledger file. It is created if absent, unless the register names it.

    Attributes
    ----------
    attempts
        Attempts begun so far, with everything that they recorded.
    before_record
        Called with releases before they are recorded. An exception prevents it.

    Raises
    ------
    UserError
        If the file was edited, is not as its register says, or if another process has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attempts: list[Attempt] = []
        self._head, self._synced, self._registered = START, True, START
        self.before_record: Callable[[Sequence[Event]], None] | None = None
        self._file: IO[bytes] | None = None
        with writing(path, _CONSEQUENCE):
            make_folder(path.parent)
            self._lock: IO[bytes] = path.with_name(f".{path.name}.lock").open("ab")
        try:
            self._take_lock()
            self._take_up()
        except BaseException:
            self.close()
            raise

    def _take_up(self) -> None:
        """Check all of the file, and continue after its last attempt."""
        known = Register.read(self.path.parent)
        if not self.path.exists() and self.path.name in known.last:
            raise LostError([f"{self.path} is missing"])
        self._open()
        self.attempts, self._head, torn = parse_ledger(self.path)
        self._registered = self._head
        if fault := fault_of(self.path, self.attempts, known):
            raise LostError([fault])
        if torn:
            self._mend(torn)

    @property
    def _attempt(self) -> Attempt:
        """The attempt in progress; an empty one before the first."""
        return self.attempts[-1] if self.attempts else Attempt(_NONE)

    def _open(self) -> None:
        with writing(self.path, _CONSEQUENCE):
            # Unbuffered: after a failed write nothing is left that closing the file would try to write again.
            self._file = self.path.open("a+b", buffering=0)
            self._size = os.fstat(self._file.fileno()).st_size
            sync_folder(self.path.parent)

    def _take_lock(self) -> None:
        with writing(self.path, _CONSEQUENCE):
            try:
                lock(self._lock, self.path, wait=False)
            except BlockingIOError as error:
                raise UserError(
                    f"The ledger {self.path} is in use: another process trains the same run. Wait for it, or end it."
                ) from error

    def _mend(self, torn: int) -> None:
        """Replace a line that a crash cut off by a note, so that it still counts as a release of an attempt.

        The whole file is replaced at once: it always contains either the torn line or the note.
        """
        content, link = self.path.read_bytes()[:-torn], Link.after(self._head, {"kind": "torn"})
        if self.attempts:
            content += f"{link.text}\n".encode()
        with written_whole(self.path) as temporary:
            temporary.write_bytes(content)
        if self._file is not None:
            self._file.close()
        if self.attempts:
            self._head = link.head
            take_line(link, self.attempts)
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # On a full disk the register cannot be written either. This must not hide the first message.
        with suppress(UserError) if error is not None else nullcontext():
            self.close()

    def close(self) -> None:
        """Note the head in the register, close the file and release its lock."""
        if self._lock.closed:
            return
        try:
            if self._file is not None:
                self._register()
        finally:
            if self._file is not None:
                self._file.close()
            self._lock.close()

    @property
    def head(self) -> str:
        """Head of the chain. The chain is synced first, so a power failure cannot lose a line that was named."""
        self.sync()
        return self._head

    def sync(self) -> None:
        """Write every line to disk. Nothing may name or copy a line before."""
        if self._synced or self._file is None:
            return
        with writing(self.path, _CONSEQUENCE):
            os.fsync(self._file.fileno())
        self._synced = True

    def _register(self) -> None:
        if self._registered != self._head:
            register.note(self.path.parent, {"ledger": self.path.name, "head": self.head})
            self._registered = self._head

    def start(self, declaration: Declaration, draws: Mapping[str, str] | None = None) -> None:
        """Begin a new attempt, from the first round.

        Parameters
        ----------
        declaration
            Everything that it declares.
        draws
            As in `Attempt`.
        """
        if self.attempts and self._attempt.unused and not self._attempt.closed:
            # Nothing was released: a first release is recorded, and named by the register, before it is made.
            self._append({"kind": "closed"})
        if not (self.path.parent / REGISTER).exists():
            # First of all, so that a register which is missing later was lost.
            register.note(self.path.parent, {"ledger": self.path.name, "head": START})
        # The nonce never repeats, so files stored with a lost ledger are never mistaken for those of the next one.
        nonce = secrets.token_hex(16)
        # The line names the register's head, so that later ledgers show whether the register has lost its end.
        begin = {"kind": "start", "format": FORMAT, "attempt": len(self.attempts) + 1}
        begin |= {"nonce": nonce, "register": register.head_beside(self.path)}
        begin |= {} if draws is None else {"draws": dict(draws)}
        self._append({**begin, **declaration.to_json()})
        self._register()

    @property
    def identity(self) -> str:
        """Unique identity of the attempt."""
        return self._attempt.identity

    def has_head(self, head: str) -> bool:
        """Return whether the chain had this head during the attempt; if not, lines were cut off or changed since."""
        return head in self._attempt.heads and not self._attempt.closed

    def ever_had_head(self, head: str) -> bool:
        """Return whether the chain had this head during any attempt, also one that is over."""
        return head in heads_of(self.attempts)

    def resume(self, round_number: int, cap: Limit | None = None) -> None:
        """Record that the attempt continues from a checkpoint before ``round_number``, and under which limit."""
        self._append({"kind": "resume", "round": round_number, **({} if cap is None else {"cap": asdict(cap)})})
        self._register()

    @property
    def permitted(self) -> int:
        """Number of attempts that may release something if the noise protects real patients."""
        return permitted_attempts(self.attempts)

    def permit(self) -> None:
        """Permit one more attempt of a run whose noise protects real patients.

        Raises
        ------
        UserError
            If the ledger has no attempt yet: the first attempt needs no permission.
        """
        self._append({"kind": "permit", "attempts": protected_attempts(require_attempts(self.path, self.attempts)) + 1})
        self._register()

    def record(self, events: Sequence[Event]) -> None:
        """Write and sync the events of a round. Their releases may be made only afterwards."""
        if self.before_record is not None:
            self.before_record(events)
        first = not self._attempt.events
        self._append({"kind": "round", "releases": entries_of(events)})
        if first:
            self._register()

    def holds(self, event: Event, times: int = 1) -> bool:
        """Return whether the attempt has recorded the event at least ``times`` times."""
        return self._attempt.recorded(event) >= times

    def releases(self, round_number: int) -> int:
        """Return how often the attempt has recorded a round."""
        return self._attempt.times(round_number)

    def note_sent(self, round_number: int, again: int, digest: str) -> None:
        """Note the hash of a round's messages before they are used.

        A round that is recorded and not noted was never sent. The line is synced before anything names it (see `head`).
        A power failure that loses it also loses everything that the message changed on this machine.

        Parameters
        ----------
        round_number
            The round.
        again
            Number of earlier releases of the round.
        digest
            Hash of the messages.
        """
        self._append({"kind": "sent", "round": round_number, "again": again, "digest": digest}, sync=False)

    def sent(self, round_number: int, again: int = 0) -> str | None:
        """Return the hash of the messages that the attempt sent in a round, or None."""
        return self._attempt.sent.get((round_number, again))

    def sign(self, signature: Callable[[str], str]) -> None:
        """Add a line with the signature of the head, unless the last line is one.

        Parameters
        ----------
        signature
            Returns the signature of a head, in hexadecimal. `zetadp.hospitals.ledgers` checks it.
        """
        if self._attempt.signature is None:
            self._append({"kind": "signed", "signature": signature(self.head)})

    def _append(self, content: Mapping[str, Any], *, sync: bool = True) -> None:
        link = Link.after(self._head, content)
        line = f"{link.text}\n".encode()
        file = self._same_file()
        with writing(self.path, _CONSEQUENCE):
            while line:  # an unbuffered file may take a part of a line, as on a disk that is nearly full
                written = file.write(line)
                self._size += written
                line = line[written:]
        self._head, self._synced = link.head, False
        if sync:
            self.sync()
        take_line(link, self.attempts)

    def _same_file(self) -> IO[bytes]:
        """Return the open file, if it is the one that lies at the path, and as long as this process left it."""
        file = self._file
        with writing(self.path, _CONSEQUENCE):
            there = self.path.stat()
            same = file is not None and os.path.samestat(there, os.fstat(file.fileno())) and there.st_size == self._size
        if file is None or not same:
            raise UserError(
                f"Expected the ledger {self.path} as this process left it, found another file in its place, or one of "
                "another length. Nothing was released. End what else writes there, and restore the ledger."
            )
        return file
