"""Turn the recordings of a cohort into inputs of networks, and check the cohort's patients."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from zetadp.base.tables import write_table
from zetadp.base.validation import UserError, check_distinct
from zetadp.tasks.ecg.readers import read_folder
from zetadp.tasks.ecg.recordings import fold_of
from zetadp.tasks.ecg.signals import AXES, SpectrumSettings, beginning, spectrum, usual_beat
from zetadp.tasks.ecg.simulated import simulated_recordings
from zetadp.tasks.items import Items

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from zetadp.tasks.ecg.recordings import Recording

logger = logging.getLogger(__name__)


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

    def recordings(self, choice: Choice) -> Iterator[tuple[Recording, str]]:
        """Yield each chosen recording and its part, ``train`` or ``test``. The part is empty if folds decide it."""
        if self.folder is not None:
            read = read_folder(self.folder, choice.left_out)
            yield from ((recording, "") for recording in read if choice.form in ("", recording.form))
            return
        if choice.left_out or choice.form:
            raise UserError(
                "Expected task.settings.left_out and task.settings.form to be empty for simulated patients, found "
                f"{choice.left_out!r} and {choice.form!r}."
            )
        # Each part is simulated separately, so that both parts have the same shares of labels.
        for part, count in (("train", self.train), ("test", self.test)):
            first = self.train if part == "test" else 0
            made = simulated_recordings(count, seed=self.seed, population=choice.population, first=first)
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
    found = collect(Cohort(Path(folder) if folder else None, seed, sizes["train"], sizes["test"]), Choice(**settings))
    rows = found.signals[:, None, None]
    found.items(spectrum(rows)).write(spectrum_file, AXES, "mV")
    found.items(rows).write(signal_file, AXES, "mV")
    found.items(found.beats).write(beats_file, ("recording", "lead", "sample"), "deviations of the lead")
    hashes = [hashlib.sha256(each.tobytes()).hexdigest() for each in found.beats]
    write_table(table, found.table.assign(sha256=hashes))
    logger.info("%d recordings of %d patients", len(found.table), found.table["patient"].nunique())


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
        If recordings cannot be read or have no beats, if a name occurs twice, if a patient has both labels or is in two
        folds, or if the numbers of patients differ from the declared numbers.
    """
    table, labels, signals, beats = seen(cohort.recordings(choice), SpectrumSettings(**choice.spectrum))
    folds = table["fold"].where(table["fold"] > 0, table["patient"].map(fold_of))
    part = table["part"].where(table["part"] != "", np.where(folds == choice.fold, "test", "train"))
    table = table.assign(fold=folds, part=part)
    _check(table, labels, {"train": cohort.train, "test": cohort.test}, str(cohort.folder or "the simulation"))
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


def _check(table: pd.DataFrame, labels: np.ndarray, declared: Mapping[str, int], source: str) -> None:
    """Refuse a cohort that differs from the declared cohort, or whose patients cannot be told apart."""
    twice = [name for name, count in Counter(table["record"]).items() if count > 1]
    if twice:
        raise UserError(f"Expected each recording to have its own name, found {twice[0]} twice.")
    check_distinct(table["patient"], source)
    for called, values in {"label": labels, "fold": table["fold"]}.items():
        several = pd.Series(values).groupby(table["patient"].to_numpy()).nunique()
        if (several > 1).any():
            raise UserError(f"Expected one {called} per patient in {source}, found several for {several.idxmax()}.")
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
