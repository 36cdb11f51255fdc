"""The attempts of a run, as the lines of its ledger record them: how a ledger is read, and what it then says.

This is the only place where a line of a ledger is understood. `zetadp.account.ledger` writes the lines.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zetadp.account.declaration import Declaration, Limit
from zetadp.account.register import REGISTER, START, BrokenChainError, Link, Register, follow
from zetadp.accounting.events import Event, events_in
from zetadp.accounting.threat import NoiseSource
from zetadp.base.installed import PackageError
from zetadp.base.validation import UserError, shown

FORMAT = 3
"""Version of a ledger's lines. There is one: a ledger of another format is refused."""
HDF5 = b"\x89HDF\r\n\x1a\n"
"""First bytes of an HDF5 file, such as one of released rows."""
_HEADER_BYTES = 8
"""Bytes at the beginning of a safetensors file, which hold the length of its header."""


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
    caps: list[Limit | None] = field(default_factory=list)
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
    heads = {START} | heads_of(attempts)
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
    attempts, _, torn = parse_ledger(path)
    if torn and attempts:
        attempts[-1].torn += 1
        attempts[-1].signature = None
    return attempts


def heads_of(attempts: Iterable[Attempt]) -> set[str]:
    """Return every head that the chain of a ledger has had during some of its attempts."""
    return set().union(*(attempt.heads for attempt in attempts))


def releases_of(attempts: Iterable[Attempt]) -> list[Event]:
    """Return every release to be accounted of some attempts, torn lines included."""
    return [event for attempt in attempts for event in attempt.releases()]


def made_model(attempts: Iterable[Attempt], model: Path) -> bool:
    """Return whether one of some attempts made a model, whose file names the ledger's head at the end of its run.

    Raises
    ------
    UserError
        If the file is missing, or its header is damaged. The weights are not checked.
    """
    if not (heads := heads_of(attempts)):
        return False
    # The file's header alone is read, without PyTorch, which takes seconds to import.
    try:
        with model.open("rb") as file:
            size = int.from_bytes(file.read(_HEADER_BYTES), "little")
            header = file.read(min(size, model.stat().st_size))  # a damaged size may be beyond all memory
        head = json.loads(json.loads(header)["__metadata__"]["content"]).get("ledger_head")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"Expected a model of a private run, found that {model} is missing or damaged: {error}."
        ) from error
    return head in heads


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


def parse_ledger(path: Path) -> tuple[list[Attempt], str, int]:
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
            take_line(link, attempts, number)
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


def take_line(link: Link, attempts: list[Attempt], number: int = 0) -> None:
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
        attempts[-1].caps.append(None if (cap := entry.get("cap")) is None else Limit(**cap))
    else:
        raise BrokenChainError(number, f"is of the kind {shown(str(kind))!r}, which this version does not know")
    attempts[-1].heads.add(link.head)
    attempts[-1].last, attempts[-1].signature = link.head, signature
