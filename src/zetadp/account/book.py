"""The book of the people behind a folder of ledgers: everything that was recorded about them, or an error.

What counts is what the folder holds and what its register names; a difference between the two is an error. People who
also belong to other cohorts are found by keyed hashes of their files, and the registers of both cohorts then name each
other, so the runs of both are added up.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zetadp.account import register
from zetadp.account.attempts import Attempt, LostError, fault_of, heads_of, read_ledger
from zetadp.account.declaration import Declaration
from zetadp.account.exposure import Run, name_in_errors, runs_of
from zetadp.account.register import NAME, REGISTER, Register, Secret
from zetadp.accounting.events import Event
from zetadp.accounting.threat import Unit
from zetadp.base.names import bare_key
from zetadp.base.storage import lock, make_folder
from zetadp.base.validation import UserError, counted, shown

LOCK = "cap.lock"
"""Lock file of a folder. Only one attempt starts at a time, so two attempts cannot both use the same room."""
_FIRST_BYTES = b'{"chain":'
_IDS_SHOWN = 3


@dataclass(frozen=True)
class Book:
    """Everything that was recorded about the people of a cohort, complete.

    Attributes
    ----------
    folder
        The cohort's folder of ledgers.
    ledgers
        The attempts of every ledger in it.
    others
        Books of the cohorts that share training records with this one.
    shared
        Number of training records that each of them shares, by the name of its folder.
    people
        Keyed ids of the people whom single ledgers are about, as `Register.people`.
    """

    folder: Path
    ledgers: Mapping[Path, Sequence[Attempt]]
    others: Sequence[Book] = ()
    shared: Mapping[str, int] = field(default_factory=dict)
    people: Mapping[str, set[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, sealed: Iterable[Path] = ()) -> Book:
        """Read every ledger of a cohort, and those of the cohorts that share its patients.

        Parameters
        ----------
        folder
            The cohort's folder of ledgers. A folder that does not exist is an empty book.
        sealed
            Copies of ledgers in the results of finished runs. The folder must contain all their lines.

        Raises
        ------
        UserError
            One message that names everything that is missing: a ledger, the end of one, the register; or a ledger that
            no register names.
        """
        book = cls._alone(folder)
        heads = heads_of(attempt for attempts in book.ledgers.values() for attempt in attempts)
        lost = [path for path in sealed if not {attempt.last for attempt in read_ledger(path)} <= heads]
        if lost:
            raise LostError(f"{folder} lacks lines of {path}" for path in lost)
        return replace(book, others=[cls._alone(folder.parent / name, required=True) for name in sorted(book.shared)])

    @classmethod
    def of(cls, *paths: Path) -> Book:
        """Read some ledgers, which count alone, and folders of ledgers, as `read` does.

        Nodes of the second folder and of all further ones are not taken for nodes of the first that have their names.

        Raises
        ------
        UserError
            As `read`, also for the whole folder of a single ledger that has a register next to it. Copies of
            ledgers, with neither a register nor a secret next to them, are read as they are.
        """
        folders: dict[Path, Book] = {}
        shared: dict[str, int] = {}
        for path in paths:
            if path.is_dir():
                book = cls.read(path)
                shared |= book.shared
                # Each folder counts once, whether it is named or shares people with one that is.
                for one in (book, *book.others):
                    folders.setdefault(one.folder.resolve(), replace(one, others=()))
        first, *others = [*folders.values()] or [cls(Path(), {})]
        ledgers = dict(first.ledgers)
        known: dict[Path, Book] = {}
        for path in paths:
            folder = path.parent
            if path.is_dir() or folder.resolve() in folders:
                continue
            if folder not in known:
                registered = any((folder / name).exists() for name in (REGISTER, NAME))
                known[folder] = cls.read(folder) if registered else cls(folder, {})
            ledgers[path] = known[folder].ledgers.get(path) or read_ledger(path)
        return cls(Path(), ledgers, others, shared)

    @classmethod
    def declared(cls, ledger: Path) -> Book:
        """Read what runs on the people of a ledger declare, in its folder and in those that share its patients.

        Releases are nearly all that ledgers hold, and reading them takes long, so only those of the ledger itself are
        read. Nothing is checked for loss. Only `units` says the same of it as of the whole book.
        """
        known = Register.read(ledger.parent)
        folders = [ledger.parent, *(ledger.parent.parent / name for name in sorted(known.shares))]
        book, *others = [cls(folder, {path: _declared(path) for path in ledger_files(folder)}) for folder in folders]
        ledgers = {**book.ledgers, **({ledger: read_ledger(ledger)} if ledger.exists() else {})}
        return replace(book, ledgers=ledgers, others=others, shared=known.shares, people=known.people)

    @classmethod
    def _alone(cls, folder: Path, *, required: bool = False) -> Book:
        """Read the ledgers of one folder, and refuse if the folder and its register differ."""
        # The register is read before and after the ledgers: runs in progress add to both.
        before = Register.read(folder)
        ledgers = {path: read_ledger(path) for path in ledger_files(folder)}
        known = Register.read(folder)
        problems = [f"{folder / name} is missing" for name in sorted(before.last) if folder / name not in ledgers]
        problems += filter(None, (fault_of(path, attempts, known, before) for path, attempts in ledgers.items()))
        if required and not known.exists:
            problems.append(f"{folder / REGISTER} is missing")
        if problems:
            raise LostError(dict.fromkeys(problems))
        return cls(folder, ledgers, shared=known.shares, people=known.people)

    def runs(self, about: Path | None = None) -> list[Run]:
        """Return every run that counts, also failed, repeated and deleted ones, each to its declared end.

        Runs of other cohorts have the cohort's name before theirs; a node there is not taken for one of that name here.

        Parameters
        ----------
        about
            A ledger of the folder: only runs that may share one of its people count, and an attempt in it that has
            recorded nothing does not, because the next attempt closes it. None takes everything.
        """
        runs = [run for path, attempts in self._ledgers_about(about) for run in runs_of(path, attempts)]
        for other in self.others:
            name = other.folder.name
            runs += [
                replace(run, name=f"{name}/{run.name}", partition=f"{name} {run.partition}", series=None)
                for run in other.runs()
            ]
        return runs

    def units(self, about: Path | None = None) -> dict[Unit, str]:
        """Return the units that runs protect, each with the name of a ledger; the parameter is that of `runs`."""
        units: dict[Unit, str] = {}
        for path, attempts in self._ledgers_about(about):
            units |= {attempt.declaration.cohort_unit: path.stem for attempt in attempts if not attempt.closed}
        for other in self.others:
            units |= {unit: f"{other.folder.name}/{name}" for unit, name in other.units().items()}
        return units

    def _ledgers_about(self, about: Path | None) -> Iterator[tuple[Path, list[Attempt]]]:
        """Yield the ledgers that count, with their attempts, as `runs` says."""
        people = self._people_of(about)
        for path, attempts in self.ledgers.items():
            their = self._people_of(path)
            if people is None or their is None or people & their:
                yield path, [attempt for attempt in attempts if not (path == about and attempt.unused)]

    def _people_of(self, ledger: Path | None) -> set[str] | None:
        """Return keyed ids of the people whom a ledger is about, or None if it may be about anybody of the cohort."""
        return None if ledger is None else self.people.get(ledger.name)

    def without(self, ledger: Path) -> Book:
        """Return the book without one of its ledgers."""
        return replace(self, ledgers={path: attempts for path, attempts in self.ledgers.items() if path != ledger})

    def with_releases(self, ledger: Path, events: Iterable[Event]) -> Book:
        """Return the book as it would be with further releases of the last attempt in a ledger."""
        *before, last = self.ledgers[ledger]
        more = replace(last, events=[*last.events, *events])
        return replace(self, ledgers={**self.ledgers, ledger: [*before, more]})


def ledger_files(folder: Path) -> list[Path]:
    """Return the ledgers in a folder: whatever is called so, and whatever begins as a ledger does."""
    if not folder.is_dir():
        return []
    names = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    return [path for path in names if path.name not in (NAME, REGISTER) and _is_ledger(path)]


def _entries(path: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return the entries of some kinds in a ledger; its other lines are not parsed."""
    marks = [f'"kind": "{kind}"'.encode() for kind in kinds]
    with path.open("rb") as file:
        lines = [line for line in file if line.endswith(b"\n") and any(mark in line for mark in marks)]
    return [json.loads(line)["entry"] for line in lines]


def _declared(path: Path) -> list[Attempt]:
    """Return the attempts of a ledger as if they had released nothing yet."""
    attempts: list[Attempt] = []
    with name_in_errors(path, "the first line of an attempt"):
        for entry in _entries(path, "start", "closed"):
            if entry["kind"] == "start":
                attempts.append(Attempt(Declaration.from_json(entry)))
            else:
                attempts[-1].closed = True
    return attempts


def recorded_runs(*paths: Path) -> list[Run]:
    """Return every attempt in some ledgers that released anything or may have, also abandoned and repeated ones.

    Raises
    ------
    UserError
        As `Book.of`; or if a header lacks a value that it requires.
    """
    return Book.of(*paths).runs()


def _is_ledger(path: Path) -> bool:
    if path.suffix == ".jsonl":
        return True
    with path.open("rb") as file:
        return file.read(len(_FIRST_BYTES)) == _FIRST_BYTES


def note_people(ledger: Path, people: Iterable[str]) -> None:
    """Note the people whom a new ledger is about, before its first line.

    Parameters
    ----------
    ledger
        The ledger. Keyed hashes of the people, and of the bare forms of their ids, are noted in the register next to
        it.
    people
        For each person, the text by which an account knows the person.

    Raises
    ------
    UserError
        If the ledger is about other people: the account would not count what they spend in it. If the account may
        know the people by other spellings of their ids.
    """
    key, account = Secret.of(ledger.parent), Register.read(ledger.parent)
    known, texts = account.people.get(ledger.name), {key.tag(text): text for text in people}
    if texts and not ledger.exists():
        bare_tags = {tag: key.tag(f"bare {bare_key(text)}") for tag, text in sorted(texts.items())}
        _check_known_again(account, ledger, texts, bare_tags)
        content = {"people": list(bare_tags), "bare": list(bare_tags.values()), "ledger": ledger.name}
        register.note(ledger.parent, content)
    elif known is not None and not (texts and texts.keys() <= known):
        raise UserError(
            f"Expected the people whom {ledger} is about, found others. Give a release or run of other people a name "
            "of its own."
        )


def _check_known_again(known: Register, ledger: Path, texts: Mapping[str, str], bare_tags: Mapping[str, str]) -> None:
    """Refuse people who are new to an account by ids that it may know in another spelling.

    An account that takes them for other people counts nothing of what they spent. Of a spelling that the account knows
    the register holds a keyed hash only, so the message cannot name it.
    """
    recorded = (people for name, people in known.people.items() if (ledger.parent / name).exists())
    everybody = set().union(*recorded)  # a run that never began cost nobody anything
    # Two ids in one run are two persons, so a person who is in both runs by one id stands for no other.
    missing = {known.bare_tags[tag] for tag in everybody - texts.keys() if tag in known.bare_tags}
    if alike := [texts[tag] for tag in bare_tags if tag not in everybody and bare_tags[tag] in missing]:
        ids = ", ".join(shown(text.removeprefix("str ")) for text in sorted(alike)[:_IDS_SHOWN])
        raise UserError(
            f"patients: Expected ids as in earlier runs of the account {ledger.parent}, found "
            f"{counted(len(alike), 'id that differs', 'ids that differ')} from known ones only in leading zeros, an "
            "ending .0, the prefix sub-, or hyphens: "
            f"{ids}{', ...' if len(alike) > _IDS_SHOWN else ''}. They would count as new people, of whom nothing was "
            "released. If they are the same people, write their ids as in the earlier run. If they are other people, "
            "give them ids that differ in more, such as 'b-7' for '7', or an account of their own."
        )


@contextmanager
def hold_locks(folder: Path) -> Iterator[None]:
    """Hold the lock of a cohort and of all that share patients with it: a check and what follows are one step."""
    make_folder(folder)
    folders = {folder, *(folder.parent / name for name in Register.read(folder).shares)}
    with ExitStack() as stack:
        for cohort in sorted(folders):
            lock(stack.enter_context((cohort / LOCK).open("ab")), cohort / LOCK)
        yield


def claim(folder: Path, table: Path) -> None:
    """Add keyed hashes of a cohort's training records to its register, and find the cohorts that share some of them.

    Earlier hashes stay. The registers of two cohorts that share records name each other from then on.

    Parameters
    ----------
    folder
        The cohort's folder of ledgers.
    table
        The cohort's index, with ``part`` and ``sha256`` of each record's file. Records are the same if their files are
        the same, byte for byte.

    Raises
    ------
    UserError
        If the register of a cohort next to this one was damaged or has lost lines, or if its secret is missing: its
        records can then not be compared.
    """
    key = Secret.of(folder)
    contents = _training_contents(table)
    known = Register.read(folder).records
    if added := [tag for tag in dict.fromkeys(map(key.tag, contents)) if tag not in known]:
        register.note(folder, {"records": added})
    # After the hashes: of two cohorts that do this at once, one sees the other's.
    for other in sorted(folder.parent.iterdir()):
        if other != folder and other.is_dir() and (count := _shared(other, contents)):
            for cohort, name in ((folder, other.name), (other, folder.name)):
                if count > Register.read(cohort).shares.get(name, 0):
                    register.note(cohort, {"shares": name, "records": count})


def _shared(other: Path, contents: Iterable[str]) -> int:
    """Return how many records another cohort shares."""
    # The first line of every attempt names the register of that time, which had the records of the attempt. The
    # register is read after the ledgers, because a run that begins meanwhile adds to it first.
    heads = set()
    for path in ledger_files(other):
        with name_in_errors(path, "the first line of an attempt"):
            heads |= {entry["register"] for entry in _entries(path, "start")}
    known = Register.read(other)
    if not heads <= known.heads:
        raise LostError([f"{other / REGISTER} is missing, or has lost lines at its end"])
    if not known.records:
        return 0
    key = Secret.of(other)
    return sum(key.tag(content) in known.records for content in set(contents))


def _training_contents(table: Path) -> list[str]:
    with table.open(newline="", encoding="utf-8") as file:
        return [row["sha256"] for row in csv.DictReader(file) if row["part"] == "train"]


def forget_times(ledger: Path) -> None:
    """Set the file times of a ledger and its register to now.

    Otherwise they would show the duration of the run, which reveals how many patients were drawn.
    """
    for path in (ledger, ledger.parent / REGISTER):
        os.utime(path)
