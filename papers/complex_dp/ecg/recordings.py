"""Recordings of the heart, and what networks see of one: the spectrum of a lead's beginning, and the usual beat."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy import signal as processing

from zetadp.base.names import name_key
from zetadp.base.validation import UserError

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
LIMBS = {2: (-1.0, 1.0), 3: (-0.5, -0.5), 4: (1.0, -0.5), 5: (-0.5, 1.0)}
"""Weights of the leads I and II in III, aVR, aVL and aVF (Einthoven's and Goldberger's equations), by position."""
DEVIATION = 0.2
"""Largest deviation of a limb lead from its equation, in standard deviations of the lead."""
ROUNDING = 0.02
"""Deviation in mV that rounding of a small lead can explain."""
SLOWEST = 25.0
"""Fewest heartbeats per minute of one recording."""
USUAL_RATES = (42.0, 120.0)
"""Least and most heartbeats per minute in the median of `MEDIAN_FROM` recordings or more. Adults have 60 to 90. A rate
of sampling that is wrong by a factor of two or more leads out of these bounds, in single recordings not always.
"""
MEDIAN_FROM = 5
"""Fewest recordings whose median is compared with `USUAL_RATES`."""


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
    padded = np.zeros(SAMPLES, dtype=np.float32)
    padded[: len(lead)] = lead
    return padded


def spectrum(samples: np.ndarray) -> np.ndarray:
    """Return the unitary discrete Fourier transform along the last axis, complex64.

    The transform is unitary: unscaled sums of 512 samples would saturate a network whose output is a magnitude.
    """
    return np.asarray(np.fft.fft(samples, norm="ortho"), dtype=np.complex64)


def resampled(values: np.ndarray, rate: float, new_rate: float) -> np.ndarray:
    """Resample signals along the last axis.

    Parameters
    ----------
    values
        Signals, shape (..., sample).
    rate, new_rate
        Present and new number of samples per second.
    """
    if rate == new_rate:
        return values
    ratio = Fraction(new_rate / rate).limit_denominator(1000)
    return np.asarray(processing.resample_poly(values, ratio.numerator, ratio.denominator, axis=-1, padtype="line"))


def usual_beat(recording: Recording) -> np.ndarray:
    """Return the median beat of each lead, in units of the lead's standard deviation, float32, shape (lead, `BEAT`).

    Raises
    ------
    UserError
        If the recording is too short, has values that are not finite, or has no beats.
    """
    leads = _filtered(recording.signal, recording.rate)
    if leads.shape[1] < 2 * BEAT or not np.isfinite(leads).all():
        raise UserError(
            f"Expected two seconds or more of finite values in recording {recording.name}, found "
            f"{leads.shape[1] / BEAT_RATE:.1f} s. Remove it from the folder's table."
        )
    middles = beats(leads)
    middles = middles[(middles >= BEFORE) & (middles + AFTER <= leads.shape[1])]
    if not len(middles):
        raise UserError(f"Expected beats in recording {recording.name}, found none. Remove it from the table.")
    beat = np.median([leads[:, at - BEFORE : at + AFTER] for at in middles], axis=0)
    # The zero level is the mean before the beat.
    return np.asarray(beat - beat[:, :5].mean(axis=1, keepdims=True), dtype=np.float32)


def _filtered(signal: np.ndarray, rate: float) -> np.ndarray:
    """Return leads at `BEAT_RATE` within `PASS`, of zero mean and unit variance; a short recording stays unfiltered."""
    leads = resampled(signal.astype(np.float64), rate, BEAT_RATE)
    if leads.shape[1] < 2 * BEAT:
        return leads
    leads = processing.sosfiltfilt(processing.butter(2, PASS, "bandpass", fs=BEAT_RATE, output="sos"), leads, axis=1)
    return np.asarray((leads - leads.mean(axis=1, keepdims=True)) / leads.std(axis=1, keepdims=True).clip(1e-6))


def heart_rate(signal: np.ndarray, rate: float) -> float:
    """Return the heartbeats per minute: NaN if the recording is too short, 0 if fewer than two beats are found.

    Parameters
    ----------
    signal
        Shape (lead, sample), finite.
    rate
        Samples per second.
    """
    leads = _filtered(signal, rate)
    if leads.shape[1] < 2 * BEAT:
        return float("nan")
    middles = beats(leads)
    return float(60 * BEAT_RATE / np.median(np.diff(middles))) if len(middles) > 1 else 0.0


def deviating_leads(signal: np.ndarray) -> list[str]:
    """Return the limb leads that break Einthoven's and Goldberger's equations.

    Of the six limb leads two are measured. The others follow: III = II - I, aVR = -(I + II) / 2, aVL = I - II / 2 and
    aVF = II - I / 2. Leads in another order break these equations, and so does a lead in another unit. Where every lead
    was divided by its standard deviation, they hold up to the scales of the leads, and only directions are compared.

    Parameters
    ----------
    signal
        Shape (lead, sample), in the order of `LEADS`.
    """
    leads = signal.astype(np.float64)
    leads = leads - leads.mean(axis=1, keepdims=True)
    spreads = leads.std(axis=1)
    standardised = bool(spreads.min() > 0.99 * spreads.max())
    ratio = 1.0
    if standardised:
        # aVR is the only limb lead that adds I and II.
        of_one, of_two = np.linalg.lstsq(leads[:2].T, leads[3], rcond=None)[0]
        ratio = max(of_one / of_two, 0.0)
    wrong = []
    for position, (of_one, of_two) in LIMBS.items():
        expected = of_one * ratio * leads[0] + of_two * leads[1]
        if standardised:
            expected *= spreads[position] / max(expected.std(), 1e-9)
        if (leads[position] - expected).std() > max(DEVIATION * spreads[position], 0 if standardised else ROUNDING):
            wrong.append(LEADS[position])
    return wrong


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
    peaks, _ = processing.find_peaks(smooth, height=height, distance=round(0.3 * BEAT_RATE))
    return np.asarray(peaks)
