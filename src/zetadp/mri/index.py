"""The table of a cohort (patients, parts and files), and all checks that need no voxels.

The user declares the numbers of patients. They are public constants, for which the privacy guarantee is stated, so they
are compared with the folder and never counted from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pandas as pd

from zetadp.base.names import check_distinct, name_key
from zetadp.base.storage import content_hash
from zetadp.base.tables import read_table, shared_contents, wrong_parts
from zetadp.base.validation import UserError, refuse, shown
from zetadp.mri.decathlon import PATIENT_KEY, read_task, record_name
from zetadp.mri.nifti import MOST_NAMED, Volume, check_complete, log_assumptions, read_volume
from zetadp.mri.slicing import SPACING

COLUMNS = ("patient", "record", "part", "file", "sha256", "bytes", "scanner")
PARTICIPANTS = "participants.tsv"
UNKNOWN = ("", "n/a")
"""Entries of a table, BIDS's included, for an unknown value."""


def index_cohort(
    task_root: Path,
    *,
    train_patients: int,
    test_patients: int,
    slices: int,
    spacing: float = SPACING,
    patient_key: Path | None = None,
    threads: int = 1,
) -> pd.DataFrame:
    """Check a cohort in the Decathlon layout and return its table, one row per record.

    Parameters
    ----------
    task_root
        Folder that holds ``dataset.json``.
    train_patients, test_patients
        Declared numbers of patients.
    slices, spacing
        Number of centre planes that every volume must hold, and their distance in mm.
    patient_key
        Tab-separated table with the columns ``file`` (relative to ``task_root``) and ``patient``. By default,
        ``patient_key.tsv`` in ``task_root``. Without either, every record counts as a separate patient.
    threads
        Number of files that are checked at the same time.

    Returns
    -------
    Table with the columns patient, record, part (``train`` or ``test``), file (relative to ``task_root``), sha256,
    bytes and scanner, sorted by part (training first), patient and record. ``scanner`` comes from the columns
    ``participant_id`` and ``scanner`` of ``participants.tsv`` in ``task_root``, and is empty if unknown.

    Raises
    ------
    UserError
        One message that numbers all problems of the cohort.
    """
    task = read_task(task_root)
    listed = [(part, file) for part, files in (("train", task.training), ("test", task.test)) for file in files]
    problems = [
        f"Expected each record once in dataset.json, found one name {len(entries)} times: {', '.join(entries)}. "
        "Keep one."
        for entries in shared_contents(
            [f"{file} ({part})" for part, file in listed], [record_name(file) for _, file in listed]
        )
    ]

    def inspect(file: PurePosixPath) -> _Checked:
        return _inspect(task_root / file, channels=len(task.sequences_of(file)), slices=slices, spacing=spacing)

    files = list(dict.fromkeys(file for _, file in listed))
    with ThreadPoolExecutor(max_workers=threads) as pool:
        checked = dict(zip(files, pool.map(inspect, files), strict=True))
    problems += [result.problem for result in checked.values() if result.problem]
    contents = {str(file): result.sha256 for file, result in checked.items() if result.sha256}
    problems += [
        f"Expected different volumes, found the same content in {' and '.join(names)}. Keep one, correct dataset.json."
        for names in shared_contents(contents, contents.values())
    ]

    patients, scanners = {file: record_name(file) for file in files}, {}
    try:
        patients = _read_patients(task_root, patient_key, files)
    except UserError as error:
        problems.append(str(error))
    try:
        scanners = _read_scanners(task_root / PARTICIPANTS)
    except UserError as error:
        problems.append(str(error))
    rows = []
    for part, file in listed:
        patient, result = patients[file], checked[file]
        scanner = scanners.get(name_key(strip_prefix(patient)), "")
        rows.append((patient, record_name(file), part, file.as_posix(), result.sha256, result.size, scanner))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    declared = {"train": train_patients, "test": test_patients}
    problems += wrong_parts(table, declared, str(task_root / "dataset.json"))
    refuse(problems, f"in the cohort {task_root}")
    log_assumptions([result.volume for result in checked.values() if result.volume])
    return table.sort_values(["part", "patient", "record"], ascending=[False, True, True], ignore_index=True)


def listed_files(task_root: Path) -> list[Path]:
    """Return the files that `index_cohort` reads besides ``dataset.json``: volumes, and the tables next to them.

    Nothing is checked: files may be missing, and the result is empty for a folder without a task.
    """
    try:
        task = read_task(task_root)
    except UserError:
        return []
    volumes = [task_root / file for file in dict.fromkeys((*task.training, *task.test))]
    return [*volumes, task_root / PATIENT_KEY, task_root / PARTICIPANTS]


class _Checked(NamedTuple):
    """Result of inspecting one file."""

    sha256: str = ""
    size: int = 0
    volume: Volume | None = None
    problem: str = ""


def _inspect(path: Path, *, channels: int, slices: int, spacing: float) -> _Checked:
    """Hash a file and check its header and its length."""
    try:
        volume = read_volume(path, channels=channels, slices=slices, spacing=spacing)
        check_complete(volume)
        return _Checked(content_hash(path), path.stat().st_size, volume)
    except UserError as error:
        return _Checked(problem=str(error))
    except OSError as error:
        return _Checked(problem=f"Cannot read {path}: {error.strerror or error}. Check the rights and the disk.")


def _read_patients(root: Path, patient_key: Path | None, files: list[PurePosixPath]) -> dict[PurePosixPath, str]:
    """Return the patient of each file; refuse names that differ only in case or accents."""
    default = root / PATIENT_KEY
    path = patient_key or (default if default.is_file() else None)
    check_distinct(map(record_name, files), f"{root / 'dataset.json'} (records)")
    if path is None:
        return {file: record_name(file) for file in files}
    patients = read_patient_table(path, "file", [str(file) for file in files], str(root / "dataset.json"))
    return {file: patients[str(file)] for file in files}


def read_patient_table(path: Path, column: str, names: Sequence[str], location: str) -> dict[str, str]:
    """Read the patient of each file or record from a table.

    Parameters
    ----------
    path
        Table with this column and the column ``patient``.
    column
        Column that names the files or records.
    names
        Files or records: the table must name each of them exactly once, and nothing else.
    location
        File or folder that holds them, for messages.

    Raises
    ------
    UserError
        If a name is missing, unknown or repeated, or if the names of two patients look the same.
    """
    table = read_table(path, (column, "patient"))
    files = [PurePosixPath(name).as_posix() for name in table[column]]
    wrong = {
        "missing": sorted(set(names) - set(files)),
        "unknown": sorted(set(files) - set(names)),
        "given twice": sorted({name for name in files if files.count(name) > 1}),
    }
    faults = [summarise_names(affected, fault) for fault, affected in wrong.items() if affected]
    if faults:
        raise UserError(
            f"Expected each {column} of {location} once in {path}, found {'; '.join(faults)}. Correct the table."
        )
    check_distinct(table["patient"], f"{path} (patients)")
    return dict(zip(files, table["patient"], strict=True))


def _read_scanners(path: Path) -> dict[str, str]:
    """Return the known scanners by the `name_key` of their participants."""
    if not path.is_file():
        return {}
    table = read_table(path, ("participant_id",))
    if "scanner" not in table:
        return {}
    named_rows = table[~table["scanner"].isin(UNKNOWN)]
    check_distinct(named_rows["scanner"], f"{path} (scanners)")
    check_distinct(table["participant_id"], f"{path} (participants)")
    return {
        name_key(strip_prefix(name)): scanner
        for name, scanner in zip(named_rows["participant_id"], named_rows["scanner"], strict=True)
    }


def strip_prefix(participant: str) -> str:
    """Return an identifier without the prefix ``sub-`` of BIDS, which some tables omit."""
    return participant.removeprefix("sub-")


def summarise_names(names: list[str], fault: str) -> str:
    """Return the number of names that share a fault, and the first of them: ``2 without a patient (a, b)``."""
    first = ", ".join(map(shown, names[:MOST_NAMED])) + (", ..." if len(names) > MOST_NAMED else "")
    return f"{len(names)} {fault} ({first})"
