from __future__ import annotations

import numpy as np
import pytest

from zetadp.base.validation import UserError
from zetadp.tasks.ecg.collection import BEAT, SpectrumSettings, beginning, spectrum, usual_beat
from zetadp.tasks.ecg.recordings import LEADS, Recording
from zetadp.tasks.ecg.simulated import simulated_recordings


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
