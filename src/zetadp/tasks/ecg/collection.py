"""Turn the recordings of a cohort into inputs of networks, and check the cohort's patients.

The inputs are the spectrum of the beginning of one lead, and the usual beat of all leads. Each depends on one recording
alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import signal as processing

from zetadp.base.storage import Items
from zetadp.base.tables import write_cohort
from zetadp.base.validation import UserError
from zetadp.tasks.ecg.recordings import FOLDS, fold_of, read_folder
from zetadp.tasks.ecg.simulated import simulated_recordings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from zetadp.tasks.ecg.recordings import Recording

AXES = ("recording", "channel", "row", "value")
"""Axes of the inputs of networks."""
LEAD, RATE, SAMPLES = 3, 500, 512
"""Lead of the spectrum (position in `zetadp.tasks.ecg.recordings.LEADS`: aVR, as we take "channel 3" of Ziller et al.),
its samples per second, and number of samples at the beginning of a recording."""
BEAT_RATE = 100
"""Sampling rate of the usual beat, in samples per second."""
BEFORE, AFTER = 25, 45
"""Samples of the usual beat before and after the middle of the QRS complex."""
BEAT = BEFORE + AFTER
PASS = (0.5, 40.0)
"""Passband of the filter for the usual beat, in Hz."""


def beginning(recording: Recording) -> np.ndarray:
    """Return the first samples of one lead, float32, shape (sample,), padded with zeros if the recording is shorter."""
    lead = resampled(recording.signal[LEAD], recording.rate, RATE)[:SAMPLES]
    found = np.zeros(SAMPLES, dtype=np.float32)
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
            f"{leads.shape[1] / BEAT_RATE:.1f} s. Remove it from the folder's table."
        )
    leads = processing.sosfiltfilt(processing.butter(2, PASS, "bandpass", fs=BEAT_RATE, output="sos"), leads, axis=1)
    leads = (leads - leads.mean(axis=1, keepdims=True)) / leads.std(axis=1, keepdims=True).clip(1e-6)
    middles = beats(leads)
    middles = middles[(middles >= BEFORE) & (middles + AFTER <= leads.shape[1])]
    if not len(middles):
        raise UserError(f"Expected beats in recording {recording.name}, found none. Remove it from the table.")
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


@dataclass(frozen=True)
class Collection:
    """Inputs of networks from the recordings of a cohort.

    Attributes
    ----------
    table
        One row per recording: patient, record, part (train or test), scanner, fold and age.
    labels
        Position of each label in `zetadp.tasks.ecg.recordings.LABELS`, float32, shape (recording,).
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
    def of(cls, recordings: Iterable[tuple[Recording, str]]) -> Collection:
        """Return the inputs from recordings, each with its part."""
        rows, labels, signals, beats = [], [], [], []
        for recording, part in recordings:
            signals.append(beginning(recording))
            beats.append(usual_beat(recording))
            labels.append(recording.label)
            rows.append((recording.patient, recording.name, part, recording.device, recording.fold, recording.age))
        table = pd.DataFrame(rows, columns=["patient", "record", "part", "scanner", "fold", "age"])
        return cls(table, np.array(labels, dtype=np.float32), np.array(signals), np.array(beats))

    def items(self, values: np.ndarray) -> Items:
        """Return some values of the recordings as items."""
        return Items({"values": values, "labels": self.labels}, self.table[["record"]])


def write_collection(
    *,
    spectrum_file: Path,
    signal_file: Path,
    beats_file: Path,
    table: Path,
    folder: str | None,
    seed: int,
    sizes: dict[str, int],
) -> None:
    """Write spectra, signals and usual beats of a cohort, and its table with one row and one hash per recording.

    Parameters
    ----------
    spectrum_file, signal_file, beats_file, table
        Files that are written.
    folder
        Folder of recordings, or None for a simulation. The patients of the last of ten folds test. Where the files have
        no folds, a patient's fold follows from the name.
    seed
        Seed of the simulation.
    sizes
        Declared numbers of training and test patients.

    Raises
    ------
    UserError
        If recordings cannot be read or have no beats, if a name occurs twice, if a patient has both labels or is in two
        folds, or if the numbers of patients differ from the declared numbers.
    """
    found = Collection.of(_simulated(seed, sizes) if folder is None else _divided(read_folder(Path(folder))))
    source = folder or "the simulation"
    _check(found, source, sizes)
    hashes = [hashlib.sha256(each.tobytes()).hexdigest() for each in found.beats]
    write_cohort(table, found.table.assign(sha256=hashes), sizes, source)
    rows = found.signals[:, None, None]
    found.items(spectrum(rows)).write(spectrum_file, AXES, "mV")
    found.items(rows).write(signal_file, AXES, "mV")
    found.items(found.beats).write(beats_file, ("recording", "lead", "sample"), "deviations of the lead")


def _simulated(seed: int, sizes: Mapping[str, int]) -> Iterator[tuple[Recording, str]]:
    """Yield simulated recordings. Each part is simulated separately, so that both have the same shares of labels."""
    for part, number in (("train", 0), ("test", sizes["train"])):
        for recording, _ in simulated_recordings(sizes[part], seed=seed, population="varied", first=number):
            yield recording, part


def _divided(recordings: Iterable[Recording]) -> Iterator[tuple[Recording, str]]:
    """Yield recordings with their folds and parts."""
    for each in recordings:
        own = each.fold or fold_of(each.patient)
        yield replace(each, fold=own), "test" if own == FOLDS else "train"


def _check(found: Collection, source: str, sizes: Mapping[str, int]) -> None:
    table = found.table
    for called, values in {"label": found.labels, "fold": table["fold"]}.items():
        several = pd.Series(values).groupby(table["patient"].to_numpy()).nunique()
        if (several > 1).any():
            raise UserError(f"Expected one {called} per patient in {source}, found several for {several.idxmax()}.")
    for name in sizes:
        if len(set(found.labels[table["part"] == name])) < 2:
            raise UserError(f"Expected patients of both labels for cohort.{name}_patients, found only one label.")
