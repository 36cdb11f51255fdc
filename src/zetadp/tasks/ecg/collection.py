"""Turn the recordings of a cohort into inputs of networks, and check the cohort's patients.

The inputs are the spectrum of the beginning of one lead, and the usual beat of all leads. Each depends on one recording
alone.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import signal as processing

from zetadp.base.tables import write_table
from zetadp.base.validation import UserError, in_range, positive
from zetadp.tasks.ecg.recordings import LEADS, fold_of, read_folder
from zetadp.tasks.ecg.simulated import simulated_recordings
from zetadp.tasks.ecg.task import Ecg
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
    found = collect(Ecg(**settings), Path(folder) if folder else None, seed, sizes)
    rows = found.signals[:, None, None]
    found.items(spectrum(rows)).write(spectrum_file, AXES, "mV")
    found.items(rows).write(signal_file, AXES, "mV")
    found.items(found.beats).write(beats_file, ("recording", "lead", "sample"), "deviations of the lead")
    hashes = [hashlib.sha256(each.tobytes()).hexdigest() for each in found.beats]
    write_table(table, found.table.assign(sha256=hashes))
    logger.info("%d recordings of %d patients", len(found.table), found.table["patient"].nunique())


def collect(task: Ecg, folder: Path | None, seed: int, sizes: Mapping[str, int]) -> Collection:
    """Read or simulate a cohort's recordings, and return the inputs of networks.

    Parameters
    ----------
    task
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
    recordings = _simulated(task, seed, sizes) if folder is None else _read(task, folder)
    table, labels, signals, beats = seen(recordings, SpectrumSettings(**task.spectrum))
    folds = table["fold"].where(table["fold"] > 0, table["patient"].map(fold_of))
    part = table["part"].where(table["part"] != "", np.where(folds == task.fold, "test", "train"))
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


def _read(task: Ecg, folder: Path) -> Iterator[tuple[Recording, str]]:
    """Yield each chosen recording of a folder. Its part is empty, because folds decide it."""
    read = read_folder(folder, task.left_out)
    yield from ((recording, "") for recording in read if task.form in ("", recording.form))


def _simulated(task: Ecg, seed: int, sizes: Mapping[str, int]) -> Iterator[tuple[Recording, str]]:
    """Yield each simulated recording and its part, ``train`` or ``test``."""
    if task.left_out or task.form:
        raise UserError(
            "Expected task.settings.left_out and task.settings.form to be empty for simulated patients, found "
            f"{task.left_out!r} and {task.form!r}."
        )
    # Each part is simulated separately, so that both parts have the same shares of labels.
    for part, first in (("train", 0), ("test", sizes["train"])):
        made = simulated_recordings(sizes[part], seed=seed, population=task.population, first=first)
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


AXES = ("recording", "channel", "row", "value")
"""Axes of the inputs of networks."""
BEAT_RATE = 100
"""Sampling rate of the usual beat, in samples per second."""
BEFORE, AFTER = 25, 45
"""Samples of the usual beat before and after the middle of the QRS complex."""
BEAT = BEFORE + AFTER
PASS = (0.5, 40.0)
"""Passband of the filter for the usual beat, in Hz."""


@dataclass(frozen=True)
class SpectrumSettings:
    """Settings of the input for the network of Ziller et al.

    Attributes
    ----------
    lead
        Position of the lead in `LEADS`, from zero. The paper's "channel 3" is taken as position 3, aVR.
    rate
        Samples per second. Recordings with another rate are resampled.
    samples
        Number of samples at the beginning of the recording that are transformed.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    lead: int = 3
    rate: int = 500
    samples: int = 512

    def __post_init__(self) -> None:
        """Check every setting."""
        in_range(0, len(LEADS) - 1, lead=self.lead)
        positive(rate=self.rate, samples=self.samples)


def beginning(recording: Recording, settings: SpectrumSettings) -> np.ndarray:
    """Return the first samples of one lead, float32, shape (sample,), padded with zeros if the recording is shorter."""
    lead = resampled(recording.signal[settings.lead], recording.rate, settings.rate)[: settings.samples]
    found = np.zeros(settings.samples, dtype=np.float32)
    found[: len(lead)] = lead
    return found


def spectrum(samples: np.ndarray) -> np.ndarray:
    """Return the unitary discrete Fourier transform along the last axis, complex64.

    The transform is unitary: unscaled sums of 512 samples would saturate a network whose output is a magnitude.
    """
    return np.asarray(np.fft.fft(samples, norm="ortho"), dtype=np.complex64)


def resampled(values: np.ndarray, rate: float, wanted: float) -> np.ndarray:
    """Resample signals along the last axis.

    Parameters
    ----------
    values
        Signals, shape (..., sample).
    rate, wanted
        Present and wanted number of samples per second.
    """
    if rate == wanted:
        return values
    ratio = Fraction(wanted / rate).limit_denominator(1000)
    return np.asarray(processing.resample_poly(values, ratio.numerator, ratio.denominator, axis=-1, padtype="line"))


def usual_beat(recording: Recording) -> np.ndarray:
    """Return the median beat of each lead, in units of the lead's standard deviation, float32, shape (lead, `BEAT`).

    Raises
    ------
    UserError
        If the recording is too short, has values that are not finite, or has no beats.
    """
    leads = resampled(recording.signal.astype(np.float64), recording.rate, BEAT_RATE)
    if leads.shape[1] < 2 * BEAT or not np.isfinite(leads).all():
        raise UserError(
            f"Expected two seconds or more of finite values in recording {recording.name}, found "
            f"{leads.shape[1] / BEAT_RATE:.1f} s. Leave it out."
        )
    leads = processing.sosfiltfilt(processing.butter(2, PASS, "bandpass", fs=BEAT_RATE, output="sos"), leads, axis=1)
    leads = (leads - leads.mean(axis=1, keepdims=True)) / leads.std(axis=1, keepdims=True).clip(1e-6)
    middles = beats(leads)
    middles = middles[(middles >= BEFORE) & (middles + AFTER <= leads.shape[1])]
    if not len(middles):
        raise UserError(f"Expected beats in recording {recording.name}, found none. Leave it out.")
    found = np.median([leads[:, at - BEFORE : at + AFTER] for at in middles], axis=0)
    # The zero level is the mean before the beat.
    return np.asarray(found - found[:, :5].mean(axis=1, keepdims=True), dtype=np.float32)


def beats(leads: np.ndarray) -> np.ndarray:
    """Return the positions of the QRS complexes.

    The middle of a QRS complex is a maximum of the speed of all leads together, smoothed over 120 ms.

    Parameters
    ----------
    leads
        Filtered leads at `BEAT_RATE`, shape (lead, sample).

    Returns
    -------
    Samples of the middles, in rising order, shape (beat,).
    """
    speed = np.sqrt(np.square(np.gradient(leads, axis=1)).sum(axis=0))
    window = np.hanning(15)
    smooth = np.convolve(speed, window / window.sum(), mode="same")
    # A quantile, because the maximum may belong to a single ectopic beat.
    height = 0.5 * np.quantile(smooth, 0.95)
    found, _ = processing.find_peaks(smooth, height=height, distance=round(0.3 * BEAT_RATE))
    return np.asarray(found)
