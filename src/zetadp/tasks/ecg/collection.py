"""Turn the recordings of a cohort into inputs of networks, and check the cohort's patients."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from zetadp.base.validation import UserError
from zetadp.tasks.ecg.readers import read_folder
from zetadp.tasks.ecg.recordings import folds_of
from zetadp.tasks.ecg.signals import SpectrumSettings, beginning, spectrum, usual_beat
from zetadp.tasks.ecg.simulated import simulated_recordings
from zetadp.tasks.ecg.values import write_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from zetadp.tasks.ecg.recordings import Recording


@dataclass(frozen=True)
class Choice:
    """Settings that select recordings and their inputs, as in `zetadp.tasks.ecg.task.Ecg`."""

    fold: int
    form: str
    left_out: Sequence[str]
    population: str
    spectrum: Mapping[str, Any]


@dataclass(frozen=True)
class Cohort:
    """Source of the recordings, and the declared numbers of patients.

    Attributes
    ----------
    folder
        Folder of files. None simulates patients.
    seed
        Seed of simulated patients.
    train, test
        Declared numbers of training and test patients.
    """

    folder: Path | None
    seed: int
    train: int
    test: int

    def recordings(self, population: str) -> Iterator[tuple[Recording, str]]:
        """Yield each recording and its part, ``train`` or ``test``. The part is empty if folds decide it."""
        if self.folder is not None:
            yield from ((recording, "") for recording in read_folder(self.folder))
            return
        # Each part is simulated separately, so that both parts have the same shares of labels.
        for part, count in (("train", self.train), ("test", self.test)):
            first = self.train if part == "test" else 0
            made = simulated_recordings(count, seed=self.seed, population=population, first=first)
            yield from ((recording, part) for recording, _ in made)


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

    def write(self, spectra: Path, signals: Path, beats: Path) -> None:
        """Write one HDF5 file each for spectra, signals and beats. Features are computed from the beats."""
        names = self.table["record"].tolist()
        rows = self.signals[:, None, None]
        write_values(spectra, spectrum(rows), self.labels, names, "mV")
        write_values(signals, rows, self.labels, names, "mV")
        write_values(beats, self.beats, self.labels, names, "deviations of the lead")


def collect(cohort: Cohort, choice: Choice) -> Collection:
    """Read or simulate a cohort's recordings, and return the inputs of networks.

    Parameters
    ----------
    cohort
        The cohort.
    choice
        Settings that select recordings and their inputs.

    Raises
    ------
    UserError
        If recordings cannot be read or have no beats, if a name occurs twice, if a patient has both labels, or if the
        numbers of patients differ from the declared numbers.
    """
    wanted = _wanted(cohort.recordings(choice.population), choice)
    table, labels, signals, beats = seen(wanted, SpectrumSettings(**choice.spectrum))
    folds = table["fold"]
    if (folds == 0).any():
        dealt = folds_of(table["patient"].tolist(), labels.tolist())
        folds = table["patient"].map(dealt)
    part = table["part"].where(table["part"] != "", np.where(folds == choice.fold, "test", "train"))
    table = table.assign(fold=folds, part=part)
    _check(table, labels, {"train": cohort.train, "test": cohort.test})
    return Collection(table, labels, signals, beats)


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


def _wanted(recordings: Iterable[tuple[Recording, str]], choice: Choice) -> Iterator[tuple[Recording, str]]:
    """Yield the recordings that the task uses."""
    for recording, part in recordings:
        if recording.name not in choice.left_out and choice.form in ("", recording.form):
            yield recording, part


def _check(table: pd.DataFrame, labels: np.ndarray, declared: Mapping[str, int]) -> None:
    """Refuse a cohort that differs from the declared cohort."""
    twice = [name for name, count in Counter(table["record"]).items() if count > 1]
    if twice:
        raise UserError(f"Expected each recording to have its own name, found {twice[0]} twice.")
    folds_of(table["patient"].tolist(), labels.tolist())  # refuses patients with both labels
    for part, patients in declared.items():
        own = table["part"] == part
        found = table["patient"][own].nunique()
        if found != patients:
            raise UserError(
                f"Expected cohort.{part}_patients to be the number of patients in the cohort's files, {found}, found "
                f"{patients}. Declare {found}: the guarantee uses this number as a public constant."
            )
        if len(set(labels[own])) < 2:
            raise UserError(f"Expected patients of both labels for cohort.{part}_patients, found only one label.")
