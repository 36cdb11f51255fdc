"""Simulated patients: normal beats, and beats with left bundle branch block (LBBB), in twelve leads.

The heart is the dipole of Sameni et al. 2007 (doi:10.1155/2007/43407). It extends the dynamical model of McSharry et
al. 2003 (ECGSYN, doi:10.1109/TBME.2003.808805) to three dimensions: each wave is a Gaussian in time, at a fixed delay
from its beat. This is the closed solution of the model on its limit cycle, so no integration is needed. Widths are
times, not phases, so a slow heart does not widen the QRS complex. The leads are those of Dower et al. 1980
(doi:10.1016/S0022-0736(80)80012-1), varied by patient.

The signs of LBBB follow Surawicz et al. 2009 (doi:10.1161/CIRCULATIONAHA.108.191095) and Strauss et al. 2011
(doi:10.1016/j.amjcard.2010.11.010). The QRS complex lasts 120 ms or more and has a notch or slur in the middle. It
points to the left from the beginning (no q wave in lateral leads), then to the back. ST segment and T wave point
against the QRS complex. Amplitudes, widths and their variation are our choice. Nothing was fitted to recordings of
patients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from papers.complex_dp.ecg.recordings import FOLDS, Recording
from zetadp.base.randomness import Purpose, stream

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 10.0
POPULATIONS = {"standard": 1.0, "varied": 2.2}
"""Variation of patients, torsos and noise. Public features are learnt from the first population, cohorts are varied."""
PUBLIC, PRIVATE = 0, 1
"""Numbers that separate random streams, so that no public patient is ever in a cohort."""

# Dower's matrix: leads I, II and V1 to V6 (rows) for a dipole with components left, down and back (columns), in mV.
DOWER = np.array(
    [
        [0.632, -0.235, 0.059],
        [0.235, 1.066, -0.132],
        [-0.515, 0.157, -0.917],
        [0.044, 0.164, -1.387],
        [0.882, 0.098, -1.277],
        [1.213, 0.127, -0.601],
        [1.125, 0.127, -0.086],
        [0.831, 0.076, 0.230],
    ]
)
# Waves of a QRS complex of usual length: time (s), width (standard deviation in s), and dipole (left, down, back).
NORMAL_QRS = np.array(
    [
        [-0.024, 0.009, -0.12, -0.05, -0.25],
        [0.000, 0.012, 1.00, 0.75, 0.25],
        [0.022, 0.011, -0.10, -0.15, 0.55],
    ]
)
LBBB_QRS = np.array(
    [
        [-0.045, 0.014, 0.25, 0.15, -0.15],
        [-0.020, 0.018, 0.65, 0.30, 0.55],
        [0.030, 0.018, 0.75, 0.00, 0.75],
        [0.060, 0.014, 0.20, -0.15, 0.35],
    ]
)
T_WAVES = 2
"""Number of parts of a T wave."""
EDGE = 2.3
"""Distance from the middle of a wave to its end, in standard deviations."""


@dataclass(frozen=True)
class SimulatedPatient:
    """A simulated patient.

    Attributes
    ----------
    label
        1 with LBBB.
    qrs
        Waves of the QRS complex, shape (wave, 5): time, width and dipole, as in `NORMAL_QRS`.
    others
        The `T_WAVES` parts of the T wave, then the P wave unless the atria fibrillate, in the same form.
    torso
        Matrix from the dipole to leads I, II and V1 to V6, shape (8, 3).
    beat
        Mean time between two beats in seconds.
    fibrillating
        Whether the atria fibrillate. There is then no P wave and no regular rhythm.
    noise
        Size of the noise from muscles and mains, and of the drift, in mV.
    """

    label: int
    qrs: np.ndarray
    others: np.ndarray
    torso: np.ndarray
    beat: float
    fibrillating: bool
    noise: tuple[float, float, float]

    @property
    def qrs_seconds(self) -> float:
        """Length of the QRS complex in seconds, from the beginning of the first wave to the end of the last."""
        times, widths = self.qrs[:, 0], self.qrs[:, 1]
        return float((times + EDGE * widths).max() - (times - EDGE * widths).min())


def draw_patient(label: int, population: str, random: np.random.Generator) -> SimulatedPatient:
    """Draw a patient of a population in `POPULATIONS`."""
    spread = POPULATIONS[population]
    qrs = (LBBB_QRS if label else NORMAL_QRS).copy()
    stretch = random.uniform(0.72, 1.1) if label else np.clip(random.normal(0.98, 0.13), 0.7, 1.22)
    qrs[:, :2] *= stretch
    strength = np.abs(qrs[:, 2:]).max()
    qrs[:, 2:] *= np.exp(random.normal(0, 0.2 * spread, (len(qrs), 1)))
    qrs[:, 2:] += random.normal(0, 0.08 * spread * strength, (len(qrs), 3))
    beat = 60 / np.clip(random.normal(75, 14), 48, 125)
    others = [_t_wave(label, qrs, beat, spread, random)]
    fibrillating = bool(random.random() < 0.1)
    if not fibrillating:
        to = np.array([0.06, 0.10, -0.02]) * np.exp(random.normal(0, 0.3 * spread)) + random.normal(0, 0.015, 3)
        others.append(np.array([[qrs[0, 0] - random.normal(0.13, 0.02), random.uniform(0.015, 0.025), *to]]))
    # LBBB turns the axis to the left in the frontal plane.
    angles = random.normal([-20.0 if label else 0.0, 0, 0], [25 * spread, 14 * spread, 12 * spread])
    turn = _rotation(*np.deg2rad(angles)) * np.exp(random.normal(0, 0.3))
    torso = (DOWER + random.normal(0, 0.12 * spread, DOWER.shape)) @ turn
    noise = (0.01 * np.exp(random.normal(0, 0.5 * spread)), random.uniform(0, 0.02), random.uniform(0.02, 0.3))
    return SimulatedPatient(label, qrs, np.concatenate(others), torso, float(beat), fibrillating, noise)


def _t_wave(label: int, qrs: np.ndarray, beat: float, spread: float, random: np.random.Generator) -> np.ndarray:
    """Return the two parts of a T wave, the later part steeper. With LBBB it points against the QRS complex."""
    if label:
        mean = (qrs[:, 1:2] * qrs[:, 2:]).sum(axis=0)
        to = -mean / np.linalg.norm(mean) * random.uniform(0.15, 0.5)
    else:
        to = np.array([0.25, 0.2, -0.15]) * np.exp(random.normal(0, 0.4 * spread))
    to = to + random.normal(0, 0.05 * spread, 3)
    # The QT time grows with the square root of the time between beats (Bazett). A longer QRS complex delays the T wave.
    when = qrs[-1, 0] + random.normal(0.25, 0.02) * beat**0.5
    parts = np.array([[when - 0.04, 0.055, *(0.6 * to)], [when, 0.035, *(0.7 * to)]])
    parts[:, 1] *= beat**0.5
    return parts


def _rotation(front: float, across: float, side: float) -> np.ndarray:
    """Return a rotation in the frontal, the horizontal and the sagittal plane."""
    c, s = np.cos([front, across, side]), np.sin([front, across, side])
    frontal = np.array([[c[0], -s[0], 0], [s[0], c[0], 0], [0, 0, 1]])
    horizontal = np.array([[c[1], 0, -s[1]], [0, 1, 0], [s[1], 0, c[1]]])
    sagittal = np.array([[1, 0, 0], [0, c[2], -s[2]], [0, s[2], c[2]]])
    turned: np.ndarray = frontal @ horizontal @ sagittal
    return turned


def record(patient: SimulatedPatient, random: np.random.Generator, rate: float = 500.0) -> np.ndarray:
    """Simulate a recording of ten seconds.

    Parameters
    ----------
    patient
        The patient.
    random
        Generator of rhythm and noise.
    rate
        Samples per second.

    Returns
    -------
    Signal in mV, float32, shape (lead, sample).
    """
    time = np.arange(round(SECONDS * rate)) / rate
    count = int(2 * SECONDS / patient.beat) + 4
    if patient.fibrillating:
        lengths = patient.beat * random.gamma(25, 1 / 25, count).clip(0.6, 1.6)
    else:
        breath = 0.03 * np.sin(0.25 * 2 * np.pi * patient.beat * np.arange(count) + random.uniform(0, 2 * np.pi))
        lengths = patient.beat * (1 + breath + random.normal(0, 0.015, count))
    beats = np.cumsum(lengths) - random.uniform(1, 2) * patient.beat
    beats = beats[beats < SECONDS + 1]
    waves = np.concatenate((patient.qrs, patient.others))
    dipole = _waves(time, beats, waves)
    if random.random() < 0.08:
        dipole += _ectopic(time, beats, random)
    eight = patient.torso @ dipole
    if patient.fibrillating:
        flutter = np.sin(2 * np.pi * random.uniform(4, 8) * time + 2 * np.sin(2 * np.pi * 0.5 * time))
        eight += random.normal(0, 0.04, (8, 1)) * flutter
    return twelve(eight + _noise(patient.noise, time, random)).astype(np.float32)


def _waves(time: np.ndarray, beats: np.ndarray, waves: np.ndarray) -> np.ndarray:
    """Return the dipole of some waves around some beats, shape (3, sample)."""
    dipole = np.zeros((3, len(time)))
    rate = 1 / (time[1] - time[0])
    for when, width, *to in waves:
        # A wave is negligible beyond five widths from its middle.
        reach = np.arange(-int(5 * width * rate), int(5 * width * rate) + 2)
        for beat in beats:
            samples = int((beat + when) * rate) + reach
            samples = samples[(samples >= 0) & (samples < len(time))]
            bump = np.exp(-0.5 * ((time[samples] - beat - when) / width) ** 2)
            dipole[:, samples] += np.outer(to, bump)
    return dipole


def _ectopic(time: np.ndarray, beats: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the dipole of one ectopic beat: broad, and at a random time with a random direction."""
    middle = beats[(beats > 1) & (beats < SECONDS - 1)]
    at = random.choice(middle) + random.uniform(0.45, 0.6)
    to = random.normal(0, 0.8, 3)
    waves = np.array([[-0.02, 0.022, *to], [0.03, 0.025, *(0.7 * to)], [0.3, 0.06, *(-0.3 * to)]])
    return _waves(time, np.array([at]), waves)


def _noise(sizes: tuple[float, float, float], time: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return noise from muscles and mains, and drift, in eight leads, shape (8, sample)."""
    muscles, mains, drift = sizes
    noise = muscles * random.standard_normal((8, len(time)))
    noise += mains * random.uniform(0, 1, (8, 1)) * np.sin(2 * np.pi * 50 * time + random.uniform(0, 2 * np.pi))
    for frequency in random.uniform(0.05, 0.5, 3):
        noise += random.normal(0, drift, (8, 1)) * np.sin(2 * np.pi * frequency * time + random.uniform(0, 2 * np.pi))
    return noise


def twelve(eight: np.ndarray) -> np.ndarray:
    """Compute twelve leads from I, II and V1 to V6, shape (8, sample), by Einthoven's and Goldberger's equations."""
    one, two = eight[:2]
    limbs = np.stack((one, two, two - one, -(one + two) / 2, one - two / 2, two - one / 2))
    return np.concatenate((limbs, eight[2:]))


def simulated_recordings(
    patients: int,
    *,
    seed: int,
    population: str = "standard",
    place: int = PRIVATE,
    share: float = 0.184,
    several: float = 0.1,
    rate: float = 500.0,
    first: int = 0,
) -> Iterator[tuple[Recording, SimulatedPatient]]:
    """Yield the recordings of simulated patients. Each comes with its patient.

    Parameters
    ----------
    patients
        Number of patients.
    seed
        Seed of the cohort.
    population
        One of `POPULATIONS`.
    place
        `PUBLIC` or `PRIVATE`.
    share
        Share of patients with LBBB. The default is the share in the cohort of Ziller et al.
    several
        Share of patients with two recordings.
    rate
        Samples per second.
    first
        Number of the first patient. For a given seed, place and population, a patient depends on this number and on
        the label alone.
    """
    blocked = round(share * patients)
    for number in range(patients):
        # The random stream depends on seed, place, population and number alone.
        random = stream(seed, Purpose.COHORT, place, list(POPULATIONS).index(population), first + number)
        label = int((number + 1) * blocked // patients > number * blocked // patients)
        patient = draw_patient(label, population, random)
        fold, age = 1 + number % FOLDS, float(np.clip(random.normal(60, 15), 18, 95))
        for which in range(1 + (random.random() < several)):
            signal = record(patient, random, rate)
            name = f"simulated-{first + number:05d}"
            yield Recording(f"{name}-{which}", name, signal, rate, label, fold, age, "simulated"), patient
