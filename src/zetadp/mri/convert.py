"""Convert cohorts with one file per sequence (BraTS, BIDS) to the Decathlon layout with one file per record.

Nothing is registered or resampled: the four sequences of a record must lie on one grid already.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from zetadp.base.storage import folder_written_whole, write_text
from zetadp.base.tables import read_table, write_table
from zetadp.base.validation import UserError
from zetadp.mri.decathlon import DAMAGED, SEQUENCES, Listing, read_task, record_name, write_task
from zetadp.mri.index import PARTICIPANTS, PATIENT_KEY, bare
from zetadp.mri.naming import bids_readings, readings, told

FOLDERS = {"train": "imagesTr", "test": "imagesTs"}
INT16_MAX = 32767
LEAST_LEVELS = 1000
"""Least number of integer levels over the range of a sequence; with fewer, the record is stored as float32."""

GRID_TOLERANCE = 1e-3
"""Largest difference of two affines that counts as the same grid, in millimetres."""

TIMEPOINT = re.compile(r"(BraTS-[A-Za-z]+-\d{5})-\d{3}")
"""Names in BraTS since 2023, whose last number counts the scans of one person."""


@dataclass(frozen=True)
class Record:
    """One scan of one patient: a file for each sequence."""

    name: str
    patient: str
    files: dict[str, list[Path]] = field(default_factory=lambda: {sequence: [] for sequence in SEQUENCES})


def convert_folder(
    source: Path,
    target: Path,
    *,
    parts: Path | None = None,
    test_fraction: float = 0.35,
    name: str = "converted",
    sequences: Mapping[str, str] | None = None,
) -> Listing:
    """Convert a folder of single-sequence volumes to the Decathlon layout, whole or not at all.

    Two layouts are recognised: BIDS (``sub-*/[ses-*/]anat/*_{FLAIR,T1w,T2w}.nii.gz``, contrast-enhanced T1w marked by
    the entity ``ce``), and one folder per record with four files whose names hold the sequence as words
    (``*_flair.nii.gz``, ``*-t1c.nii.gz``, ``*_T1_axial_post_gd.nii.gz``; `zetadp.mri.naming`).

    Sessions of one person stay one patient: they go to the same part, and ``patient_key.tsv`` next to ``dataset.json``
    names the patient of each file.

    If all sequences of a record hold integers that fit into int16, they are stored unchanged. Other records are stored
    as int16 multiples of one step, which is the record's largest magnitude over 32767 and becomes ``scl_slope``. Zero
    stays zero, and the error is at most half a step. If a sequence would have fewer than 1000 levels that way, the
    record is stored as float32.

    Parameters
    ----------
    source
        Folder to convert.
    target
        Folder of the new task; absent or empty.
    parts
        Tab-separated table with the columns ``patient`` and ``part`` (``train`` or ``test``). Without it a patient's
        part follows from the patient's name alone (`part_of`), so that no patient moves when another one joins.
    test_fraction
        Expected share of test patients, in [0, 1], if ``parts`` is not given. With 1, all are test patients, for a
        server that watches a run between hospitals.
    name
        Name of the task, for ``dataset.json``.
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
    assigned, wrong = _assign(sorted({record.patient for record in records}), parts, test_fraction)
    problems += wrong
    if assigned and "train" not in assigned.values() and (parts is not None or test_fraction < 1):
        remedy = f"Change {parts}." if parts else "Lower the test fraction, or give a table of parts."
        problems.append(f"Expected at least one training patient, found {len(assigned)} for testing only. {remedy}")
    with folder_written_whole(target) as folder:
        places: dict[str, PurePosixPath] = {}
        for record in records:
            file = PurePosixPath(FOLDERS[assigned[record.patient]], f"{record.name}.nii.gz")
            places[record.name] = file
            problems += _convert_record(record, folder / file, write=not problems)
        if problems:
            numbered = "\n".join(f"{number}. {problem}" for number, problem in enumerate(problems, start=1))
            plural = "s" if len(problems) > 1 else ""
            raise UserError(f"Found {len(problems)} problem{plural} in {source}; nothing was written:\n{numbered}")
        rows = "".join(f"{places[record.name]}\t{record.patient}\n" for record in records)
        write_text(folder / PATIENT_KEY, f"file\tpatient\n{rows}")
        _copy_scanners(source / PARTICIPANTS, folder / PARTICIPANTS, set(assigned))
        train, test = (
            [file for file in places.values() if file.parts[0] == FOLDERS[part]] for part in ("train", "test")
        )
        write_task(
            folder,
            name=name,
            description=f"Converted from {source.name}: one record per scan, intensities as in the source",
            sequences=SEQUENCES,
            training=train,
            test=test,
        )
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
        write_task(folder, **about, sequences=sequences, training=train, test=test)
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
    folders = sorted(path for path in source.iterdir() if path.is_dir() and not path.name.startswith("."))
    sessions = [
        (folder, anat.parent)
        for folder in folders
        if folder.name.startswith("sub-")
        for anat in sorted([*folder.glob("anat"), *folder.glob("ses-*/anat")])
    ]
    if sessions:
        found = [(_bids_record(subject, session), session / "anat", bids_readings) for subject, session in sessions]
    else:
        found = [(Record(folder.name, _person(folder.name)), folder, readings) for folder in folders]
    problems = []
    for record, folder, readings_of in found:
        open_to: set[str] = set()
        for file in sorted(folder.iterdir()):
            if not file.name.endswith((".nii.gz", ".nii")):
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


def _person(folder: str) -> str:
    match = TIMEPOINT.fullmatch(folder)
    return match[1] if match else folder


def _assign(patients: list[str], parts: Path | None, test_fraction: float) -> tuple[dict[str, str], list[str]]:
    """Return the part of each patient, and the faults of the table of parts."""
    if parts is None:
        return {patient: part_of(patient, test_fraction) for patient in patients}, []
    table = read_table(parts, ("patient", "part"))
    told: dict[str, str] = {}
    problems = []
    for patient, part in zip(table["patient"], table["part"], strict=True):
        if part not in FOLDERS:
            problems.append(f"Expected the part of {patient} in {parts} to be train or test, found {part!r}.")
        elif told.setdefault(patient, part) != part:
            problems.append(f"Expected one part for {patient} in {parts}, found both. Keep one.")
    for patient in patients:
        if patient not in set(table["patient"]):
            problems.append(f"Expected a line for {patient} in {parts}, found none. Add it.")
    unknown = sorted(set(told) - set(patients))
    problems += [f"Expected a folder for {patient}, which {parts} names, found none." for patient in unknown]
    return {patient: told.get(patient, "train") for patient in patients}, problems


def _convert_record(record: Record, path: Path, *, write: bool) -> list[str]:
    """Check the sequences of one record and join them in one file, unless told not to write; return their faults."""
    import nibabel as nib

    problems: list[str] = []
    images: dict[str, tuple[Path, Any, np.ndarray]] = {}
    for sequence, files in record.files.items():
        if len(files) != 1:
            continue
        try:
            image: Any = nib.load(files[0])
            image = nib.squeeze_image(image)  # type: ignore[no-untyped-call]
            if len(image.shape) != 3:
                problems.append(f"Expected a 3-D volume in {files[0]}, found shape {image.shape}. Keep one sequence.")
                continue
            values = np.asarray(image.dataobj)
        except (*DAMAGED, ValueError, nib.filebasedimages.ImageFileError) as error:
            problems.append(f"Cannot read {files[0]}: {error}. Copy it again.")
            continue
        if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
            problems.append(f"Expected finite real intensities in {files[0]}, found others. Correct or leave it out.")
            continue
        images[sequence] = (files[0], image.affine, values)
    if images:
        first, affine, values = next(iter(images.values()))
        problems += [
            f"Expected one grid for all sequences of {record.name}: {first} has shape {values.shape} and affine "
            f"{affine.tolist()}, {other} has shape {others.shape} and affine {other_affine.tolist()}. "
            "Co-register them and resample to one grid first."
            for other, other_affine, others in list(images.values())[1:]
            if others.shape != values.shape or not np.allclose(affine, other_affine, rtol=0, atol=GRID_TOLERANCE)
        ]
    if problems or not write:
        return problems
    _write_record(path, [images[sequence][2] for sequence in SEQUENCES], affine)
    return []


def _write_record(path: Path, channels: list[np.ndarray], affine: np.ndarray) -> None:
    """Write the channels as one 4-D volume, quantised as `convert_folder` says."""
    import nibabel as nib

    largest = [max(abs(float(channel.min())), abs(float(channel.max()))) for channel in channels]
    whole = all(channel.dtype.kind in "iu" for channel in channels) and max(largest) <= INT16_MAX
    step = 1.0 if whole else max(largest) / INT16_MAX
    # The header stores the step in single precision: divide by exactly that number.
    step = float(np.float32(step)) or 1.0
    fine = whole or all(float(np.ptp(channel)) >= LEAST_LEVELS * step for channel in channels)
    stacked = np.empty((*channels[0].shape, len(channels)), dtype=np.int16 if fine else np.float32, order="F")
    for index, channel in enumerate(channels):
        stacked[..., index] = channel if whole or not fine else np.clip(np.rint(channel / step), -INT16_MAX, INT16_MAX)
    image = nib.Nifti1Image(stacked, affine)  # type: ignore[no-untyped-call]
    if fine and not whole:
        # With a slope in the header nibabel writes the integers unchanged and the slope separately.
        image.header.set_slope_inter(step, 0.0)  # type: ignore[no-untyped-call]
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(image, path)


def _copy_scanners(source: Path, target: Path, patients: set[str]) -> None:
    """Copy the scanner of each patient, and no other column of the table."""
    if not source.is_file():
        return
    table = read_table(source, ("participant_id",))
    if "scanner" in table:
        known = table["participant_id"].map(bare).isin({bare(patient) for patient in patients})
        rows = table.loc[known, ["participant_id", "scanner"]]
        write_text(target, rows.to_csv(sep="\t", index=False, lineterminator="\n"))
