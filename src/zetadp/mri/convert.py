"""Convert cohorts with one file per sequence (BraTS, BIDS) to the Decathlon layout with one file per record.

Nothing is registered or resampled: the sequences of a record must lie on one grid already.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd

from zetadp.base.storage import folder_written_whole
from zetadp.base.tables import read_table, visible, write_table
from zetadp.base.validation import UserError, check_distinct, refuse, shown
from zetadp.mri.decathlon import (
    LEAST_SEQUENCES,
    NEITHER,
    SEQUENCES,
    Listing,
    is_computed,
    read_task,
    readings,
    record_name,
    told,
    write_task,
)
from zetadp.mri.index import PATIENT_KEY, some, told_patients
from zetadp.mri.volumes import Volume, log_assumptions, read_volume, read_voxels

logger = logging.getLogger(__name__)

TRAIN, TEST = "imagesTr", "imagesTs"
"""Folders of the two parts."""
GRID_TOLERANCE = 1e-3
"""Largest difference of two affines that counts as the same grid, in millimetres."""


@dataclass(frozen=True)
class Record:
    """One scan of one patient: a file for each of its sequences. The patient is empty if nothing tells the person."""

    name: str
    patient: str = ""
    files: dict[str, list[Path]] = field(default_factory=lambda: {sequence: [] for sequence in SEQUENCES})

    @property
    def sequences(self) -> tuple[str, ...]:
        """The sequences that the scan has, in canonical order."""
        return tuple(sequence for sequence, files in self.files.items() if files)


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
    the entity ``ce``), and one folder per record with two to four files whose names hold the sequence as words
    (``*_flair.nii.gz``, ``*-t1c.nii.gz``, ``*_T1_axial_post_gd.nii.gz``; `zetadp.mri.decathlon`). Hidden files and
    folders do not exist.

    Persons are told, never guessed: by a table, by BIDS or by the user's rule. Then all records of a person go to the
    same part, and ``patient_key.tsv`` next to ``dataset.json`` names the patient of each file. Otherwise there is no
    such table, and what a guarantee protects is a record.

    Two sequences of a record are enough. ``dataset.json`` names those of most records, and the entries of others name
    theirs. A record that lacks a sequence is refused if its folder holds a file whose name says nothing.

    If all sequences of a record hold integers that fit into int16, they are stored as such, otherwise as float32.

    Parameters
    ----------
    source
        Folder to convert.
    target
        Folder of the new task; absent or empty.
    patients
        Table with the columns ``record`` (name of the record's folder; in BIDS ``sub-01`` or ``sub-01_ses-1``) and
        ``patient``.
    patient_pattern
        Rule that tells the patient from the name of a record: a regular expression that matches the whole name, and
        whose first group is the patient, such as ``(BraTS-GLI-\d+)-\d+``.
    test_fraction
        Expected share of test patients, in [0, 1]. A patient's part follows from the patient's name alone, so that no
        patient moves when another one joins (`folder_of`). With 1, all are test patients, for a server that watches a
        run between hospitals.
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
    try:
        records = _with_patients(records, source, patients, patient_pattern)
    except UserError as error:
        problems.append(str(error))
    places = {
        record.name: PurePosixPath(folder_of(record.patient or record.name, test_fraction), f"{record.name}.nii.gz")
        for record in records
    }
    train, test = ([file for file in places.values() if file.parts[0] == part] for part in (TRAIN, TEST))
    if test and not train and test_fraction < 1:
        problems.append("Expected at least one training patient, found none. Lower the test fraction.")
    volumes: list[Volume] = []
    with folder_written_whole(target) as folder:
        for record in records:
            read, wrong = _convert_record(record, folder / places[record.name], write=not problems)
            volumes += read
            problems += wrong
        refuse(problems, f"in {source}; nothing was written")
        if all(record.patient for record in records):
            rows = [(str(places[record.name]), record.patient) for record in records]
            write_table(folder / PATIENT_KEY, pd.DataFrame(rows, columns=["file", "patient"]))
        description = f"Converted from {source.name}: one record per scan, intensities as in the source"
        about = {"name": "converted", "description": description}
        usual = Counter(record.sequences for record in records).most_common(1)[0][0]
        other = {places[record.name]: record.sequences for record in records if record.sequences != usual}
        write_task(folder, about, sequences=usual, training=train, test=test, exceptions=other)
    log_assumptions(volumes)
    _log_lacking(records)
    return read_task(target)


def _log_lacking(records: list[Record]) -> None:
    """Log which sequences some records lack, and how many."""
    for sequence in SEQUENCES:
        lacking = [record.name for record in records if sequence not in record.sequences]
        if lacking:
            logger.warning("Of %d records, %s.", len(records), some(lacking, f"lack {sequence}"))


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
    cohort = read_task(task)
    files = [PurePosixPath(file) for file in sorted(records["file"])]
    with folder_written_whole(target) as folder:
        for file in files:
            link = folder / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((task / file).resolve())
        train, test = (files, []) if part == "train" else ([], files)
        about = {"name": target.name, "description": "One site's part of a cohort"}
        other = {file: cohort.exceptions[file] for file in files if file in cohort.exceptions}
        write_task(folder, about, sequences=cohort.sequences, training=train, test=test, exceptions=other)
        write_table(folder / PATIENT_KEY, records[["file", "patient"]].sort_values("file"))


def folder_of(patient: str, test_fraction: float) -> str:
    """Return the folder of a patient's part, as a public function of the patient's name alone.

    Examples
    --------
    >>> folder_of("sub-01", 0.0), folder_of("sub-01", 1.0)
    ('imagesTr', 'imagesTs')
    """
    digest = hashlib.sha256(patient.encode()).digest()
    return TEST if int.from_bytes(digest[:7], "big") / 2**56 < test_fraction else TRAIN


def _find_records(source: Path, rules: Mapping[str, str]) -> tuple[list[Record], list[str]]:
    """Return the records of a folder, sorted by name, and their faults."""
    if not source.is_dir():
        raise UserError(f"Expected the folder {source}, found none. Give the folder that holds one folder per patient.")
    anat = [path.relative_to(source) for name in ("sub-*/anat", "sub-*/ses-*/anat") for path in visible(source, name)]
    sessions = [(Record("_".join(path.parts[:-1]), path.parts[0]), source / path) for path in sorted(anat)]
    found = sessions or [(Record(folder.name), folder) for folder in visible(source) if folder.is_dir()]
    problems = [
        f"Expected names of folders in UTF-8 without control characters in {source}, found '{shown(record.name)}'. "
        "Rename it."
        for record, _ in found
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in record.name)
    ]
    refuse(problems, f"in {source}; nothing was written")
    for record, folder in found:
        open_to: set[str] = set()
        unread: list[str] = []
        for file in visible(folder):
            if not file.name.lower().endswith((".nii.gz", ".nii")):
                continue
            # In BIDS, the name of a subject or session is no word about the sequence.
            name = record_name(file).removeprefix(record.name) if sessions else record_name(file)
            given = told(file.name, rules)
            possible = readings(name) if given is None else given
            if sessions and given is None and "_ce-" in name and possible != ("T1gd",):
                continue  # FLAIR or T2w with contrast is none of the four sequences
            if len(possible) == 1:
                record.files[possible[0]].append(file)
            elif given is None and not possible and not sessions and not is_computed(name):
                unread.append(file.name)
            elif possible:
                open_to |= set(possible)
                problems.append(
                    f"{file} can be {' or '.join(possible)}. Say which it is: --sequence '{file.name}={possible[-1]}'."
                )
        for sequence, files in record.files.items():
            if len(files) > 1:
                names = ", ".join(file.name for file in files)
                problems.append(f"Expected one {sequence} volume in {folder}, found {names}. Keep one.")
            elif not files and unread and sequence not in open_to:
                problems.append(
                    f"Expected one {sequence} volume in {folder}, found none, but {some(unread, 'other file(s)')}. Say "
                    f"what they are: --sequence '{unread[0]}={sequence}', or {NEITHER} in place of {sequence}."
                )
        if len(record.sequences) < LEAST_SEQUENCES and not open_to:
            problems.append(
                f"Expected at least {LEAST_SEQUENCES} of {', '.join(SEQUENCES)} in {folder}, found "
                f"{', '.join(record.sequences) or 'none'}. Add another, or leave the record out."
            )
    if not found:
        problems.append(f"Expected one folder per patient in {source}, found no folder.")
    return [record for record, _ in found], problems


def _with_patients(records: list[Record], source: Path, table: Path | None, pattern: str | None) -> list[Record]:
    """Return the records with the patients that a table or a rule tells, or raise a `UserError`."""
    names = [record.name for record in records]
    check_distinct(names, f"{source} (folders)")
    if table is not None and pattern is not None:
        raise UserError(f"--patient-pattern: the table {table} tells the patients already. Give only one of them.")
    if table is not None:
        if "part" in read_table(table):
            raise UserError(
                f"--patients: Expected no column part in {table}: --test-fraction says who is a test patient."
            )
        patients = told_patients(table, "record", names, str(source))
    elif pattern is not None:
        patients = _by_rule(names, pattern)
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
    patients = {name: match[1] for name, match in matches.items() if match}
    check_distinct(patients.values(), "--patient-pattern")
    return patients


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
        _write_record(path, [found[sequence][1] for sequence in record.sequences], first.affine)
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
