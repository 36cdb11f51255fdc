"""The layout of a Medical Segmentation Decathlon task.

A task is a folder with ``dataset.json``, ``imagesTr/`` and ``imagesTs/``. Every record is one four-dimensional NIfTI
file with axes (x, y, z, channel). Only ``dataset.json`` names the channels.

Source: Antonelli et al., Nature Communications 13:4128, 2022, doi:10.1038/s41467-022-30695-9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from zetadp.base.storage import read_json, write_json
from zetadp.base.tables import is_hidden
from zetadp.base.validation import UserError

SEQUENCES = ("FLAIR", "T1w", "T1gd", "T2w")
"""The canonical pulse sequences in canonical order; the index of a sequence is its class label."""

AXES = ("record", "sequence", "slice", "row", "column")
"""Axes of the images of several records; the sequences are in canonical order."""

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
    """

    root: Path
    sequences: tuple[str, ...]
    training: tuple[PurePosixPath, ...]
    test: tuple[PurePosixPath, ...]


def canonical_sequence(name: str) -> str | None:
    """Return the canonical name of a pulse sequence, or ``None`` for an unknown one.

    Examples
    --------
    >>> [canonical_sequence(name) for name in ("t1gd", "T1ce", "T2-FLAIR", "DWI")]
    ['T1gd', 'T1gd', 'FLAIR', None]
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((sequence for sequence, known in SPELLINGS.items() if plain in known), None)


def record_name(file: PurePosixPath | Path) -> str:
    """Return the name of a record: that of its file without ``.nii.gz`` or ``.nii``."""
    return re.sub(r"\.nii(\.gz)?$", "", file.name, flags=re.IGNORECASE)


def read_task(root: Path) -> Listing:
    """Read ``dataset.json`` of a Decathlon task.

    Raises
    ------
    UserError
        If the file is missing or unreadable, a key is missing, a channel is missing, doubled or unknown, or a listed
        path leaves the folder.
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
    return Listing(
        root=root,
        sequences=_sequences(path, content["modality"]),
        training=_listed(path, content["training"]),
        test=_listed(path, content["test"]),
    )


def write_task(
    root: Path,
    about: Mapping[str, Any],
    *,
    sequences: Sequence[str],
    training: Sequence[PurePosixPath],
    test: Sequence[PurePosixPath],
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
    """
    content = {
        **about,
        "tensorImageSize": "4D",
        "modality": {str(index): sequence for index, sequence in enumerate(sequences)},
        "numTraining": len(training),
        "numTest": len(test),
        "training": [{"image": f"./{file}"} for file in training],
        "test": [f"./{file}" for file in test],
    }
    write_json(root / "dataset.json", content)


def _sequences(path: Path, modality: dict[str, Any]) -> tuple[str, ...]:
    """Return the canonical channel names in file order; raise a `UserError` unless each sequence is there once."""
    if sorted(modality) != sorted(map(str, range(len(modality)))):
        raise UserError(
            f"Expected the keys 0 to {len(modality) - 1} under 'modality' in {path}, found {', '.join(modality)}."
        )
    written = [str(modality[str(index)]) for index in range(len(modality))]
    names = tuple(canonical_sequence(name) or name for name in written)
    if sorted(names) != sorted(SEQUENCES):
        raise UserError(
            f"Expected each of {', '.join(SEQUENCES)} once under 'modality' in {path}, found {', '.join(written)}. "
            "Correct the names or bring a cohort with these four sequences."
        )
    return names


def _listed(path: Path, entries: list[Any]) -> tuple[PurePosixPath, ...]:
    """Return the volumes that the entries of a part name: each is a path, or a mapping with the key ``image``."""
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
        files.append(PurePosixPath(name))
    return tuple(file for file in files if not is_hidden(file))
