from __future__ import annotations

import numpy as np
import pytest

from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import UserError
from zetadp.tasks.ecg.recordings import LEADS, Recording
from zetadp.tasks.ecg.signals import BEAT, BEFORE, SpectrumSettings, beats, beginning, spectrum, usual_beat
from zetadp.tasks.ecg.simulated import (
    DOWER,
    NORMAL_QRS,
    POPULATIONS,
    SimulatedPatient,
    draw_patient,
    record,
    simulated_recordings,
    twelve,
)

RATE = 500


def quiet(label: int, waves: np.ndarray = NORMAL_QRS, beat: float = 0.8) -> SimulatedPatient:
    """Return a patient without noise, whose heart lies as Dower's."""
    return SimulatedPatient(label, waves, np.zeros((0, 5)), DOWER, beat, False, (0, 0, 0))


@pytest.mark.parametrize("population", POPULATIONS)
def test_the_length_of_the_qrs_complex_tells_the_labels_apart(population):
    random = stream(0, Purpose.COHORT)
    normal, blocked = ([draw_patient(label, population, random).qrs_seconds for _ in range(300)] for label in (0, 1))
    assert max(normal) < 0.120 <= min(blocked)  # the criterion of Surawicz et al.
    assert min(normal) > 0.06
    assert max(blocked) < 0.2
    assert np.std(normal) > 0.005
    assert np.std(blocked) > 0.005


def test_the_length_is_that_of_the_signal():
    signal = record(quiet(0), stream(1, Purpose.COHORT), RATE)[LEADS.index("V5")].astype(float)
    peak = int(signal[1000:3000].argmax()) + 1000
    around = np.abs(signal[peak - 60 : peak + 60])
    seen = (around > 0.01 * around.max()).sum() / RATE
    assert seen == pytest.approx(quiet(0).qrs_seconds, abs=0.02)


def test_lbbb_has_no_q_in_lateral_leads_and_a_t_wave_against_the_qrs():
    """In the mean of patients: single ones may lie so that a lead sees it otherwise."""
    found = {}
    for label in (0, 1):
        made = [r for r, _ in simulated_recordings(60, seed=3, population="standard", share=label, several=0, rate=100)]
        found[label] = np.mean([usual_beat(each) for each in made], axis=0)
    v6, v1 = LEADS.index("V6"), LEADS.index("V1")
    for label, sign in ((0, 1), (1, -1)):
        qrs, t_wave = (
            found[label][v6, BEFORE - 8 : BEFORE + 8].max(),
            found[label][v6, BEFORE + 18 : BEFORE + 38].mean(),
        )
        assert qrs > 1
        assert sign * t_wave > 0.1
    before = slice(BEFORE - 8, BEFORE + 1)
    assert found[0][v6, before].min() < -0.1  # septal q
    assert found[1][v6, before].min() > -0.1
    assert found[1][v1, BEFORE - 8 : BEFORE + 8].min() < -2  # QS or rS


def test_patients_have_one_label_one_or_two_recordings_and_the_declared_share():
    made = [r for r, _ in simulated_recordings(400, seed=0, share=0.184, several=0.1, rate=100)]
    by_patient: dict[str, list[int]] = {}
    for each in made:
        by_patient.setdefault(each.patient, []).append(each.label)
    assert len(by_patient) == 400
    assert all(len(set(labels)) == 1 for labels in by_patient.values())
    assert {len(labels) for labels in by_patient.values()} == {1, 2}
    assert sum(labels[0] for labels in by_patient.values()) == round(0.184 * 400)
    assert len({each.name for each in made}) == len(made)


def test_leads_are_differences_of_electrodes():
    found = dict(zip(LEADS, twelve(np.random.default_rng(0).normal(size=(8, 5))), strict=True))
    np.testing.assert_allclose(found["I"] + found["III"], found["II"])
    np.testing.assert_allclose(found["aVR"] + found["aVL"] + found["aVF"], 0, atol=1e-12)
    np.testing.assert_allclose(found["aVF"], (found["II"] + found["III"]) / 2)


@pytest.mark.parametrize("beat", [0.5, 0.8, 1.2])
def test_the_rate_of_beats_is_the_patients(beat):
    signal = record(quiet(0, beat=beat), stream(2, Purpose.COHORT), 100)
    found = beats(signal / signal.std(axis=1, keepdims=True))
    assert np.diff(found).mean() / 100 == pytest.approx(beat, rel=0.03)


def recording(signal: np.ndarray, rate: float = 500) -> Recording:
    return Recording("one", "somebody", signal.astype(np.float32), rate, 0)


def test_the_spectrum_is_the_fourier_sum_of_the_first_samples_of_one_lead():
    signal = np.random.default_rng(0).normal(size=(12, 900))
    found = spectrum(beginning(recording(signal), SpectrumSettings(lead=3, samples=64)))
    n = np.arange(64)
    lead = signal[LEADS.index("aVR"), :64]
    expected = [(lead * np.exp(-2j * np.pi * k * n / 64)).sum() / 8 for k in range(64)]
    assert found.dtype == np.complex64
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_short_recording_is_filled_with_zeros():
    found = beginning(recording(np.ones((12, 300))), SpectrumSettings())
    assert found.shape == (512,)
    assert found[:300].all()
    assert not found[300:].any()


def test_another_rate_is_resampled_to_the_same_time():
    time = np.arange(1000) / 100
    tone = np.tile(np.sin(2 * np.pi * 5 * time), (12, 1))
    found = beginning(recording(tone, rate=100), SpectrumSettings(rate=500, samples=512))
    expected = np.sin(2 * np.pi * 5 * np.arange(512) / 500)
    np.testing.assert_allclose(found[50:], expected[50:], atol=0.01)
    with_less = beginning(recording(tone, rate=100), SpectrumSettings(rate=100, samples=102))
    np.testing.assert_allclose(with_less, tone[0, :102], atol=1e-6)


def test_the_usual_beat_has_no_units_and_no_offset():
    (made, _), *_ = simulated_recordings(1, seed=0, several=0, rate=100)
    found = usual_beat(made)
    assert found.shape == (12, BEAT)
    other = usual_beat(recording(3 * made.signal + 7, 100))
    np.testing.assert_allclose(other, found, atol=1e-4)


def test_the_usual_beat_is_the_same_at_other_rates():
    (one, _), *_ = simulated_recordings(1, seed=0, several=0, rate=500)
    slower = recording(one.signal[:, ::2], 250)
    np.testing.assert_allclose(usual_beat(slower), usual_beat(one), atol=0.25)


@pytest.mark.parametrize("signal", [np.ones((12, 120)), np.full((12, 1000), np.nan)])
def test_what_has_no_usual_beat_is_refused_by_name(signal):
    with pytest.raises(UserError, match="recording one"):
        usual_beat(recording(signal, 100))
