"""All releases recorded for the patients of a cohort, refused if anything is missing.

A total over ledgers is true only if no ledger is missing. The register and the sealed copies in finished runs show
which ledgers must exist. Keyed hashes of files find patients who also belong to another cohort. The runs of that
cohort are added.
"""

from __future__ import annotations

import csv
import fcntl
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zetadp.base.epsilon import rounded_up
from zetadp.base.storage import sync_folder, writing
from zetadp.base.validation import UserError
from zetadp.privacy import accounting, register
from zetadp.privacy.chain import START
from zetadp.privacy.exposure import Run, declared_run, named, over_runs, run_of, runs_of
from zetadp.privacy.ledger import Attempt, Ledger, protected_attempts, read_ledger
from zetadp.privacy.secret import RECORDS, Secret


def read_ledgers(files: Collection[Path]) -> dict[Path, list[Attempt]]:
    """Read ledger files. Refuse if a ledger in their register is missing or has lost its end.

    Raises
    ------
    UserError
        One message that names everything that is missing. Copies of ledgers in folders without a register are read as
        they are.
    """
    # The register is read first, because runs in progress only add to ledgers.
    registers = {folder: register.read_register(folder) for folder in {path.parent for path in files}}
    found = {}
    for path in files:
        with named(path, "a line"):
            found[path] = read_ledger(path)
    problems = []
    for folder, links in registers.items():
        missing, lost = set(), set()
        for link in links:
            path = folder / link.entry["ledger"]
            if path in found:
                if not any(link.entry["head"] in attempt.heads for attempt in found[path]):
                    lost.add(path)
            elif not path.exists():
                missing.add(path)
        problems += [f"{path} is missing" for path in sorted(missing)]
        problems += [f"{path} has lost lines at its end" for path in sorted(lost)]
        own = [attempt for path, attempts in found.items() if path.parent == folder for attempt in attempts]
        known = {START, *(link.head for link in register.read_register(folder))}
        if (folder / register.NAME).exists() and not {attempt.register for attempt in own} - {None} <= known:
            problems.append(f"{folder / register.NAME} has lost lines at its end")
    if problems:
        raise UserError(
            f"The ledgers are not all that was recorded: {'; '.join(problems)}. A total over the rest would be too "
            "low. Restore the files from a backup."
        )
    return found


def cohort_ledgers(folder: Path) -> dict[Path, list[Attempt]]:
    """Read every ledger of a cohort's folder.

    Raises
    ------
    UserError
        If a ledger, the end of one, or the register is missing. The message names all of them.
    """
    ledgers = read_ledgers(sorted(folder.glob("*.jsonl")))
    begun = any(attempt.register is not None for attempts in ledgers.values() for attempt in attempts)
    if begun and not (folder / register.NAME).exists():
        raise UserError(
            f"The register {folder / register.NAME} is missing: without it, a missing ledger cannot be "
            "detected. Restore it from a backup."
        )
    return ledgers


def cohort_runs(folder: Path, sealed: Iterable[Path] = ()) -> list[Run]:
    """Return every run recorded for a cohort: also failed and repeated runs, and runs whose results were deleted.

    Parameters
    ----------
    folder
        The cohort's folder of ledgers.
    sealed
        Copies of ledgers in the results of finished runs. The folder must contain all their lines.

    Raises
    ------
    UserError
        As `cohort_ledgers`, or if a sealed copy holds lines that the ledgers lack.
    """
    ledgers = cohort_ledgers(folder)
    heads = {head for attempts in ledgers.values() for attempt in attempts for head in attempt.heads}
    lost = [path for path in sealed if not {attempt.last for attempt in read_ledger(path)} <= heads]
    if lost:
        raise UserError(
            f"The ledgers in {folder} lack records of {', '.join(map(str, lost))}: a ledger is missing, or has lost "
            "its end. A total over the rest would be too low. Restore the ledgers from a backup."
        )
    return [run for path, attempts in ledgers.items() for run in runs_of(path, attempts)]


def claim(folder: Path, table: Path) -> None:
    """Add keyed hashes of a cohort's training records to its folder. Earlier hashes stay.

    Parameters
    ----------
    folder
        The cohort's folder of ledgers.
    table
        The cohort's index, with ``part`` and ``sha256`` of each record's file.
    """
    key = Secret.of(folder)
    contents = _training_contents(table)
    path = folder / RECORDS
    with writing(path), path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = set(file.read().split())
        file.writelines(f"\n{tag}" for tag in dict.fromkeys(map(key.tag, contents)) if tag not in known)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def shared_records(folder: Path, table: Path) -> dict[Path, int]:
    """Return the cohorts next to this one that share training records, and the number of shared records.

    Parameters
    ----------
    folder, table
        As in `claim`. Records are the same if their files are the same, byte for byte.

    Raises
    ------
    UserError
        If the secret of one of these cohorts is missing: its records can then not be compared.
    """
    contents = set(_training_contents(table))
    found = {}
    for other in sorted(folder.parent.iterdir()) if folder.parent.is_dir() else ():
        if other == folder or not (other / RECORDS).exists():
            continue
        key, known = Secret.of(other), set((other / RECORDS).read_text().split())
        if count := sum(key.tag(content) in known for content in contents):
            found[other] = count
    return found


def _training_contents(table: Path) -> list[str]:
    with table.open(newline="", encoding="utf-8") as file:
        return [row["sha256"] for row in csv.DictReader(file) if row["part"] == "train"]


def runs_of_others(shared: Mapping[Path, int]) -> list[Run]:
    """Return the runs recorded for other cohorts. Their names begin with the name of the cohort.

    A node there is not taken for the node with the same name here.
    """
    return [
        replace(run, name=f"{folder.name}/{run.name}", partition=f"{folder.name} {run.partition}")
        for folder in shared
        for run in cohort_runs(folder)
    ]


def forget_times(ledger: Path) -> None:
    """Set the file times of a ledger and its register to now.

    Otherwise they would show the duration of the run, which reveals how many patients were drawn.
    """
    for path in (ledger, ledger.parent / register.NAME):
        os.utime(path)


@dataclass(frozen=True)
class Permission:
    """The rule that a run with protecting noise has one attempt, unless its ledger permits more.

    Attributes
    ----------
    delta
        The delta at which a refusal states the cost of another attempt.
    """

    delta: float

    def check(self, ledger: Ledger, header: Mapping[str, Any]) -> None:
        """Refuse an attempt that the ledger does not permit, and state the total to which it would lead.

        Parameters
        ----------
        ledger
            The run's open ledger.
        header
            Description of the attempt.

        Raises
        ------
        UserError
            If the run has as many attempts as permitted. Attempts that released nothing do not count, nor do attempts
            with seeded noise.
        """
        made = protected_attempts(read_ledger(ledger.path))
        if made < ledger.permitted:
            return
        name, folder = ledger.path.stem, ledger.path.parent
        raise UserError(
            f"The run {name} has been trained {made} time(s) already. Training it again would release more about the "
            f"same patients: {self.cost(ledger.path, header)}. The results of the finished run stay as they are, and "
            f"the next start continues with them. To permit another attempt, run: zetadp permit {folder / name}.jsonl"
        )

    def cost(self, ledger: Path, header: Mapping[str, Any] | None = None) -> str:
        """Return in words the totals after another attempt, which by default is like the last one.

        Programs other than `train` may write headers that do not declare all releases. The new attempt is then assumed
        to release as much as the last one.
        """
        attempts = read_ledger(ledger)
        last, again = attempts[-1], f"{ledger.stem} again"
        declared = header or last.header
        with named(ledger, "the header of the last attempt"):
            whole = {"run", "training", "nodes"} <= declared.keys()
            new = declared_run(again, declared) if whole else run_of(again, last)
        run, cohort = runs_of(ledger, attempts), cohort_runs(ledger.parent)
        return (
            f"epsilon of this run would rise from {self._epsilon(run)} to {self._epsilon([*run, new])}, and that of "
            f"all private runs recorded in {ledger.parent} from {self._epsilon(cohort)} to "
            f"{self._epsilon([*cohort, new])}, at delta {self.delta:g}"
        )

    def _epsilon(self, runs: Iterable[Run]) -> str:
        private = [run for run in runs if run.private]
        totals = over_runs(private, self.delta).values() if private else ()
        return rounded_up(max((accounting.epsilon(total, self.delta) for total in totals), default=0.0))
