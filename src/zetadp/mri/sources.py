"""Folders of scans with one file per sequence: which files make a scan, and which are left out, and why.

Two layouts are recognised, side by side and in subfolders: BIDS, and one folder per scan. Every NIfTI file is either in
a scan or left out with a reason; files of other formats are left out, except notes and tables, which hold no image.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zetadp.base.tables import is_hidden
from zetadp.base.validation import UserError, counted, shown
from zetadp.mri.decathlon import SEQUENCES, record_name
from zetadp.mri.filenames import apply_rules, fits, is_computed, readings
from zetadp.mri.nifti import CONVERT, ENDINGS

NOTES = {".json", ".tsv", ".csv", ".txt", ".md", ".bval", ".bvec", "README", "CHANGES", "LICENSE"}
"""Endings and names of files next to scans that hold no image."""
COMPUTED_FOLDERS = {
    *("derivatives", "sourcedata", "code", "stimuli", "phenotype"),
    *("masks", "mask", "labels", "label", "labelstr", "segmentations", "segmentation", "seg", "rois"),
}
"""Names of folders that hold no scans of their own: those of BIDS, and those for masks."""
DATATYPES = {"dwi", "func", "fmap", "perf", "pet", "meg", "eeg", "ieeg", "beh", "micr", "nirs", "motion", "mrs"}
"""Folders of a subject in BIDS whose images are of other kinds."""
ANATOMY = "anat"


@dataclass(frozen=True)
class Scan:
    """The files of one scan of one person.

    Attributes
    ----------
    name
        Path of its folder below the user's folder, with ``_`` between the parts. In BIDS, ``anat`` is omitted.
    folder
        The folder that holds the files.
    patient
        The person, if something says who it is, otherwise empty.
    subject
        In BIDS, path of the subject's folder below the user's folder.
    files
        Files of each sequence.
    open_to
        Files whose names can be read in several ways, with these.
    """

    name: str
    folder: Path
    patient: str = ""
    subject: str = ""
    files: dict[str, list[Path]] = field(default_factory=lambda: {sequence: [] for sequence in SEQUENCES})
    open_to: dict[Path, tuple[str, ...]] = field(default_factory=dict)

    @property
    def sequences(self) -> tuple[str, ...]:
        """The sequences that the scan has, in canonical order."""
        return tuple(sequence for sequence, files in self.files.items() if files)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Sequences of which the scan has no file, and for which no file can be meant."""
        meant = {sequence for several in self.open_to.values() for sequence in several}
        return tuple(name for name, files in self.files.items() if not files and name not in meant)

    @property
    def volumes(self) -> list[Path]:
        """All files that hold a sequence."""
        return [*(file for files in self.files.values() for file in files), *self.open_to]


@dataclass(frozen=True)
class Sources:
    """What a folder holds.

    Attributes
    ----------
    scans
        Its scans, sorted by name. Those that lack a sequence are among them.
    left_out
        Reason for each file or folder that is in no scan, by its path below the folder.
    unused
        Patterns of the user's rules that fit no file.
    problems
        Folders and files that make no scan: names that cannot be used, and files outside of the folder of a scan.
    """

    scans: tuple[Scan, ...]
    left_out: dict[str, str]
    unused: tuple[str, ...]
    problems: tuple[str, ...] = ()


def find_scans(source: Path, rules: Mapping[str, str]) -> Sources:
    """Find the scans of a folder in both layouts, at any depth.

    Parameters
    ----------
    source
        The user's folder.
    rules
        Sequence of the files whose names fit a pattern, by pattern (`zetadp.mri.filenames.apply_rules`).

    Raises
    ------
    UserError
        If the folder is missing.
    """
    if not source.is_dir():
        raise UserError(f"Expected the folder {source}, found none. Give the folder that holds one folder per patient.")
    left_out: dict[str, str] = {}
    volumes: dict[Path, list[Path]] = {}
    for folder, files in _folders(source, left_out):
        volumes[folder] = files
    scans: list[Scan] = []
    for folder, files in volumes.items():
        if folder.name in DATATYPES and _is_subject(folder.parent):
            if files:
                left_out[str(folder.relative_to(source))] = f"{counted(len(files), 'file')} of another kind of image"
        elif files:
            scan, unread = _read_files(source, folder, files, rules)
            left_out |= unread
            inside = not {other.folder for other in scans}.isdisjoint(folder.parents)
            unclear = UNREAD in unread.values() or bool(scan.subject)
            if scan.volumes or (unclear and not inside and folder != source):
                scans.append(scan)
    scans += [_described(source, folder) for folder in _without_scan(source, volumes, scans)]
    scans, problems = _check(source, scans, volumes.get(source, []), left_out)
    paths = [file.relative_to(source).as_posix() for files in volumes.values() for file in files]
    unused = tuple(pattern for pattern in rules if not any(fits(path, pattern) for path in paths))
    return Sources(tuple(sorted(scans, key=lambda scan: scan.name)), left_out, unused, tuple(problems))


def files_of_scan(folder: Path) -> list[Path]:
    """Return the files of the sequences of one scan: those of a folder, or those of the only scan below it.

    Raises
    ------
    UserError
        If there is no scan, or more than one, or more than one file of a sequence.
    """
    left_out: dict[str, str] = {}
    scans = [
        scan
        for inner, files in _folders(folder, left_out)
        if inner.name not in DATATYPES and (scan := _read_files(folder, inner, files, {})[0]).volumes
    ]
    if len(scans) != 1:
        folders = ", ".join(str(scan.folder) for scan in scans[:MOST]) or "none"
        raise UserError(
            f"Expected one scan in the folder {folder}, found {folders}. Give the folder of one scan, or the files of "
            f"its sequences.{conversion_advice(left_out.values())}"
        )
    several = {name: files for name, files in scans[0].files.items() if len(files) > 1}
    for name, files in several.items():
        raise UserError(
            f"Expected one {name} volume in {scans[0].folder}, found {', '.join(file.name for file in files)}. Give "
            "the files themselves."
        )
    return scans[0].volumes


UNREAD = "its name is none of the four sequences"
OTHER_FORMAT = "not in NIfTI format"
MOST = 5


def conversion_advice(reasons: Iterable[str]) -> str:
    """Return advice, after a space, if files were left out because of their format; otherwise nothing."""
    if not any(reason.endswith(OTHER_FORMAT) for reason in reasons):
        return ""
    return f" {CONVERT}"


def _folders(source: Path, left_out: dict[str, str]) -> Iterator[tuple[Path, list[Path]]]:
    """Yield each folder with its NIfTI files, parents first; add what holds no scan to ``left_out``.

    Files of other formats are added one by one where there are NIfTI files, and otherwise by folder, because the DICOM
    files of a series are many.
    """
    visited = set()
    for root, folders, names in os.walk(source, followlinks=True):
        folder = Path(root)
        folders[:] = sorted(name for name in folders if not is_hidden(Path(name)))
        # A link to a folder above would never end.
        if (real := folder.resolve()) in visited:
            folders.clear()
            continue
        visited.add(real)
        for name in [name for name in folders if name.lower() in COMPUTED_FOLDERS]:
            folders.remove(name)
            count = sum(file.name.lower().endswith(ENDINGS) for file in (folder / name).rglob("*"))
            if count:
                left_out[str((folder / name).relative_to(source))] = (
                    f"{counted(count, 'file')} in a folder of computed images"
                )
        volumes = [folder / name for name in sorted(names) if _is_volume(name)]
        others = [folder / name for name in sorted(names) if _has_other_format(name)]
        if others and not volumes and folder != source:
            left_out[str(folder.relative_to(source))] = f"{counted(len(others), 'file')} {OTHER_FORMAT}"
        else:
            left_out |= {str(file.relative_to(source)): OTHER_FORMAT for file in others}
        yield folder, volumes


def _has_other_format(name: str) -> bool:
    file = Path(name)
    return not (name.lower().endswith(ENDINGS) or is_hidden(file) or {name, file.suffix.lower()} & NOTES)


def _is_volume(name: str) -> bool:
    return name.lower().endswith(ENDINGS) and not is_hidden(Path(name))


def _is_subject(folder: Path) -> bool:
    """Return whether a folder is that of a subject or of a session in BIDS."""
    return folder.name.startswith("sub-") or (folder.name.startswith("ses-") and folder.parent.name.startswith("sub-"))


def _described(source: Path, folder: Path) -> Scan:
    """Return the scan of a folder without its files."""
    unit = folder.parent if folder.name == ANATOMY and _is_subject(folder.parent) else folder
    # The user may name the folder anat itself, whose subject lies above.
    name = "" if folder == source else "_".join(unit.relative_to(source).parts)
    if unit == folder:
        return Scan(name, folder)
    subject = unit if unit.name.startswith("sub-") else unit.parent
    return Scan(name or subject.name, folder, subject.name, str(subject))


def _read_files(source: Path, folder: Path, files: list[Path], rules: Mapping[str, str]) -> tuple[Scan, dict[str, str]]:
    """Return the scan of a folder, and the reasons for files that are left out."""
    scan = _described(source, folder)
    unread = {}
    owner = folder.name
    if scan.subject:
        owner = "_".join(part for part in folder.parts[-3:-1] if part.startswith(("sub-", "ses-")))
    for file in files:
        name = record_name(file)
        path = file.relative_to(source).as_posix()
        declared = apply_rules(path, rules)
        # In BIDS, the names of subject and session say nothing about the sequence.
        read = readings(name.removeprefix(owner)) if scan.subject else readings(name, owner)
        possible = read if declared is None else declared
        reason = UNREAD
        if declared == ():
            reason = "--sequence says none"
        elif declared is None and is_computed(name, owner):
            reason, possible = "computed from a scan, as its name says", ()
        elif scan.subject and declared is None and "_ce-" in name and possible != ("T1gd",):
            reason, possible = "FLAIR or T2w with contrast", ()
        if len(possible) == 1:
            scan.files[possible[0]].append(file)
        elif possible:
            scan.open_to[file] = possible
        else:
            unread[path] = reason
    return scan, unread


def _without_scan(source: Path, volumes: Mapping[Path, list[Path]], scans: list[Scan]) -> list[Path]:
    """Return the folders of persons, as far as one can see, in which no scan was found."""
    scanned = {scan.folder for scan in scans}
    with_scan = {parent for folder in scanned for parent in (folder, *folder.parents)}
    with_volume = {parent for folder, files in volumes.items() if files for parent in (folder, *folder.parents)}
    with_session = {folder.parent for folder in volumes if _is_subject(folder)}
    empty: set[Path] = set()
    for folder in volumes:
        if folder == source or not (scanned | empty).isdisjoint(folder.parents):
            continue
        if _is_subject(folder):
            empty |= {folder} - with_scan - with_session
        elif not _is_subject(folder.parent):
            empty |= {folder} - with_volume
    return sorted(empty)


def _check(
    source: Path, scans: list[Scan], directly: Sequence[Path], left_out: Mapping[str, str]
) -> tuple[list[Scan], list[str]]:
    """Return the scans that can be converted, and the problems of the others.

    Names of the others cannot be used, or their files lie directly in the user's folder, which are ``directly``.
    """
    unprintable = [scan for scan in scans if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in scan.name)]
    problems = [
        f"Expected names of folders in UTF-8 without control characters in {source}, found '{shown(scan.name)}'. "
        "Rename it."
        for scan in unprintable
    ]
    folders: dict[str, list[str]] = {}
    for scan in scans:
        folders.setdefault(scan.name, []).append(str(scan.folder))
    problems += [
        f"Expected folders whose names differ, also with _ for /, found {' and '.join(several)}. Rename one."
        for several in folders.values()
        if len(several) > 1
    ]
    if any(scan.folder == source for scan in scans) or (directly and not scans):
        problems.append(
            f"Expected one folder per scan in {source}, found {counted(len(directly), 'volume')} directly in it "
            f"({', '.join(file.name for file in directly[:MOST])}). Move the files of each scan into a folder. Files "
            "that hold all sequences of a scan need no conversion: list them in dataset.json (docs/own_data.md)."
        )
    elif not scans:
        problems.append(
            f"Expected one folder per patient in {source}, found no folder.{conversion_advice(left_out.values())}"
        )
    return [scan for scan in scans if scan.folder != source and scan not in unprintable], problems
