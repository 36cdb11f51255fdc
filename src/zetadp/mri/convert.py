"""Convert cohorts with one file per sequence (BraTS, BIDS) to the Decathlon layout with one file per record.

Nothing is registered or resampled: the four sequences of a record must lie on one grid already.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd

from zetadp.base.storage import folder_written_whole
from zetadp.base.tables import read_table, visible, write_table
from zetadp.base.validation import UserError, check_distinct, refuse, shown
from zetadp.mri.decathlon import SEQUENCES, Listing, bids_readings, read_task, readings, record_name, told, write_task
from zetadp.mri.index import PARTICIPANTS, PATIENT_KEY, bare, some
from zetadp.mri.volumes import Volume, log_assumptions, read_volume, read_voxels

FOLDERS = {"train": "imagesTr", "test": "imagesTs"}
GRID_TOLERANCE = 1e-3
"""Largest difference of two affines that counts as the same grid, in millimetres."""


@dataclass(frozen=True)
class Record:
    """One scan of one patient: a file for each sequence. The patient is empty if nothing tells the person."""

    name: str
    patient: str = ""
    files: dict[str, list[Path]] = field(default_factory=lambda: {sequence: [] for sequence in SEQUENCES})


def convert_folder(
    source: Path,
    target: Path,
    *,
    patients: Path | None = None,
    patient_pattern: str | None = None,
    test_fraction: float = 0.35,
    sequences: Mapping[str, str] | None = None,
) -> Listing:
    r"""Convert a folder of single-sequence volumes to the Decathlon layout, whole or not at all.

    Two layouts are recognised: BIDS (``sub-*/[ses-*/]anat/*_{FLAIR,T1w,T2w}.nii.gz``, contrast-enhanced T1w marked by
    the entity ``ce``), and one folder per record with four files whose names hold the sequence as words
    (``*_flair.nii.gz``, ``*-t1c.nii.gz``, ``*_T1_axial_post_gd.nii.gz``; `zetadp.mri.decathlon`). Hidden files and
    folders do not exist.

    Persons are told, never guessed: by a table, by BIDS or by the user's rule. Then all records of a person go to the
    same part, and ``patient_key.tsv`` next to ``dataset.json`` names the patient of each file. Otherwise there is no
    such table, and what a guarantee protects is a record.

    If all sequences of a record hold integers that fit into int16, they are stored as such, otherwise as float32.

    Parameters
    ----------
    source
        Folder to convert.
    target
        Folder of the new task; absent or empty.
    patients
        Table with the column ``patient`` and one or both of the columns ``record`` (name of the record's folder; in
        BIDS ``sub-01`` or ``sub-01_ses-1``) and ``part`` (``train`` or ``test``). Without ``record``, the patients are
        those that BIDS or the rule tells, or else those after whom the folders are named. Without ``part``, a patient's
        part follows from the patient's name alone (`part_of`), so that no patient moves when another one joins.
    patient_pattern
        Rule that tells the patient from the name of a record: a regular expression that matches the whole name, and
        whose first group is the patient, such as ``(BraTS-GLI-\d+)-\d+``.
    test_fraction
        Expected share of test patients, in [0, 1], if there is no column ``part``. With 1, all are test patients, for a
        server that watches a run between hospitals.
    sequences
        Sequence of the files whose names fit a pattern, by pattern, for names that can be read in two ways; ``none``
        leaves the files out.

    Returns
    -------
    The content of the new ``dataset.json``.

    Raises
    ------
    UserError
        One message that numbers all problems; nothing is written then.
    """
    records, problems = _find_records(source, sequences or {})
    table = None if patients is None else read_table(patients, ("patient",))
    try:
        records = _with_patients(records, source, patients, table, patient_pattern)
    except UserError as error:
        problems.append(str(error))
    units = {record.name: record.patient or record.name for record in records}
    members = sorted(set(units.values()))
    if table is not None and "part" in table:
        assigned, wrong = _given_parts(members, table, patients)
        problems += wrong
    else:
        assigned = {member: part_of(member, test_fraction) for member in members}
    if assigned and "train" not in assigned.values() and (patients is not None or test_fraction < 1):
        remedy = f"Change {patients}." if patients else "Lower the test fraction, or give a table of patients."
        problems.append(f"Expected at least one training patient, found {len(assigned)} for testing only. {remedy}")
    volumes: list[Volume] = []
    with folder_written_whole(target) as folder:
        places: dict[str, PurePosixPath] = {}
        for record in records:
            file = PurePosixPath(FOLDERS[assigned[units[record.name]]], f"{record.name}.nii.gz")
            places[record.name] = file
            read, wrong = _convert_record(record, folder / file, write=not problems)
            volumes += read
            problems += wrong
        refuse(problems, f"in {source}; nothing was written")
        if all(record.patient for record in records):
            rows = [(str(places[record.name]), record.patient) for record in records]
            write_table(folder / PATIENT_KEY, pd.DataFrame(rows, columns=["file", "patient"]))
        _copy_scanners(source / PARTICIPANTS, folder / PARTICIPANTS, set(assigned))
        train, test = (
            [file for file in places.values() if file.parts[0] == FOLDERS[part]] for part in ("train", "test")
        )
        description = f"Converted from {source.name}: one record per scan, intensities as in the source"
        about = {"name": "converted", "description": description}
        write_task(folder, about, sequences=SEQUENCES, training=train, test=test)
    log_assumptions(volumes)
    return read_task(target)


def write_site_folder(target: Path, task: Path, records: pd.DataFrame, part: str) -> None:
    """Write the folder of one site of a federation; its volumes are links to those of a whole cohort.

    Parameters
    ----------
    target
        The folder; an existing one is replaced.
    task
        Folder of the cohort, the one that holds ``dataset.json``.
    records
        The site's rows of the cohort's index, with the columns ``patient`` and ``file``.
    part
        ``train`` for a hospital's patients, ``test`` for those that the server watches.
    """
    shutil.rmtree(target, ignore_errors=True)
    sequences = read_task(task).sequences
    files = [PurePosixPath(file) for file in sorted(records["file"])]
    with folder_written_whole(target) as folder:
        for file in files:
            link = folder / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((task / file).resolve())
        train, test = (files, []) if part == "train" else ([], files)
        about = {"name": target.name, "description": "One site's part of a cohort"}
        write_task(folder, about, sequences=sequences, training=train, test=test)
        write_table(folder / PATIENT_KEY, records[["file", "patient"]].sort_values("file"))


def part_of(patient: str, test_fraction: float) -> str:
    """Return ``train`` or ``test`` as a public function of the patient's name alone.

    Examples
    --------
    >>> part_of("sub-01", 0.0), part_of("sub-01", 1.0)
    ('train', 'test')
    """
    digest = hashlib.sha256(patient.encode()).digest()
    return "test" if int.from_bytes(digest[:7], "big") / 2**56 < test_fraction else "train"


def _find_records(source: Path, rules: Mapping[str, str]) -> tuple[list[Record], list[str]]:
    """Return the records of a folder, sorted by name, and their faults."""
    if not source.is_dir():
        raise UserError(f"Expected the folder {source}, found none. Give the folder that holds one folder per patient.")
    folders = [path for path in visible(source) if path.is_dir()]
    sessions = [
        (folder, anat.parent)
        for folder in folders
        if folder.name.startswith("sub-")
        for anat in sorted([*visible(folder, "anat"), *visible(folder, "ses-*/anat")])
    ]
    if sessions:
        found = [(_bids_record(subject, session), session / "anat", bids_readings) for subject, session in sessions]
    else:
        found = [(Record(folder.name), folder, readings) for folder in folders]
    problems = [
        f"Expected names of folders in UTF-8 without control characters in {source}, found '{shown(record.name)}'. "
        "Rename it."
        for record, _, _ in found
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in record.name)
    ]
    refuse(problems, f"in {source}; nothing was written")
    for record, folder, readings_of in found:
        open_to: set[str] = set()
        for file in visible(folder):
            if not file.name.lower().endswith((".nii.gz", ".nii")):
                continue
            given = told(file.name, rules)
            possible = readings_of(record_name(file)) if given is None else given
            if len(possible) == 1:
                record.files[possible[0]].append(file)
            elif possible:
                open_to |= set(possible)
                problems.append(
                    f"{file} can be {' or '.join(possible)}. Say which it is: --sequence '{file.name}={possible[-1]}'."
                )
        for sequence, files in record.files.items():
            if len(files) > 1 or (not files and sequence not in open_to):
                names = ", ".join(file.name for file in files) or "none"
                problems.append(f"Expected one {sequence} volume in {folder}, found {names}. Add it or keep one.")
    if not found:
        problems.append(f"Expected one folder per patient in {source}, found no folder.")
    return [record for record, _, _ in found], problems


def _bids_record(subject: Path, session: Path) -> Record:
    name = subject.name if session == subject else f"{subject.name}_{session.name}"
    return Record(name, subject.name)


def _with_patients(
    records: list[Record], source: Path, path: Path | None, table: pd.DataFrame | None, pattern: str | None
) -> list[Record]:
    """Return the records with the patients that a table or a rule tells, or raise a `UserError`."""
    names = [record.name for record in records]
    check_distinct(names, f"{source} (folders)")
    if table is not None and "record" in table:
        if pattern is not None:
            raise UserError(f"--patient-pattern: {path} tells the patients in its column record already. Give one.")
        check_distinct(table["patient"], f"{path} (patients)")
        patients = dict(zip(table["record"], table["patient"], strict=True))
        wrong = {
            "missing": sorted(set(names) - set(patients)),
            "unknown": sorted(set(patients) - set(names)),
            "given twice": table["record"][table["record"].duplicated()].tolist(),
        }
        faults = [some(records_of, what) for what, records_of in wrong.items() if records_of]
        if faults:
            raise UserError(
                f"Expected each folder of {source} once in the column record of {path}, found {'; '.join(faults)}. "
                "Correct the table."
            )
    elif pattern is not None:
        patients = _by_rule(names, pattern)
        check_distinct(patients.values(), "--patient-pattern")
    elif table is not None:
        check_distinct(table["patient"], f"{path} (patients)")
        patients = {record.name: record.patient or record.name for record in records}
    else:
        return records
    return [replace(record, patient=patients[record.name]) for record in records]


def _by_rule(names: list[str], pattern: str) -> dict[str, str]:
    """Return the patient that a rule tells from each name, or raise a `UserError` that names the rule."""
    expected = "--patient-pattern: expected a regular expression whose first group is the patient"
    try:
        rule = re.compile(pattern)
    except re.error as error:
        raise UserError(f"{expected}, found {pattern!r}: {error}.") from error
    if not rule.groups:
        raise UserError(f"{expected}, found {pattern!r} without a group in parentheses.")
    matches = {name: rule.fullmatch(name) for name in names}
    wrong = [name for name, match in matches.items() if not (match and match[1])]
    if wrong:
        raise UserError(f"{expected} of every record, found {some(wrong, 'that do not match')}. Widen {pattern!r}.")
    return {name: match[1] for name, match in matches.items() if match}


def _given_parts(patients: list[str], table: pd.DataFrame, path: Path | None) -> tuple[dict[str, str], list[str]]:
    """Return the part of each patient that a table gives, and the faults of the table."""
    given: dict[str, str] = {}
    problems = []
    for patient, part in zip(table["patient"], table["part"], strict=True):
        if part not in FOLDERS:
            problems.append(f"Expected the part of {shown(patient)} in {path} to be train or test, found {part!r}.")
        elif given.setdefault(patient, part) != part:
            problems.append(f"Expected one part for {shown(patient)} in {path}, found both. Keep one.")
    absent = [patient for patient in patients if patient not in set(table["patient"])]
    problems += [f"Expected a line for {shown(patient)} in {path}, found none. Add it." for patient in absent]
    unknown = sorted(set(given) - set(patients))
    problems += [f"Expected a folder for {shown(patient)}, which {path} names, found none." for patient in unknown]
    return {patient: given.get(patient, "train") for patient in patients}, problems


def _convert_record(record: Record, path: Path, *, write: bool) -> tuple[list[Volume], list[str]]:
    """Check the sequences of one record and join them in one file, if told to write; return volumes and faults."""
    problems: list[str] = []
    found: dict[str, tuple[Volume, np.ndarray]] = {}
    for sequence, files in record.files.items():
        if len(files) != 1:
            continue
        try:
            volume = read_volume(files[0], channels=1)
            values = volume.intensities(read_voxels(volume)[..., 0])
        except UserError as error:
            problems.append(str(error))
            continue
        if not (np.abs(values) <= np.finfo(np.float32).max).all():
            problems.append(f"Expected finite intensities in {files[0]}, found others. Correct or leave it out.")
            continue
        found[sequence] = (volume, values)
    if found:
        first, *others = (volume for volume, _ in found.values())
        problems += [
            f"Expected one grid for all sequences of {record.name}: {first.path} has shape {first.shape[:3]} and "
            f"affine {first.affine.tolist()}, {other.path} has shape {other.shape[:3]} and affine "
            f"{other.affine.tolist()}. Co-register them and resample to one grid first."
            for other in others
            if other.shape != first.shape or not np.allclose(first.affine, other.affine, rtol=0, atol=GRID_TOLERANCE)
        ]
    if write and not problems:
        _write_record(path, [found[sequence][1] for sequence in SEQUENCES], first.affine)
    return [volume for volume, _ in found.values()], problems


def _write_record(path: Path, channels: list[np.ndarray], affine: np.ndarray) -> None:
    """Write the channels as one 4-D volume, in the type that `convert_folder` says."""
    import nibabel as nib

    least, most = np.iinfo(np.int16).min, np.iinfo(np.int16).max
    whole = all(each.dtype.kind in "iu" and least <= each.min() and each.max() <= most for each in channels)
    stacked = np.empty((*channels[0].shape, len(channels)), dtype=np.int16 if whole else np.float32, order="F")
    for index, channel in enumerate(channels):
        stacked[..., index] = channel
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(stacked, affine), path)  # type: ignore[no-untyped-call]


def _copy_scanners(source: Path, target: Path, patients: set[str]) -> None:
    """Copy the scanner of each patient, and no other column of the table."""
    if not source.is_file():
        return
    table = read_table(source, ("participant_id",))
    if "scanner" in table:
        known = table["participant_id"].map(bare).isin({bare(patient) for patient in patients})
        rows = table.loc[known, ["participant_id", "scanner"]]
        write_table(target, rows)
