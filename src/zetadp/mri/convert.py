"""Convert cohorts with one file per sequence (BraTS, BIDS) to the Decathlon layout with one file per record.

Nothing is registered. The sequences of a record must lie on one grid, or are resampled onto one if the user says so.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd

from zetadp.base.storage import folder_written_whole
from zetadp.base.tables import shared_contents, write_table
from zetadp.base.validation import UserError, counted, refuse, shown
from zetadp.mri.decathlon import LEAST_SEQUENCES, SEQUENCES, Listing, read_task, write_task
from zetadp.mri.filenames import NEITHER
from zetadp.mri.grids import join
from zetadp.mri.index import PATIENT_KEY, summarise_names
from zetadp.mri.persons import TEST, TRAIN, assign_parts, with_patients
from zetadp.mri.slicing import PLANES, SIZE, SPACING, not_measured
from zetadp.mri.sources import UNREAD, Scan, find_scans
from zetadp.mri.volumes import Volume, images_of, log_assumptions, read_volume, read_voxels

logger = logging.getLogger(__name__)

CONVERSION = "conversion.tsv"
"""Table next to ``dataset.json``: what became of every file of the source."""
ASKED = "The options --slices and --spacing ask for other planes."
"""End of the message on a volume that ends before the planes."""


def convert_folder(
    source: Path,
    target: Path,
    *,
    patients: Path | None = None,
    patient_pattern: str | None = None,
    test_fraction: float = 0.35,
    exact_test_fraction: bool = False,
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
    patients
        Table with the columns ``record`` (path of the record's folder in the source, with ``_`` for ``/``; in BIDS
        ``sub-01`` or ``sub-01_ses-1``) and ``patient``.
    patient_pattern
        Rule that tells the patient from the name of a record: a regular expression that matches the whole name, and
        whose first group is the patient, such as ``(BraTS-GLI-\d+)-\d+``. Records of BIDS that it does not match are of
        their subject.
    test_fraction
        Expected share of test patients, in [0, 1]. A patient's part follows from the patient's name alone, so that no
        patient moves when another one joins (`zetadp.mri.persons.assign_parts`). With 1, all are test patients, for a
        server that watches a run across hospitals.
    exact_test_fraction
        Whether exactly this share of the patients (rounded to a whole number) becomes test patients. A patient's part
        then depends on who else is in the folder.
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
    fewest = 0 if fewest_sequences is None else fewest_sequences
    incomplete = [scan for scan in inventory.scans if len(SEQUENCES) - len(scan.lacking) < fewest]
    scans, problems = [scan for scan in inventory.scans if scan not in incomplete], []
    try:
        # A table names every record. A rule or BIDS needs to say only whose the records are that are taken.
        identified = with_patients(scans if patients is None else [*inventory.scans], source, patients, patient_pattern)
        taken = {scan.name for scan in scans}
        scans = [scan for scan in identified if scan.name in taken]
    except UserError as error:
        problems.append(str(error))
    faults = (problem for scan in scans for problem in _faults(scan, source, inventory.left_out))
    problems = [*inventory.problems, *faults, *problems]
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
    parts = assign_parts((scan.patient or scan.name for scan in scans), test_fraction, exact=exact_test_fraction)
    paths = {scan.name: PurePosixPath(parts[scan.patient or scan.name], f"{scan.name}.nii.gz") for scan in scans}
    train, test = ([file for file in paths.values() if file.parts[0] == part] for part in (TRAIN, TEST))
    if test and not train and test_fraction < 1:
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
        if all(scan.patient for scan in scans):
            rows = [(str(paths[scan.name]), scan.patient) for scan in scans]
            write_table(folder / PATIENT_KEY, pd.DataFrame(rows, columns=["file", "patient"]))
        write_table(folder / CONVERSION, _outcomes(source, scans, incomplete, converted, inventory.left_out))
        about = {
            "name": "converted",
            "description": f"Converted from {source.name}: one record per scan, intensities as in the source",
        }
        resampled = {
            str(paths[scan.name]): record.note for scan, record in zip(scans, converted, strict=True) if record.note
        }
        usual = Counter(scan.sequences for scan in scans).most_common(1)[0][0]
        other = {paths[scan.name]: scan.sequences for scan in scans if scan.sequences != usual}
        write_task(
            folder,
            about | ({"resampled": resampled} if resampled else {}),
            sequences=usual,
            training=train,
            test=test,
            exceptions=other,
        )
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
    for reason, group in taken[taken["reason"].str.contains("resampled")].groupby("reason"):
        rows.append(
            ("", counted(group["record"].nunique(), "scan"), f"{reason}: {', '.join(group['record'].unique())}")
        )
    rest = outcomes[outcomes["outcome"] != "taken"]
    for reason, group in rest[rest["record"] != ""].groupby("reason"):
        rows.append(
            ("left out", counted(group["record"].nunique(), "scan"), f"{reason}: {', '.join(group['record'].unique())}")
        )
    for reason, group in rest[rest["record"] == ""].groupby("reason"):
        rows.append(("left out", "", f"{reason}: {summarise_names(group['file'].tolist(), 'in all')}"))
    if len(rows) == 1:
        rows.append(("left out", "0", "nothing"))
    return [f"{outcome:<10}{count:>10}  {text}" for outcome, count, text in rows]


@dataclass(frozen=True)
class _Converted:
    """What was made of one scan: its name, headers, hashes of intensities by name, what was resampled, and problems.

    ``too_short`` holds a sentence if it ends before the default planes, and the user asked for none.
    """

    scan: str
    volumes: list[Volume]
    contents: dict[str, str]
    reasons: dict[str, str]
    problems: list[str]
    too_short: list[str]

    @property
    def note(self) -> str:
        """The sequences that were resampled, as a sentence; empty if none was."""
        return ", ".join(self.reasons.values())


def _convert_scan(
    scan: Scan, path: Path, onto: str | None, slices: int | None, spacing: float, *, write: bool
) -> _Converted:
    """Check the sequences of one scan and join them in one file, if told to write."""
    converted = _Converted(scan.name, [], {}, {}, [], [])
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
        content = np.ascontiguousarray(values[sequence].T)
        converted.contents[f"{scan.name} ({files[0].name})"] = hashlib.sha256(content.tobytes()).hexdigest()
    converted.volumes.extend(headers.values())
    if not headers:
        return converted
    first, reasons, problems = join(headers, values, onto, scan.name)
    converted.reasons.update(reasons)
    converted.problems.extend(problems)
    if not problems:
        count = PLANES if slices is None else slices
        try:
            first.centre_slices(count, spacing)
        except UserError as error:
            (converted.too_short if slices is None else converted.problems).append(f"{error} {ASKED}")
        else:
            converted.problems.extend(_unusable(headers, values, first, reasons, count, spacing))
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
                problems.append(f"{error} {remedy}: {_leaving_out(header.path)}, or --resample {sequence}.")
            else:
                problems.append(f"{error} To leave it out: {_leaving_out(header.path)}.")
    return problems


def read_scan(path: Path) -> tuple[Volume, np.ndarray]:
    """Read a file with one sequence; return its header, and its intensities of shape (x, y, z).

    Raises
    ------
    UserError
        For everything that `read_volume` and `read_voxels` refuse. Also if intensities are not finite, or if no scanner
        measured them (`not_measured`).
    """
    volume = read_volume(path, channels=1)
    values = volume.intensities(read_voxels(volume)[..., 0])
    if not (np.abs(values) <= np.finfo(np.float32).max).all():
        raise UserError(
            f"Expected finite intensities in {path}, found NaN or infinity. Correct it, or leave it out "
            f"({_leaving_out(path)})."
        )
    computed = not_measured(values)
    if computed:
        raise UserError(
            f"Expected a scan in {path}, found {computed}. Leave it out ({_leaving_out(path)}), and say which file is "
            "the scan."
        )
    return volume, values


def _leaving_out(path: Path) -> str:
    """Return the option that leaves out one file, and none of the same name in other folders."""
    return f"zetadp convert: --sequence '*{escape(path.parent.name)}/{escape(path.name)}={NEITHER}'"


def write_record(path: Path, channels: list[np.ndarray], affine: np.ndarray, note: str = "") -> None:
    """Write channels as one 4-D volume, in the type that `convert_folder` says, with a note in its header."""
    import nibabel as nib

    least, most = np.iinfo(np.int16).min, np.iinfo(np.int16).max
    whole = all(channel.dtype.kind in "iu" and least <= channel.min() and channel.max() <= most for channel in channels)
    stacked = np.empty((*channels[0].shape, len(channels)), dtype=np.int16 if whole else np.float32, order="F")
    for index, channel in enumerate(channels):
        stacked[..., index] = channel
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(stacked, affine)  # type: ignore[no-untyped-call]
    image.header.set_xyzt_units("mm")  # type: ignore[no-untyped-call]
    image.header["descrip"] = note[:79]
    nib.save(image, path)
