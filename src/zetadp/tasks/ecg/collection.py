"""Turn the recordings of a cohort into inputs of networks, and check the cohort's patients.

The inputs are the spectrum of the beginning of one lead, and the usual beat of all leads. Each depends on one recording
alone.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from zetadp.base.tables import write_table
from zetadp.base.validation import UserError
from zetadp.tasks.ecg.readers import read_folder
from zetadp.tasks.ecg.recordings import Choice, fold_of
from zetadp.tasks.ecg.signals import AXES, SpectrumSettings, beginning, spectrum, usual_beat
from zetadp.tasks.ecg.simulated import simulated_recordings
from zetadp.tasks.items import Items, checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from zetadp.tasks.ecg.recordings import Recording

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Collection:
    """Inputs of networks from the recordings of a cohort.

    Attributes
    ----------
    table
        One row per recording: patient, record, part (train or test), scanner, fold and age.
    labels
        Position of each label in `zetadp.tasks.ecg.recordings.LABELS`, shape (recording,).
    signals
        Beginning of one lead in mV, float32, shape (recording, sample).
    beats
        Usual beats in deviations of the lead, float32, shape (recording, lead, sample).
    """

    table: pd.DataFrame
    labels: np.ndarray
    signals: np.ndarray
    beats: np.ndarray

    def items(self, values: np.ndarray) -> Items:
        """Return some values of the recordings as items."""
        return Items({"values": values, "labels": self.labels}, self.table[["record"]])


def write_collection(
    *,
    spectrum_file: Path,
    signal_file: Path,
    beats_file: Path,
    table: Path,
    settings: dict[str, Any],
    folder: str | None,
    seed: int,
    sizes: dict[str, int],
) -> None:
    """Write spectra, signals and usual beats of a cohort, and its table with one row and one hash per recording."""
    found = collect(Choice(**settings), Path(folder) if folder else None, seed, sizes)
    rows = found.signals[:, None, None]
    found.items(spectrum(rows)).write(spectrum_file, AXES, "mV")
    found.items(rows).write(signal_file, AXES, "mV")
    found.items(found.beats).write(beats_file, ("recording", "lead", "sample"), "deviations of the lead")
    hashes = [hashlib.sha256(each.tobytes()).hexdigest() for each in found.beats]
    write_table(table, found.table.assign(sha256=hashes))
    logger.info("%d recordings of %d patients", len(found.table), found.table["patient"].nunique())


def collect(choice: Choice, folder: Path | None, seed: int, sizes: Mapping[str, int]) -> Collection:
    """Read or simulate a cohort's recordings, and return the inputs of networks.

    Parameters
    ----------
    choice
        Settings that select recordings and their inputs.
    folder
        Folder of files. None simulates patients.
    seed
        Seed of simulated patients.
    sizes
        Declared numbers of training and test patients.

    Raises
    ------
    UserError
        If recordings cannot be read or have no beats, if a name occurs twice, if a patient has both labels or is in two
        folds, or if the numbers of patients differ from the declared numbers.
    """
    recordings = _simulated(choice, seed, sizes) if folder is None else _read(choice, folder)
    table, labels, signals, beats = seen(recordings, SpectrumSettings(**choice.spectrum))
    folds = table["fold"].where(table["fold"] > 0, table["patient"].map(fold_of))
    part = table["part"].where(table["part"] != "", np.where(folds == choice.fold, "test", "train"))
    table = table.assign(fold=folds, part=part)
    source = str(folder or "the simulation")
    for called, values in {"label": labels, "fold": folds}.items():
        several = pd.Series(values).groupby(table["patient"].to_numpy()).nunique()
        if (several > 1).any():
            raise UserError(f"Expected one {called} per patient in {source}, found several for {several.idxmax()}.")
    checked(table, sizes, source)
    for name in sizes:
        if len(set(labels[part == name])) < 2:
            raise UserError(f"Expected patients of both labels for cohort.{name}_patients, found only one label.")
    return Collection(table, labels, signals, beats)


def _read(choice: Choice, folder: Path) -> Iterator[tuple[Recording, str]]:
    """Yield each chosen recording of a folder. Its part is empty, because folds decide it."""
    read = read_folder(folder, choice.left_out)
    yield from ((recording, "") for recording in read if choice.form in ("", recording.form))


def _simulated(choice: Choice, seed: int, sizes: Mapping[str, int]) -> Iterator[tuple[Recording, str]]:
    """Yield each simulated recording and its part, ``train`` or ``test``."""
    if choice.left_out or choice.form:
        raise UserError(
            "Expected task.settings.left_out and task.settings.form to be empty for simulated patients, found "
            f"{choice.left_out!r} and {choice.form!r}."
        )
    # Each part is simulated separately, so that both parts have the same shares of labels.
    for part, first in (("train", 0), ("test", sizes["train"])):
        made = simulated_recordings(sizes[part], seed=seed, population=choice.population, first=first)
        yield from ((recording, part) for recording, _ in made)


def seen(
    recordings: Iterable[tuple[Recording, str]], first: SpectrumSettings
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
    """Return the table, labels, signals and beats of recordings, as in `Collection`.

    Parameters
    ----------
    recordings
        Each recording and its part.
    first
        Settings of the signals.
    """
    rows, labels, signals, beats = [], [], [], []
    for recording, part in recordings:
        signals.append(beginning(recording, first))
        beats.append(usual_beat(recording))
        labels.append(recording.label)
        rows.append((recording.patient, recording.name, part, recording.device, recording.fold, recording.age))
    table = pd.DataFrame(rows, columns=["patient", "record", "part", "scanner", "fold", "age"])
    return table, np.array(labels), np.array(signals), np.array(beats)
