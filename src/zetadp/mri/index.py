"""The table of a cohort (patients, parts and files), all checks that need no voxels, and the search for duplicates.

The user declares the numbers of patients. They are public constants, for which the privacy guarantee is stated, so they
are compared with the folder and never counted from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.ndimage import gaussian_filter

from zetadp.base.storage import content_hash, present
from zetadp.base.tables import read_table, shared_contents, wrong_parts
from zetadp.base.validation import UserError, check_distinct, name_key, refuse, shown
from zetadp.mri.decathlon import read_task, record_name
from zetadp.mri.slicing import SPACING, resize_area
from zetadp.mri.volumes import MOST_NAMED, Volume, check_complete, log_assumptions, read_volume

COLUMNS = ("patient", "record", "part", "file", "sha256", "bytes", "scanner")
PATIENT_KEY = "patient_key.tsv"
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
    problems: list[str] = []
    listed = [(part, file) for part, files in (("train", task.training), ("test", task.test)) for file in files]
    problems += [
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
    rows = [
        (
            patients[file],
            record_name(file),
            part,
            file.as_posix(),
            checked[file].sha256,
            checked[file].size,
            scanners.get(name_key(strip_prefix(patients[file])), ""),
        )
        for part, file in listed
    ]
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


THRESHOLD = 0.8
"""Least correlation of a pair that is reported, after the mean of the cohort is subtracted.

Where patients come from one scanner and are registered to one space, this is reached by two persons who differ from the
rest of the cohort in the same way: three real patients among 37 simulated ones reach 0.94. So a pair must also agree in
its details (`DETAIL`).
"""

DETAIL = 0.73
"""Least correlation of the details of a pair that is reported: above that of distinct patients, below that of copies.

Measured on simulated patients at 32 x 32 pixels and on the three real patients of one scanner. The 780 pairs of 40
patients of the standard population reach at most 0.50, the 190 of 20 healthy ones 0.45, and the three of the real ones
0.69. Copies reach at least 0.99 after a change of contrast (power 0.8), 0.97 when shifted by one slice, 0.90 after a
shift of a quarter of a pixel in both directions, 0.86 after a blur of 0.7 pixels and 0.76 with noise of 0.3 standard
deviations. A copy with noise of half a standard deviation or a shift of half a pixel (2.7 mm along the diagonal) is not
found.
"""

PIXELS, SLABS = 16, 5
"""Size of the coarse grid on which images are compared."""
DETAIL_PIXELS, BLUR = 32, 1.0
"""Size of the grid on which details are compared, and the width in pixels of the blur that is subtracted from it."""


def near_duplicates(stack: np.ndarray, patients: Sequence[str]) -> pd.DataFrame:
    """Find the pairs of patients whose images correlate more than the common anatomy explains.

    Such a pair may be one person under two names, or one scan in two files, which hashes of files cannot find. Then a
    patient may be in training and in test data, and the guarantee per patient is wrong.

    Each sequence of each patient is averaged to a coarse grid (16 x 16 pixels, 5 slabs) and standardised to zero mean
    and unit variance. The mean over the cohort is subtracted, and the correlation of two patients is that of the rest.
    Scale and offset of intensities do not change it; noise and small shifts change it little. Two patients are compared
    in the sequences that both have. Such a pair is reported if it also correlates in its details, which
    are finer than what registration makes equal.

    Parameters
    ----------
    stack
        float32 images of shape (patient, sequence, slice, row, column). A sequence that a patient lacks is NaN.
    patients
        Identifier of each patient.

    Returns
    -------
    Table with the columns patient_a, patient_b and correlation, highest first. With fewer than three patients it is
    empty, because the anatomy that all share cannot be separated from the similarity of a pair.

    Notes
    -----
    This needs at least a few dozen patients. In a smaller cohort, every patient is a large part of the mean, and
    altered copies can be missed. Patients of another source than the majority resemble each other and can be reported
    wrongly. A pair is a reason to look, not a proof.

    The result depends on all patients of the cohort. It is for the data holder, before training, and must not be
    released.
    """
    columns = ["patient_a", "patient_b", "correlation"]
    if len(patients) < 3:
        return pd.DataFrame({"patient_a": [], "patient_b": [], "correlation": np.empty(0)}, columns=columns)
    available = present(stack)
    features = np.zeros((*available.shape, _coarse_features(stack[0, :1]).size), dtype=np.float32)
    for patient, of_patient in enumerate(available):
        features[patient, of_patient] = _coarse_features(stack[patient, of_patient]).reshape(of_patient.sum(), -1)
    features -= features.sum(axis=0) / np.maximum(available.sum(axis=0), 1)[:, None]
    features[~available] = 0
    squares = np.square(features).sum(axis=2) @ available.T  # of each patient, in the sequences of each other one
    features = features.reshape(len(stack), -1)
    correlation = features @ features.T / np.maximum(np.sqrt(squares * squares.T), np.finfo(np.float32).tiny)
    first, second = np.nonzero(np.triu(correlation >= THRESHOLD, k=1))
    alike = [_correlate_details(stack[a], stack[b]) >= DETAIL for a, b in zip(first, second, strict=True)]
    first, second = first[alike], second[alike]
    correlations = correlation[first, second]
    order = np.argsort(-correlations, kind="stable")
    rows = [(patients[first[i]], patients[second[i]], float(correlations[i])) for i in order]
    return pd.DataFrame(rows, columns=columns)


def _correlate_details(first: np.ndarray, second: np.ndarray) -> float:
    """Return the mean correlation, over sequences, of the fine details of two patients: image minus blurred image."""
    details = []
    for images in (first, second):
        fine = _average_slabs(images, DETAIL_PIXELS)
        fine = fine - gaussian_filter(fine, (0, 0, BLUR, BLUR))
        details.append(fine.reshape(len(fine), -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = [np.corrcoef(a, b)[0, 1] for a, b in zip(*details, strict=True)]
    defined = np.isfinite(correlations)  # a sequence without details correlates with none
    return float(np.mean(np.array(correlations)[defined])) if defined.any() else 0.0


def _average_slabs(images: np.ndarray, pixels: int) -> np.ndarray:
    """Return images of shape (sequence, slice, row, column) on fewer pixels, as means of `SLABS` groups of slices."""
    small = resize_area(images, min(pixels, *images.shape[-2:]))
    slabs = np.array_split(small, min(SLABS, small.shape[1]), axis=1)
    return np.stack([slab.mean(axis=1) for slab in slabs], axis=1)


def _coarse_features(images: np.ndarray) -> np.ndarray:
    """Return the coarse, standardised images of one patient as a vector."""
    coarse = _average_slabs(images, PIXELS)
    flat = coarse.reshape(len(coarse), -1)
    flat = flat - flat.mean(axis=1, keepdims=True)
    spread = flat.std(axis=1, keepdims=True)
    return np.asarray(flat / np.where(spread > 0, spread, 1.0), dtype=np.float32).ravel()
