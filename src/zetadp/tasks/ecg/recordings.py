"""Recordings of the heart, and what networks see of one: the spectrum of a lead's beginning, and the usual beat."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy import signal as processing

from zetadp.base.validation import UserError, name_key

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
LABELS = ("normal", "LBBB")
"""Names of the two labels; LBBB is left bundle branch block."""
FOLDS = 10
NOTHING = np.zeros((len(LEADS), 0), dtype=np.float32)
LEAD, RATE, SAMPLES = 3, 500, 512
"""Lead of the spectrum (position in `LEADS`: aVR, as we take "channel 3" of Ziller et al.),
its samples per second, and number of samples at the beginning of a recording."""
BEAT_RATE = 100
"""Sampling rate of the usual beat, in samples per second."""
BEFORE, AFTER = 25, 45
"""Samples of the usual beat before and after the middle of the QRS complex."""
BEAT = BEFORE + AFTER
PASS = (0.5, 40.0)
"""Passband of the filter for the usual beat, in Hz."""


@dataclass(frozen=True)
class Recording:
    """One recording with twelve leads.

    Attributes
    ----------
    name
        Name of the recording, unique in its cohort.
    patient
        Identifier of the patient. A patient may have several recordings.
    signal
        float32, shape (lead, sample), in the order of `LEADS`, in millivolts.
    rate
        Samples per second.
    label
        Position in `LABELS`.
    fold
        Fold from 1 to 10, the same for all recordings of a patient. 0 if the source has no folds.
    age
        Age in years; NaN if unknown.
    device
        Name of the recording device; empty if unknown.
    form
        How the recording was processed before publication; empty if unknown.
    """

    name: str
    patient: str
    signal: np.ndarray
    rate: float
    label: int
    fold: int = 0
    age: float = float("nan")
    device: str = ""
    form: str = ""


def fold_of(patient: str) -> int:
    """Return the fold of a patient, from 1 to 10. It depends on the patient's name alone, never on other patients."""
    digest = hashlib.sha256(f"ecg fold {name_key(patient)}".encode()).digest()
    return 1 + int.from_bytes(digest[:8], "big") % FOLDS


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
