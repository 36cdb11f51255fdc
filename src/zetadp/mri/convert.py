"""Convert cohorts with one file per sequence (BraTS, BIDS) to the Decathlon layout with one file per record.

Nothing is registered. The sequences of a record must lie on one grid, or are resampled onto one if the user says so.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from zetadp.base.storage import folder_written_whole
from zetadp.base.tables import shared_contents, write_table
from zetadp.base.validation import UserError, counted, refuse, shown
from zetadp.mri.decathlon import LEAST_SEQUENCES, PATIENT_KEY, SEQUENCES, Listing, read_task, write_task
from zetadp.mri.filenames import NEITHER
from zetadp.mri.grids import join
from zetadp.mri.index import summarise_names
from zetadp.mri.joining import option_to_leave_out, read_scan, write_record
from zetadp.mri.nifti import Volume, log_assumptions
from zetadp.mri.persons import TEST, TRAIN, Division, with_patients
from zetadp.mri.slicing import PLANES, SIZE, SPACING
from zetadp.mri.sources import UNREAD, Scan, conversion_advice, find_scans
from zetadp.mri.volumes import images_of

logger = logging.getLogger(__name__)

CONVERSION = "conversion.tsv"
"""Table next to ``dataset.json``: what became of every file of the source."""


def convert_folder(
    source: Path,
    target: Path,
    *,
    division: Division,
    patients: Path | None = None,
    patient_pattern: str | None = None,
    sequences: Mapping[str, str] | None = None,
    resample_onto: str | None = None,
    fewest_sequences: int | None = None,
    slices: int | None = None,
    spacing: float = SPACING,
) -> Listing:
    r"""Convert a folder of single-sequence volumes to the Decathlon layout, whole or not at all.

    Two layouts are recognised, side by side and in subfolders: BIDS (``sub-*/[ses-*/]anat/*_{FLAIR,T1w,T2w}.nii.gz``,
    contrast-enhanced T1w marked by the entity ``ce``), and one folder per record with two to four files whose names
    hold the sequence as words (``*_flair.nii.gz``, ``*-t1c.nii.gz``, ``*_T1_axial_post_gd.nii.gz``;
    `zetadp.mri.filenames`). Hidden files and folders do not exist. ``conversion.tsv`` next to ``dataset.json`` says of
    every other file of the source whether it was taken, and if not, why.

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
    division
        Rule that divides the patients into training and test patients.
    patients
        Table with the columns ``record`` (path of the record's folder in the source, with ``_`` for ``/``; in BIDS
        ``sub-01`` or ``sub-01_ses-1``) and ``patient``.
    patient_pattern
        Rule that tells the patient from the name of a record: a regular expression that matches the whole name, and
        whose first group is the patient, such as ``(BraTS-GLI-\d+)-\d+``. Records of BIDS that it does not match are of
        their subject.
    sequences
        Sequence of the files whose names fit a pattern, by pattern, for names that can be read in two ways; ``none``
        leaves the files out.
    resample_onto
        Sequence onto whose grid the others of a record are resampled where they have another one
        (`zetadp.mri.grids.resample`). By default, records with several grids are refused.
    fewest_sequences
        Records with fewer sequences are left out. By default none is, and one with fewer than two is a problem.
    slices, spacing
        Number of centre planes that every volume must hold, and their distance in mm, as `zetadp.mri.index` checks them
        before a training run. Without a number, volumes that do not reach the default planes cause a warning only.

    Returns
    -------
    The content of the new ``dataset.json``.

    Raises
    ------
    UserError
        One message that numbers all problems; nothing is written then.
    """
    if target.resolve().is_relative_to(source.resolve()):
        raise UserError(
            f"Expected a target outside {source}, found {target}, whose files a later conversion would read. Name "
            "another folder."
        )
    inventory = find_scans(source, sequences or {})
    fewest = fewest_sequences or 0
    incomplete = [scan for scan in inventory.scans if len(SEQUENCES) - len(scan.lacking) < fewest]
    scans = [scan for scan in inventory.scans if scan not in incomplete]
    problems = [*inventory.problems, *(fault for scan in scans for fault in _faults(scan, source, inventory.left_out))]
    try:
        # A table names every record. A rule or BIDS needs to say only whose the records are that are taken.
        identified = with_patients(scans if patients is None else [*inventory.scans], source, patients, patient_pattern)
        taken = {scan.name for scan in scans}
        scans = [scan for scan in identified if scan.name in taken]
    except UserError as error:
        problems.append(str(error))
    problems += [
        f"--sequence: Expected a pattern that fits a file of {source}, found {pattern!r}, which fits none. A pattern "
        f"with / is compared with paths below {source}, others with names of files."
        for pattern in inventory.unused
    ]
    if incomplete and not scans:
        names = [scan.name for scan in incomplete]
        problems.append(
            f"Expected a record with at least {fewest} sequences, found {summarise_names(names, 'with fewer')}."
        )
    parts = division.assign(scan.patient or scan.name for scan in scans)
    paths = {scan.name: PurePosixPath(parts[scan.patient or scan.name], f"{scan.name}.nii.gz") for scan in scans}
    if set(parts.values()) == {TEST} and division.test_fraction < 1:
        problems.append("Expected at least one training patient, found none. Lower the test fraction.")
    converted: list[_Converted] = []
    with folder_written_whole(target) as folder:
        for scan in scans:
            converted.append(
                _convert_scan(scan, folder / paths[scan.name], resample_onto, slices, spacing, write=not problems)
            )
            problems += converted[-1].problems
        problems += _repeated(converted)
        refuse(problems, f"in {source}; nothing was written")
        _write_lists(folder, source, scans, paths, converted)
        write_table(folder / CONVERSION, _outcomes(source, scans, incomplete, converted, inventory.left_out))
    _log_gaps(scans, converted, spacing)
    return read_task(target)


def _write_lists(
    folder: Path,
    source: Path,
    scans: Sequence[Scan],
    paths: Mapping[str, PurePosixPath],
    converted: Sequence[_Converted],
) -> None:
    """Write ``dataset.json`` and, if the patients are known, the table of them.

    Parameters
    ----------
    folder, source
        The new folder, and the one that was converted.
    scans, converted
        The scans, and what was made of each.
    paths
        File of each scan below the folder, by name of the scan.
    """
    if all(scan.patient for scan in scans):
        rows = [(str(paths[scan.name]), scan.patient) for scan in scans]
        write_table(folder / PATIENT_KEY, pd.DataFrame(rows, columns=["file", "patient"]))
    about: dict[str, Any] = {
        "name": "converted",
        "description": f"Converted from {source.name}: one record per scan, intensities as in the source",
    }
    if resampled := {str(paths[record.scan]): record.note for record in converted if record.note}:
        about["resampled"] = resampled
    usual = Counter(scan.sequences for scan in scans).most_common(1)[0][0]
    training, test = ([file for file in paths.values() if file.parts[0] == part] for part in (TRAIN, TEST))
    write_task(
        folder,
        about,
        sequences=usual,
        training=training,
        test=test,
        exceptions={paths[scan.name]: scan.sequences for scan in scans if scan.sequences != usual},
    )


def _log_gaps(scans: Sequence[Scan], converted: Sequence[_Converted], spacing: float) -> None:
    """Log assumptions about headers, sequences that records lack, and volumes that end before the default planes."""
    log_assumptions([volume for record in converted for volume in record.volumes])
    for sequence in SEQUENCES:
        lacking = [scan.name for scan in scans if sequence not in scan.sequences]
        if lacking:
            logger.warning("Records without %s: %s.", sequence, summarise_names(lacking, f"of {len(scans)}"))
    if too_short := [record.scan for record in converted if record.too_short]:
        logger.warning(
            "Records that end before the %d planes %g mm apart that training runs take by default: %s.",
            *(PLANES, spacing, summarise_names(too_short, f"of {len(scans)}")),
        )


def _faults(scan: Scan, source: Path, left_out: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the files of a scan, by their names."""
    problems = []
    for file, possible in scan.open_to.items():
        lacking = [sequence for sequence in possible if not scan.files[sequence]] or possible
        problems.append(
            f"{file} can be {' or '.join(possible)}. Say which it is: --sequence '{file.name}={lacking[-1]}'."
        )
    problems += [
        f"Expected one {sequence} volume in {scan.folder}, found {', '.join(file.name for file in files)}. Keep one."
        for sequence, files in scan.files.items()
        if len(files) > 1
    ]
    inside = [name for name in left_out if (source / name).is_relative_to(scan.folder)]
    unread = [name for name in inside if left_out[name] == UNREAD and not scan.subject]
    if len(scan.sequences) < LEAST_SEQUENCES and not scan.open_to:
        also = f" ({summarise_names(inside, 'left out')})" if inside else ""
        problems.append(
            f"Expected at least {LEAST_SEQUENCES} of {', '.join(SEQUENCES)} in {scan.folder}, found "
            f"{', '.join(scan.sequences) or 'none'}{also}. Add another, say which file it is with --sequence, "
            f"or leave out such records with --leave-out-incomplete {LEAST_SEQUENCES}."
            f"{conversion_advice(left_out[name] for name in inside)}"
        )
    elif scan.lacking and unread:
        others, they_are = ("other file", "it is") if len(unread) == 1 else ("other files", "they are")
        problems.append(
            f"Expected one {' and one '.join(scan.lacking)} volume in {scan.folder}, found none, but "
            f"{summarise_names(unread, others)}. Say what {they_are}: --sequence "
            f"'{Path(unread[0]).name}={scan.lacking[0]}', or {NEITHER} in place of {scan.lacking[0]}."
        )
    return problems


def _repeated(converted: Sequence[_Converted]) -> list[str]:
    """Return one problem for all volumes that the same scans share."""
    contents = {name: content for record in converted for name, content in record.contents.items()}
    scans_of = {name: record.scan for record in converted for name in record.contents}
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for names in shared_contents(contents, contents.values()):
        groups.setdefault(tuple(scans_of[name] for name in names), []).append(names)
    return [
        f"Expected different volumes, found the same intensities in {' and '.join(first)}"
        f"{f', and in {len(more)} more of their volumes' if more else ''}. Keep one, or correct it."
        for first, *more in groups.values()
    ]


def _outcomes(
    source: Path,
    scans: Sequence[Scan],
    incomplete: Sequence[Scan],
    converted: Sequence[_Converted],
    left_out: Mapping[str, str],
) -> pd.DataFrame:
    """Return what became of each file: columns file (below the source), outcome, record and reason."""

    def below(file: Path) -> str:
        return shown(str(file.relative_to(source)))

    rows = []
    for scan, record in zip(scans, converted, strict=True):
        for sequence in scan.sequences:
            (file,) = scan.files[sequence]
            rows.append((below(file), "taken", scan.name, record.reasons.get(sequence, sequence)))
    for scan in incomplete:
        files = scan.volumes or [scan.folder]
        rows += [(below(file), "left out", scan.name, f"lacks {', '.join(scan.lacking)}") for file in files]
    rows += [(shown(name), "left out", "", reason) for name, reason in left_out.items()]
    return pd.DataFrame(rows, columns=["file", "outcome", "record", "reason"])


def summary(outcomes: pd.DataFrame) -> list[str]:
    """Return lines that say how many records and files were taken and left out, and the names of those left out.

    Parameters
    ----------
    outcomes
        The content of `CONVERSION`.
    """
    taken = outcomes[outcomes["outcome"] == "taken"]
    rows = [("taken", counted(taken["record"].nunique(), "scan"), counted(len(taken), "file"))]
    rest = outcomes[outcomes["outcome"] != "taken"]
    of_scans = {"": taken[taken["reason"].str.contains("resampled")], "left out": rest[rest["record"] != ""]}
    for outcome, chosen in of_scans.items():
        for reason, group in chosen.groupby("reason"):
            scans = group["record"].unique()
            rows.append((outcome, counted(len(scans), "scan"), f"{reason}: {', '.join(scans)}"))
    for reason, group in rest[rest["record"] == ""].groupby("reason"):
        rows.append(("left out", "", f"{reason}: {summarise_names(group['file'].tolist(), 'in all')}"))
    if len(rows) == 1:
        rows.append(("left out", "0", "nothing"))
    return [f"{outcome:<10}{count:>10}  {text}" for outcome, count, text in rows]


@dataclass
class _Converted:
    """What was made of one scan: its name, headers, hashes of intensities by name, what was resampled, and problems.

    ``too_short`` says that it ends before the default planes, and that the user asked for none.
    """

    scan: str
    volumes: list[Volume] = field(default_factory=list)
    contents: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    too_short: bool = False

    @property
    def note(self) -> str:
        """The sequences that were resampled, as a sentence; empty if none was."""
        return ", ".join(self.reasons.values())


def _convert_scan(
    scan: Scan, path: Path, onto: str | None, slices: int | None, spacing: float, *, write: bool
) -> _Converted:
    """Check the sequences of one scan and join them in one file, if told to write."""
    converted = _Converted(scan.name)
    headers: dict[str, Volume] = {}
    values: dict[str, np.ndarray] = {}
    for sequence, files in scan.files.items():
        if len(files) != 1:
            continue
        try:
            headers[sequence], values[sequence] = read_scan(files[0])
        except UserError as error:
            converted.problems.append(str(error))
            continue
        # Other programs store a copy in another type.
        content = np.ascontiguousarray(values[sequence].T, dtype=np.float32)
        converted.contents[f"{scan.name} ({files[0].name})"] = hashlib.sha256(content.tobytes()).hexdigest()
    converted.volumes += headers.values()
    if not headers:
        return converted
    first, converted.reasons, problems = join(headers, values, onto, scan.name)
    converted.problems += problems
    if not problems:
        count = PLANES if slices is None else slices
        try:
            first.centre_slices(count, spacing)
        except UserError as error:
            if slices is None:
                converted.too_short = True
            else:
                converted.problems.append(f"{error} The options --slices and --spacing ask for other planes.")
        else:
            converted.problems += _unusable(headers, values, first, converted.reasons, count, spacing)
    if write and not converted.problems:
        write_record(path, [values[sequence] for sequence in scan.sequences], first.affine, converted.note)
    return converted


def _unusable(
    headers: Mapping[str, Volume],
    values: Mapping[str, np.ndarray],
    grid: Volume,
    reasons: Mapping[str, str],
    slices: int,
    spacing: float,
) -> list[str]:
    """Return what the pipeline would refuse in the centre slices of sequences that lie on one grid.

    Parameters
    ----------
    headers, values
        Header of the source, and intensities on the grid, by sequence.
    grid
        Header of the common grid, which reaches all planes.
    reasons
        A note on each sequence that was resampled.
    slices, spacing
        Number of the planes, and their distance in mm.
    """
    problems = []
    for sequence, header in headers.items():
        on_grid = replace(grid, path=header.path, slope=1.0, intercept=0.0)
        try:
            images_of(on_grid, values[sequence][..., None], [sequence], slices, SIZE, spacing)
        except UserError as error:
            if sequence in reasons:
                remedy = f"{reasons[sequence]}, whose grid has slices outside of it. Leave it out, or resample onto it"
                problems.append(f"{error} {remedy}: {option_to_leave_out(header.path)}, or --resample {sequence}.")
            else:
                problems.append(f"{error} To leave it out: {option_to_leave_out(header.path)}.")
    return problems
