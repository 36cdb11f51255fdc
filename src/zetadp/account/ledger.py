"""The append-only list of every release, written and synced before the release that it describes.

Each run has one file, with one JSON object per line. A hash chains each line to the one before, so edits show. After a
crash, the ledger can contain a round that was never released, which over-counts. It can never lack a round that was
released. Ledgers are not declared outputs of the workflow, because Snakemake deletes these when a job fails or runs
again. Training a model again appends to its ledger, because earlier releases stay released.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from zetadp.account import register
from zetadp.account.declaration import Declaration
from zetadp.account.register import REGISTER, START, BrokenChainError, Link, Register, follow
from zetadp.accounting.events import Event, entries_of, events_in
from zetadp.accounting.threat import NoiseSource
from zetadp.base.installed import PackageError
from zetadp.base.storage import lock, make_folder, remedy, sync_folder, written_whole
from zetadp.base.validation import UserError, checked_name, shown

FORMAT = 3
"""Version of a ledger's lines. There is one: a ledger of another format is refused."""
_NONE = Declaration(training={}, noise=NoiseSource.SEEDED, delta=0.5, cohort_unit="record")
"""Declaration of an attempt that has not begun."""
HDF5 = b"\x89HDF\r\n\x1a\n"
"""First bytes of an HDF5 file, such as one of released rows."""


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


class LostError(UserError):
    """Ledgers and their register differ: something that was recorded is missing, or something else was brought."""

    def __init__(self, problems: Iterable[str]) -> None:
        super().__init__(
            f"The ledgers are not all that was recorded: {'; '.join(problems)}. A total over the rest would be too "
            "low. Restore the files from a backup."
        )


class OtherFormatError(BrokenChainError):
    """The first line of an attempt that another version of zetadp wrote."""


class MissingLawError(BrokenChainError):
    """A line with a release of a law of noise that is not installed."""


@dataclass(frozen=True)
class Signature:
    """What a node signs of its ledger.

    Attributes
    ----------
    head
        Head of the chain, which stands for every line up to it.
    text
        The signature, in hexadecimal.
    """

    head: str
    text: str


@dataclass
class Attempt:
    """One start of a run from its first round, even if it is interrupted and resumed.

    Attributes
    ----------
    declaration
        What the attempt's first line declares.
    events
        Every recorded release. A round that was released again with other bytes is listed and counted twice.
    sent
        Hash of each message, by round and by the number of earlier releases of the round. A resumed run that computes
        the same bytes again sends nothing new.
    torn
        Number of lines that a crash cut off. Each counts as one more round at every node of the attempt.
    heads
        Every head of the chain during the attempt. An earlier copy of one shows whether lines were cut off since.
    identity
        The head after the attempt's first line, which no other attempt has.
    last
        The head after the attempt's last line.
    caps
        The limit under which the attempt was continued, each time it was; None if there was none. The declaration
        has that under which it began.
    permitted
        Number of attempts that the user permitted while this attempt was the last.
    register
        Head of the register when the attempt began.
    draws
        Identity of the attempt's seeded draws: hash of the plan, keyed hash of the data. None if the noise came from
        the operating system.
    closed
        Whether the attempt ended before its first release. An attempt that has begun and is not closed counts in full.
    signature
        Signature of the head before the attempt's last line, if that line is a signature. Then it covers every line.
    """

    declaration: Declaration
    events: list[Event] = field(default_factory=list)
    sent: dict[tuple[int, int], str] = field(default_factory=dict)
    torn: int = 0
    heads: set[str] = field(default_factory=set)
    identity: str = START
    last: str = START
    caps: list[dict[str, float] | None] = field(default_factory=list)
    permitted: int = 1
    register: str | None = None
    draws: dict[str, str] | None = None
    closed: bool = False
    signature: Signature | None = None

    def __post_init__(self) -> None:
        """Count the events of each round."""
        self._of_round: defaultdict[int, Counter[Event]] = defaultdict(Counter)
        self._count(self.events)

    def add(self, events: Sequence[Event]) -> None:
        """Add recorded releases."""
        self.events += events
        self._count(events)

    def _count(self, events: Iterable[Event]) -> None:
        for event in events:
            self._of_round[event.round][event] += 1

    def recorded(self, event: Event) -> int:
        """Return how often an event was recorded."""
        return self._of_round[event.round][event]

    def times(self, round_number: int) -> int:
        """Return how often a round was recorded. If nodes differ, the largest number counts."""
        of_nodes: Counter[str] = Counter()
        for event, count in self._of_round[round_number].items():
            of_nodes[event.node] += count
        return max(of_nodes.values(), default=0)

    @property
    def unused(self) -> bool:
        """Whether the attempt recorded nothing at all: no release, and no line that a crash cut off."""
        return not self.events and not self.torn

    def releases(self) -> list[Event]:
        """Return every release to be accounted, torn lines included."""
        return self.events + list({event.node: event for event in self.events}.values()) * self.torn


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
        with _writing(path):
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
        self.attempts, self._head, torn = _parse(self.path)
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
        with _writing(self.path):
            # Unbuffered: after a failed write nothing is left that closing the file would try to write again.
            self._file = self.path.open("a+b", buffering=0)
            self._size = os.fstat(self._file.fileno()).st_size
            sync_folder(self.path.parent)

    def _take_lock(self) -> None:
        try:
            with _writing(self.path):
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
            _take(link, self.attempts)
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
        with _writing(self.path):
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

    def knows(self, head: str) -> bool:
        """Return whether the chain had this head during the attempt; if not, lines were cut off or changed since."""
        return head in self._attempt.heads and not self._attempt.closed

    def ever_knew(self, head: str) -> bool:
        """Return whether the chain had this head during any attempt, also one that is over."""
        return any(head in attempt.heads for attempt in self.attempts)

    def resume(self, round_number: int, cap: Mapping[str, float] | None = None) -> None:
        """Record that the attempt continues from a checkpoint before ``round_number``, and under which limit."""
        self._append({"kind": "resume", "round": round_number, **({} if cap is None else {"cap": dict(cap)})})
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
        with _writing(self.path):
            while line:
                written = file.write(line)
                self._size += written
                line = line[written:]
        self._head, self._synced = link.head, False
        if sync:
            self.sync()
        _take(link, self.attempts)

    def _same_file(self) -> IO[bytes]:
        """Return the open file, if it is the one that lies at the path, and as long as this process left it."""
        file = self._file
        with _writing(self.path):
            there = self.path.stat()
            same = file is not None and os.path.samestat(there, os.fstat(file.fileno())) and there.st_size == self._size
        if file is None or not same:
            raise UserError(
                f"Expected the ledger {self.path} as this process left it, found another file in its place, or one of "
                "another length. Nothing was released. End what else writes there, and restore the ledger."
            )
        return file


def fault_of(path: Path, attempts: Sequence[Attempt], known: Register, before: Register | None = None) -> str:
    """Return how a ledger differs from what the register next to it says; empty if it does not.

    Parameters
    ----------
    path, attempts
        The ledger.
    known
        The register, read after the ledger. A ledger that has released nothing may be newer: a crash came between.
    before
        The register, read before the ledger, where other processes may add to both.
    """
    heads = {START}.union(*(attempt.heads for attempt in attempts))
    register_path = path.parent / REGISTER
    if (last := (before or known).last.get(path.name)) is not None and last not in heads:
        return f"{path} has lost lines at its end"
    if known.exists and not {attempt.register for attempt in attempts} - {None} <= known.heads:
        return f"{register_path} has lost lines at its end, or {path} was copied from another folder"
    if path.name not in known.last and not all(attempt.unused for attempt in attempts):
        if not known.exists:
            return f"{register_path} is missing"
        return f"{path} is not named by {register_path}: it was copied or renamed"
    return ""


def read_ledger(path: Path) -> list[Attempt]:
    """Read all attempts of a ledger file.

    Raises
    ------
    UserError
        If the file cannot be read or was edited. A last line without its line break, as a crash leaves it, is counted
        as a release of the last attempt.
    """
    attempts, _, torn = _parse(path)
    if torn and attempts:
        attempts[-1].torn += 1
        attempts[-1].signature = None
    return attempts


def require_attempts(path: Path, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """Return the attempts of a ledger; raise a `UserError` if there is none, which needs no permission."""
    if not attempts:
        raise UserError(f"Expected a ledger of a run, found nothing in {path}. The first attempt needs no permission.")
    return attempts


def protected_attempts(attempts: Sequence[Attempt]) -> int:
    """Return the number of attempts that released something with noise from the operating system."""
    return sum(bool(attempt.releases()) and attempt.declaration.noise == NoiseSource.OS for attempt in attempts)


def permitted_attempts(attempts: Iterable[Attempt]) -> int:
    """Return the number of attempts that may release something if the noise protects real patients."""
    return max((attempt.permitted for attempt in attempts), default=1)


def _parse(path: Path) -> tuple[list[Attempt], str, int]:
    """Return the attempts, the head of the chain and the length of a torn last line in bytes."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read the ledger {path}: {error.strerror}.") from error
    if content.startswith(HDF5):
        raise UserError(
            f"Expected a ledger or the folder of a run, found an HDF5 file in {path}. If it is a release of rows, give "
            "the ledger that recorded it, by default ledgers/NAME.jsonl next to the features. `zetadp statement "
            f"{path}` prints what the rows cost."
        )
    *lines, tail = content.split(b"\n")
    attempts: list[Attempt] = []
    try:
        head = take_lines(lines, attempts)
    except OtherFormatError as error:
        raise UserError(
            f"Expected a ledger of format {FORMAT}, found that line {error.number} of {path} {error.why}. No epsilon "
            "can be computed from it here: use the version of zetadp that wrote it."
        ) from error
    except MissingLawError as error:
        raise UserError(
            f"No epsilon can be computed here from line {error.number} of the ledger {path}. {error.why}"
        ) from error
    except BrokenChainError as error:
        raise UserError(
            f"Line {error.number} of the ledger {path} {error.why}: the file was edited or damaged. No epsilon can be "
            "computed from it; restore it from a backup."
        ) from error
    return attempts, head, len(tail)


def take_lines(lines: Iterable[str | bytes], attempts: list[Attempt], head: str = START) -> str:
    """Add what the lines of a ledger say to the attempts so far, and return the head of the chain after them.

    Parameters
    ----------
    lines
        Whole lines, without their line breaks.
    attempts
        The attempts of the lines before; new ones are appended.
    head
        Head of the chain before the lines.

    Raises
    ------
    BrokenChainError
        At the first line that does not follow from the one before, or that is not a line of a ledger.
    MissingLawError
        If a line records a release of a law of noise that is not installed.
    """
    for number, link in enumerate(follow(lines, head), start=1):
        try:
            _take(link, attempts, number)
        except BrokenChainError:
            raise
        except PackageError as error:
            raise MissingLawError(number, str(error)) from error
        except KeyError as error:
            raise BrokenChainError(number, f"lacks the key {error}") from error
        except (AttributeError, OverflowError, TypeError, ValueError, UserError) as error:
            raise BrokenChainError(number, f"holds a value that no ledger has ({shown(str(error))})") from error
        head = link.head
    return head


def _take(link: Link, attempts: list[Attempt], number: int = 0) -> None:
    """Add the content of a line to the attempts so far: the only place where a line is understood."""
    entry = link.entry
    kind = entry.get("kind")
    signature = None
    if kind == "start":
        if (version := entry.get("format")) != FORMAT:
            raise OtherFormatError(number, f"has format {version}")
        known, draws = entry.get("register"), entry.get("draws")
        attempts.append(Attempt(Declaration.from_json(entry), identity=link.head, register=known, draws=draws))
    elif kind is None or not attempts:
        raise BrokenChainError(number, "is not a line of a ledger")
    elif kind == "round":
        if attempts[-1].closed:
            raise BrokenChainError(number, "records a release of an attempt that was closed")
        attempts[-1].add(events_in(entry["releases"]))
    elif kind == "sent":
        attempts[-1].sent[entry["round"], entry.get("again", 0)] = entry["digest"]
    elif kind == "permit":
        attempts[-1].permitted = entry["attempts"]
    elif kind == "torn":
        attempts[-1].torn += 1
    elif kind == "closed":
        if not attempts[-1].unused:
            raise BrokenChainError(number, "closes an attempt that has released something")
        attempts[-1].closed = True
    elif kind == "signed":
        signature = Signature(attempts[-1].last, str(entry["signature"]))
    elif kind == "resume":
        attempts[-1].caps.append(entry.get("cap"))
    else:
        raise BrokenChainError(number, f"is of the kind {shown(str(kind))!r}, which this version does not know")
    attempts[-1].heads.add(link.head)
    attempts[-1].last, attempts[-1].signature = link.head, signature


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one message; a lock that is taken is not such an error."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise UserError(
            f"Cannot write the ledger {path}: {error.strerror or error}. Nothing was released. {remedy(error)}"
        ) from error
