"""The cohort of spoken commands: the clips in use, their units, and the division into training and test."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from zetadp.base.storage import read_arrays, write_arrays
from zetadp.base.validation import UserError
from zetadp.tasks.speech_commands.clips import Clips, capped, is_tested

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def chosen(clips: Clips, most: int) -> Clips:
    """Return all clips of test speakers, and at most a given number of clips of every training speaker."""
    tested = np.array([is_tested(speaker) for speaker in clips.speakers])
    train = capped(clips.part(~tested), most)
    return clips.part(np.isin(clips.names, [*train.names, *clips.names[tested]]))


def index(clips: Clips, unit: str, sizes: Mapping[str, int]) -> pd.DataFrame:
    """Return the index of a cohort: one row per unit.

    Parameters
    ----------
    clips
        The clips in use.
    unit
        ``clip`` or ``speaker``.
    sizes
        Declared number of units in each part, ``train`` and ``test``.

    Returns
    -------
    Table with columns ``patient``, ``record`` (both name the unit), ``part``, ``scanner`` (empty) and ``sha256`` (of
    the unit's samples).

    Raises
    ------
    UserError
        If a number of units differs from the declared number.
    """
    owners = clips.names if unit == "clip" else clips.speakers
    rows = []
    for owner in np.unique(owners):
        own = clips.part(owners == owner)
        part = "test" if is_tested(str(own.speakers[0])) else "train"
        digest = hashlib.sha256(own.waves.tobytes()).hexdigest()
        rows.append({"patient": owner, "record": owner, "part": part, "scanner": "", "sha256": digest})
    found = pd.DataFrame(rows)
    counts = found["part"].value_counts()
    wrong = [part for part in ("train", "test") if counts.get(part, 0) != sizes[part]]
    if wrong:
        wanted = " and ".join(f"cohort.{part}_patients to be {counts.get(part, 0)}" for part in wrong)
        declared = " and ".join(str(sizes[part]) for part in wrong)
        raise UserError(f"Expected {wanted}, the number of {unit}s in the clips, found {declared}.")
    return found


def write_clips(path: Path, clips: Clips) -> None:
    """Write clips to HDF5."""
    names = {"clip": tuple(clips.names), "speaker": tuple(clips.speakers)}
    about = {"axes": ["clip", "sample"], "units": "1"}
    write_arrays(path, {"waves": clips.waves, "labels": clips.labels}, names, about, {})


def read_written(path: Path) -> Clips:
    """Read clips that `write_clips` wrote."""
    (waves, labels), names = read_arrays(path, "clips", ("waves", "labels"), ("speaker", "clip"))
    speakers, clips = (np.array(column).astype(str) for column in names)
    return Clips(waves, labels, speakers, clips)


def names_of(clips: Clips) -> pd.DataFrame:
    """Return a table of the clips with columns ``clip`` and ``speaker``."""
    return pd.DataFrame({"clip": clips.names, "speaker": clips.speakers})
