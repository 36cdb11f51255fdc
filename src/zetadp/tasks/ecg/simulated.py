"""Simulated patients: normal beats, and beats with left bundle branch block (LBBB), in twelve leads.

The heart is the dipole of Sameni et al. 2007 (doi:10.1155/2007/43407), which is the dynamical model of McSharry et al.
2003 (ECGSYN, doi:10.1109/TBME.2003.808805) in three dimensions: each wave is a Gaussian of time around the beat that
it belongs to. On its limit cycle the model has this closed solution, so nothing is integrated. Widths are times
and not phases, so that a slow heart does not widen the QRS complex. Leads are those of Dower et al. 1980
(doi:10.1016/S0022-0736(80)80012-1), varied by patient.

NeuroKit2's ``ecg_simulate`` was tried and left: it knows exactly five waves, so no notch; its leads are one beat at
other amplitudes, so no axis turns; it asks for an older pandas; and ten seconds of twelve leads take it over a second,
here six milliseconds.

What LBBB looks like follows Surawicz et al. 2009 (doi:10.1161/CIRCULATIONAHA.108.191095) and Strauss et al. 2011
(doi:10.1016/j.amjcard.2010.11.010): QRS of 120 ms and more, notched or slurred in the middle, forces to the left from
the beginning (no q wave in lateral leads), then to the back, and ST segment and T wave against the QRS. Amplitudes,
widths and how they vary are ours. Nothing here was fitted to recordings of patients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zetadp.randomness import Purpose, stream
from zetadp.tasks.ecg.recordings import FOLDS, Recording
from zetadp.validation import one_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 10.0
POPULATIONS = {"standard": 1.0, "varied": 2.2}
"""How much patients, torsos and noise vary. Public features are learnt of the first; the second is held apart."""
PUBLIC, PRIVATE = 0, 1
"""Places of streams: who is simulated for public features is never in a cohort."""

# Torso of Dower: leads I, II and V1 to V6 of a dipole that points left, down and back (mV).
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
# Waves of a QRS complex of usual length: when (s), how wide (standard deviation, s), and where to (left, down, back).
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
"""Parts of a T wave."""
EDGE = 2.3
"""Standard deviations after which a wave has ended."""


@dataclass(frozen=True)
class SimulatedPatient:
    """A simulated patient.

    Attributes
    ----------
    label
        1 with LBBB.
    qrs
        Waves of the QRS complex, shape (wave, 5): time, width and dipole, as `NORMAL_QRS`.
    others
        The `T_WAVES` parts of the T wave, then the P wave where the atria beat, in the same form.
    torso
        Leads I, II and V1 to V6 of a dipole, shape (8, 3).
    beat
        Seconds between two beats in the mean.
    fibrillating
        Whether the atria fibrillate: no P wave, and beats without a rhythm.
    noise
        Of muscles, mains and drift, in mV.
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
        """Length of the QRS complex, from the beginning of the first wave to the end of the last."""
        times, widths = self.qrs[:, 0], self.qrs[:, 1]
        return float((times + EDGE * widths).max() - (times - EDGE * widths).min())


def draw_patient(label: int, population: str, random: np.random.Generator) -> SimulatedPatient:
    """Draw a patient of a population in `POPULATIONS`."""
    one_of(POPULATIONS, population=population)
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
    # In the frontal plane LBBB turns the axis to the left.
    angles = random.normal([-20.0 if label else 0.0, 0, 0], [25 * spread, 14 * spread, 12 * spread])
    turn = _rotation(*np.deg2rad(angles)) * np.exp(random.normal(0, 0.3))
    torso = (DOWER + random.normal(0, 0.12 * spread, DOWER.shape)) @ turn
    noise = (0.01 * np.exp(random.normal(0, 0.5 * spread)), random.uniform(0, 0.02), random.uniform(0.02, 0.3))
    return SimulatedPatient(label, qrs, np.concatenate(others), torso, float(beat), fibrillating, noise)


def _t_wave(label: int, qrs: np.ndarray, beat: float, spread: float, random: np.random.Generator) -> np.ndarray:
    """Return a T wave of two parts, the later one steeper: with the QRS complex, or with LBBB against it."""
    if label:
        mean = (qrs[:, 1:2] * qrs[:, 2:]).sum(axis=0)
        to = -mean / np.linalg.norm(mean) * random.uniform(0.15, 0.5)
    else:
        to = np.array([0.25, 0.2, -0.15]) * np.exp(random.normal(0, 0.4 * spread))
    to = to + random.normal(0, 0.05 * spread, 3)
    # QT shortens with the root of the beat (Bazett), and a longer QRS complex moves the T wave back.
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
    """Return ten seconds of a patient in mV, float32 of shape (lead, sample)."""
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
        # A wave is nothing five widths away from its middle.
        reach = np.arange(-int(5 * width * rate), int(5 * width * rate) + 2)
        for beat in beats:
            own = int((beat + when) * rate) + reach
            own = own[(own >= 0) & (own < len(time))]
            bump = np.exp(-0.5 * ((time[own] - beat - when) / width) ** 2)
            dipole[:, own] += np.outer(to, bump)
    return dipole


def _ectopic(time: np.ndarray, beats: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the dipole of one broad beat that comes too early, from anywhere."""
    middle = beats[(beats > 1) & (beats < SECONDS - 1)]
    at = random.choice(middle) + random.uniform(0.45, 0.6)
    to = random.normal(0, 0.8, 3)
    waves = np.array([[-0.02, 0.022, *to], [0.03, 0.025, *(0.7 * to)], [0.3, 0.06, *(-0.3 * to)]])
    return _waves(time, np.array([at]), waves)


def _noise(sizes: tuple[float, float, float], time: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return noise of muscles, mains and drift in eight leads, shape (8, sample)."""
    muscles, mains, drift = sizes
    found = muscles * random.standard_normal((8, len(time)))
    found += mains * random.uniform(0, 1, (8, 1)) * np.sin(2 * np.pi * 50 * time + random.uniform(0, 2 * np.pi))
    for frequency in random.uniform(0.05, 0.5, 3):
        found += random.normal(0, drift, (8, 1)) * np.sin(2 * np.pi * frequency * time + random.uniform(0, 2 * np.pi))
    return found


def twelve(eight: np.ndarray) -> np.ndarray:
    """Return all leads for I, II and V1 to V6: the others are differences of electrodes (Einthoven, Goldberger)."""
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
    """Yield the recordings of simulated patients, each with its patient.

    Parameters
    ----------
    patients
        How many patients.
    seed
        Seed of the cohort.
    population
        One of `POPULATIONS`.
    place
        `PUBLIC` or `PRIVATE`.
    share
        Share of patients with LBBB; by default that of the cohort of Ziller et al.
    several
        Share of patients with two recordings.
    rate
        Samples a second.
    first
        Number of the first patient; each number of a seed stands for one patient.
    """
    blocked = round(share * patients)
    for number in range(patients):
        # A patient depends on seed, population and number alone.
        random = stream(seed, Purpose.COHORT, place, list(POPULATIONS).index(population), first + number)
        label = int((number + 1) * blocked // patients > number * blocked // patients)
        patient = draw_patient(label, population, random)
        fold, age = 1 + number % FOLDS, float(np.clip(random.normal(60, 15), 18, 95))
        for which in range(1 + (random.random() < several)):
            signal = record(patient, random, rate)
            name = f"simulated-{first + number:05d}"
            yield Recording(f"{name}-{which}", name, signal, rate, label, fold, age, "simulated"), patient
