"""Turn the recordings of a cohort into inputs of networks, and check the cohort's patients.

The inputs are the spectrum of the beginning of one lead, and the usual beat of all leads. Each depends on one recording
alone.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from zetadp.base.storage import Items
from zetadp.base.tables import checked, write_table
from zetadp.base.validation import UserError
from zetadp.tasks.ecg.readers import read_folder
from zetadp.tasks.ecg.recordings import fold_of
from zetadp.tasks.ecg.signals import AXES, SpectrumSettings, beginning, spectrum, usual_beat
from zetadp.tasks.ecg.simulated import simulated_recordings

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

    @classmethod
    def of(cls, recordings: Iterable[tuple[Recording, str]], first: SpectrumSettings) -> Collection:
        """Return the inputs from recordings, each with its part, and the settings of the signals."""
        rows, labels, signals, beats = [], [], [], []
        for recording, part in recordings:
            signals.append(beginning(recording, first))
            beats.append(usual_beat(recording))
            labels.append(recording.label)
            rows.append((recording.patient, recording.name, part, recording.device, recording.fold, recording.age))
        table = pd.DataFrame(rows, columns=["patient", "record", "part", "scanner", "fold", "age"])
        return cls(table, np.array(labels), np.array(signals), np.array(beats))

    def items(self, values: np.ndarray) -> Items:
        """Return some values of the recordings as items."""
        return Items({"values": values, "labels": self.labels}, self.table[["record"]])


def write_collection(
    *,
    spectrum_file: Path,
    signal_file: Path,
    beats_file: Path,
    table: Path,
    fold: int,
    population: str,
    first: dict[str, Any],
    folder: str | None,
    seed: int,
    sizes: dict[str, int],
) -> None:
    """Write spectra, signals and usual beats of a cohort, and its table with one row and one hash per recording.

    Parameters
    ----------
    spectrum_file, signal_file, beats_file, table
        Files that are written.
    fold
        The fold of test patients of a folder. Where the files have no folds, a patient's fold follows from the name.
    population, seed
        What is simulated without a folder.
    first
        Settings of the signals (`SpectrumSettings`).
    folder
        Folder of recordings, or None for a simulation.
    sizes
        Declared numbers of training and test patients.

    Raises
    ------
    UserError
        If recordings cannot be read or have no beats, if a name occurs twice, if a patient has both labels or is in two
        folds, or if the numbers of patients differ from the declared numbers.
    """
    parts = _simulated(population, seed, sizes) if folder is None else _divided(read_folder(Path(folder)), fold)
    found = Collection.of(parts, SpectrumSettings(**first))
    _check(found, folder or "the simulation", sizes)
    rows = found.signals[:, None, None]
    found.items(spectrum(rows)).write(spectrum_file, AXES, "mV")
    found.items(rows).write(signal_file, AXES, "mV")
    found.items(found.beats).write(beats_file, ("recording", "lead", "sample"), "deviations of the lead")
    hashes = [hashlib.sha256(each.tobytes()).hexdigest() for each in found.beats]
    write_table(table, found.table.assign(sha256=hashes))
    logger.info("%d recordings of %d patients", len(found.table), found.table["patient"].nunique())


def _simulated(population: str, seed: int, sizes: Mapping[str, int]) -> Iterator[tuple[Recording, str]]:
    """Yield simulated recordings. Each part is simulated separately, so that both have the same shares of labels."""
    for part, number in (("train", 0), ("test", sizes["train"])):
        for recording, _ in simulated_recordings(sizes[part], seed=seed, population=population, first=number):
            yield recording, part


def _divided(recordings: Iterable[Recording], fold: int) -> Iterator[tuple[Recording, str]]:
    """Yield recordings with their folds and parts."""
    for each in recordings:
        own = each.fold or fold_of(each.patient)
        yield replace(each, fold=own), "test" if own == fold else "train"


def _check(found: Collection, source: str, sizes: Mapping[str, int]) -> None:
    table = found.table
    for called, values in {"label": found.labels, "fold": table["fold"]}.items():
        several = pd.Series(values).groupby(table["patient"].to_numpy()).nunique()
        if (several > 1).any():
            raise UserError(f"Expected one {called} per patient in {source}, found several for {several.idxmax()}.")
    checked(table, sizes, source)
    for name in sizes:
        if len(set(found.labels[table["part"] == name])) < 2:
            raise UserError(f"Expected patients of both labels for cohort.{name}_patients, found only one label.")
