"""The layout of a Medical Segmentation Decathlon task.

A task is a folder with ``dataset.json``, ``imagesTr/`` and ``imagesTs/``. Every record is one four-dimensional NIfTI
file with axes (x, y, z, channel). Only ``dataset.json`` names the channels: its key ``modality`` for all files,
and a key ``modality`` in the entry of a file for that file.

Source: Antonelli et al., Nature Communications 13:4128, 2022, doi:10.1038/s41467-022-30695-9.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from zetadp.base.storage import folder_written_whole, read_json, write_json
from zetadp.base.tables import is_hidden, write_table
from zetadp.base.validation import UserError

SEQUENCES = ("FLAIR", "T1w", "T1gd", "T2w")
"""The canonical pulse sequences in canonical order; the index of a sequence is its class label."""

AXES = ("record", "sequence", "slice", "row", "column")
"""Axes of the images of several records; the sequences are in canonical order, and one that a record lacks is NaN."""
PATIENT_KEY = "patient_key.tsv"
"""Table next to ``dataset.json`` with the columns ``file`` and ``patient``."""
LEAST_SEQUENCES = 2
"""Least number of sequences of a record. An image is classified by comparison with others of the same record."""

SPELLINGS = {
    "FLAIR": ("flair", "t2flair", "t2f"),
    "T1w": ("t1", "t1w", "t1n"),
    "T1gd": ("t1gd", "t1ce", "t1wgd", "t1wce", "t1c"),
    "T2w": ("t2", "t2w"),
}
"""Names of the sequences in the Decathlon and in the BraTS challenges, in lower case and without punctuation."""


@dataclass(frozen=True)
class Listing:
    """Content of ``dataset.json``.

    Attributes
    ----------
    root
        Folder that holds ``dataset.json``.
    sequences
        Canonical names of the channels, in the order in which the files hold them.
    training, test
        Volumes of the two parts, relative to ``root``. Hidden files, which some scripts list too, are left out.
    exceptions
        Sequences of the volumes whose entries name other channels.
    """

    root: Path
    sequences: tuple[str, ...]
    training: tuple[PurePosixPath, ...]
    test: tuple[PurePosixPath, ...]
    exceptions: Mapping[PurePosixPath, tuple[str, ...]] = field(default_factory=dict)

    def sequences_of(self, file: PurePosixPath | str) -> tuple[str, ...]:
        """Return the names of a volume's channels in the order of the file."""
        return self.exceptions.get(PurePosixPath(file), self.sequences)


def canonical_sequence(name: str) -> str | None:
    """Return the canonical name of a pulse sequence, or ``None`` for an unknown one.

    Examples
    --------
    >>> [canonical_sequence(name) for name in ("t1gd", "T1ce", "T2-FLAIR", "DWI")]
    ['T1gd', 'T1gd', 'FLAIR', None]
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((sequence for sequence, spellings in SPELLINGS.items() if plain in spellings), None)


def record_name(file: PurePosixPath | Path) -> str:
    """Return the name of a record: that of its file without ``.nii.gz`` or ``.nii``."""
    return re.sub(r"\.nii(\.gz)?$", "", file.name, flags=re.IGNORECASE)


def read_task(root: Path) -> Listing:
    """Read ``dataset.json`` of a Decathlon task.

    Raises
    ------
    UserError
        If the file is missing or unreadable, a key is missing, a channel is doubled or unknown, there are fewer than
        two channels, or a listed path leaves the folder.
    """
    path = root / "dataset.json"
    if not path.is_file():
        raise UserError(
            f"Expected {path}, found no such file. Give the folder of the task, the one that holds dataset.json."
        )
    content = read_json(path)
    expected = {"modality": dict, "training": list, "test": list}
    wrong = [f"{key} ({kind.__name__})" for key, kind in expected.items() if not isinstance(content.get(key), kind)]
    if wrong:
        raise UserError(
            f"Expected the keys of a Decathlon task in {path}; missing or of the wrong kind: {', '.join(wrong)}."
        )
    training, test = (_read_entries(path, content[part]) for part in ("training", "test"))
    return Listing(
        root=root,
        sequences=_read_sequences(f"{path}", content["modality"]),
        training=tuple(file for file, _ in training),
        test=tuple(file for file, _ in test),
        exceptions={
            file: _read_sequences(f"{path} for {file}", modality)
            for file, modality in training + test
            if modality is not None
        },
    )


def write_task(
    root: Path,
    about: Mapping[str, Any],
    *,
    sequences: Sequence[str],
    training: Sequence[PurePosixPath],
    test: Sequence[PurePosixPath],
    exceptions: Mapping[PurePosixPath, Sequence[str]] | None = None,
) -> None:
    """Write ``dataset.json`` with the official keys; call this after the volumes are written.

    Parameters
    ----------
    root
        Folder of the task.
    about
        Texts by official key: at least ``name`` and ``description``. Other keys are written as they are.
    sequences
        Names of the channels, in the order in which the files hold them.
    training, test
        Volumes of the two parts, relative to ``root``.
    exceptions
        Names of the channels of volumes that do not hold ``sequences``.
    """
    modalities = {file: {"modality": _number_channels(names)} for file, names in (exceptions or {}).items()}
    content = {
        **about,
        "tensorImageSize": "4D",
        "modality": _number_channels(sequences),
        "numTraining": len(training),
        "numTest": len(test),
        "training": [{"image": f"./{file}", **modalities.get(file, {})} for file in training],
        "test": [{"image": f"./{file}", **modalities[file]} if file in modalities else f"./{file}" for file in test],
    }
    write_json(root / "dataset.json", content)


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


def _number_channels(names: Sequence[str]) -> dict[str, str]:
    return {str(index): name for index, name in enumerate(names)}


def _read_sequences(location: str, modality: Any) -> tuple[str, ...]:  # noqa: ANN401  (whatever JSON holds)
    """Return the canonical channel names in file order; raise a `UserError` unless they are different sequences."""
    if not isinstance(modality, dict) or sorted(modality) != sorted(map(str, range(len(modality)))):
        raise UserError(
            f"Expected the numbers of the channels from 0 as keys under 'modality' in {location}, found {modality}."
        )
    written = [str(modality[str(index)]) for index in range(len(modality))]
    names = tuple(canonical_sequence(name) or name for name in written)
    if len(names) < LEAST_SEQUENCES or len(set(names)) < len(names) or not set(names) <= set(SEQUENCES):
        raise UserError(
            f"Expected at least {LEAST_SEQUENCES} of {', '.join(SEQUENCES)}, each once, under 'modality' in "
            f"{location}, found {', '.join(written) or 'none'}. Correct the names, or leave other channels out."
        )
    return names


def _read_entries(path: Path, entries: list[Any]) -> list[tuple[PurePosixPath, Any]]:
    """Return the volumes of a part with the names of their channels, or None for the usual channels.

    An entry is a path, or a mapping with the key ``image``.
    """
    files = []
    for entry in entries:
        name = entry.get("image") if isinstance(entry, dict) else entry
        if (
            not isinstance(name, str)
            or "\\" in name
            or PurePosixPath(name).is_absolute()
            or ".." in PurePosixPath(name).parts
        ):
            raise UserError(
                f"Expected a path inside the folder of the task, with forward slashes, for each volume in {path}, "
                f"found {entry!r}."
            )
        modality = entry.get("modality") if isinstance(entry, dict) else None
        files.append((PurePosixPath(name), modality))
    return [(file, modality) for file, modality in files if not is_hidden(file)]
