from __future__ import annotations

import numpy as np
import pytest

from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import UserError
from zetadp.tasks.ecg.recordings import LEADS, Recording
from zetadp.tasks.ecg.signals import SpectrumSettings, beginning, spectrum, usual_beat
from zetadp.tasks.ecg.simulated import (
    POPULATIONS,
    draw_patient,
    simulated_recordings,
)


@pytest.mark.parametrize("population", POPULATIONS)
def test_the_length_of_the_qrs_complex_tells_the_labels_apart(population):
    random = stream(0, Purpose.COHORT)
    normal, blocked = ([draw_patient(label, population, random).qrs_seconds for _ in range(300)] for label in (0, 1))
    assert max(normal) < 0.120 <= min(blocked)  # the criterion of Surawicz et al.
    assert min(normal) > 0.06
    assert max(blocked) < 0.2
    assert np.std(normal) > 0.005
    assert np.std(blocked) > 0.005


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
    short = beginning(recording(np.ones((12, 300))), SpectrumSettings())
    np.testing.assert_array_equal(short, np.arange(512) < 300)  # filled with zeros


def test_another_rate_is_resampled_to_the_same_time():
    time = np.arange(1000) / 100
    tone = np.tile(np.sin(2 * np.pi * 5 * time), (12, 1))
    found = beginning(recording(tone, rate=100), SpectrumSettings(rate=500, samples=512))
    expected = np.sin(2 * np.pi * 5 * np.arange(512) / 500)
    np.testing.assert_allclose(found[50:], expected[50:], atol=0.01)
    with_less = beginning(recording(tone, rate=100), SpectrumSettings(rate=100, samples=102))
    np.testing.assert_allclose(with_less, tone[0, :102], atol=1e-6)


@pytest.mark.parametrize("signal", [np.ones((12, 120)), np.full((12, 1000), np.nan)])
def test_what_has_no_usual_beat_is_refused_by_name(signal):
    with pytest.raises(UserError, match="recording one"):
        usual_beat(recording(signal, 100))
