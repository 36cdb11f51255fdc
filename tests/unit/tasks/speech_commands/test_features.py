"""Simulated words, scattering and the public encoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zetadp.base.tensors import save_tensors
from zetadp.base.validation import UserError, settings_of
from zetadp.nn.models import build
from zetadp.nn.settings import NetworkSettings
from zetadp.tasks.speech_commands import encoder as encoder_module
from zetadp.tasks.speech_commands import word_network
from zetadp.tasks.speech_commands.clips import LENGTH, RATE, WORDS
from zetadp.tasks.speech_commands.encoder import WordEncoder, WordEncoderSettings
from zetadp.tasks.speech_commands.scattering import (
    HIGHEST,
    MODULATIONS,
    PASS,
    PER_OCTAVE,
    WINDOWS,
    _first_filters,
    scattering,
)
from zetadp.tasks.speech_commands.simulated import simulated_words
from zetadp.tasks.speech_commands.word_network import log_mel


def tone(frequency: float, modulation: float = 0.0) -> np.ndarray:
    time = np.arange(LENGTH) / RATE
    wave = (1 + np.cos(2 * np.pi * modulation * time) * (modulation > 0)) * np.cos(2 * np.pi * frequency * time)
    return (8000 * wave).astype(np.int16)[None]


def orders(waves: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the coefficients of one clip: (frequency, place), and (frequency, modulation, place)."""
    found = scattering(waves)[0]
    count = len(_first_filters()[0])
    first = found[: count * WINDOWS[0]].reshape(count, WINDOWS[0])
    return first, found[count * WINDOWS[0] :].reshape(count, len(MODULATIONS), WINDOWS[1])


@pytest.mark.parametrize("frequency", [250.0, 1000.0, 4000.0])
def test_the_filter_at_a_tone_answers_most(frequency):
    first, _ = orders(tone(frequency))
    centre = HIGHEST * 2 ** (-int(first[:, 4:12].mean(dim=1).argmax()) / PER_OCTAVE)
    assert abs(np.log2(centre / frequency)) <= 0.51 / PER_OCTAVE


@pytest.mark.parametrize("modulation", MODULATIONS)
def test_the_second_order_hears_how_fast_a_tone_swells(modulation):
    first, second = orders(tone(1000.0, modulation))
    loudest = int(first[:, 4:12].mean(dim=1).argmax())
    assert int(second[loudest, :, 2:6].mean(dim=1).argmax()) == MODULATIONS.index(modulation)


def test_scattering_does_not_depend_on_when_a_word_is_spoken():
    waves, _ = simulated_words(8, 0)
    # Silence at both ends, so that nothing is lost by moving.
    quiet = np.zeros_like(waves)
    quiet[:, 3000:13000] = waves[:, 3000:13000]
    moved = np.roll(quiet, 2000, axis=1)
    assert torch.allclose(scattering(moved), scattering(quiet), atol=2e-2)


def test_simulated_words_are_a_function_of_the_seed_and_its_use():
    waves, labels = simulated_words(16, 3)
    assert waves.shape == (16, LENGTH)
    assert (np.bincount(labels) == 2).all()
    assert np.abs(waves).max(axis=1).min() > 500
    again, other, use = (simulated_words(16, *place)[0] for place in ((3,), (4,), (3, 1)))
    assert (again == waves).all()
    assert not (other == waves).all()
    assert not (use == waves).all()
    assert len({wave.tobytes() for wave in waves}) == 16


def test_mel_bands_cover_every_frequency_and_loudness_drops_out():
    bands = word_network._mel_bands()
    assert bands.shape == (129, word_network.BANDS)
    assert (bands.sum(axis=0) > 0).all()
    assert (bands[2:124].sum(axis=1) > 0).all()
    waves, _ = simulated_words(4, 0)
    quieter = (waves // 2).astype(np.int16)
    assert torch.allclose(log_mel(waves), log_mel(quieter), atol=0.2)


def test_an_encoder_comes_back_from_its_file_and_treats_every_clip_by_itself(tmp_path, monkeypatch):
    for module in (encoder_module, word_network):
        monkeypatch.setattr(module, "CHUNK", 64)
    settings = WordEncoderSettings(words=128, passes=1, axes_from=64, scattering=6, learned=4)
    encoder = WordEncoder.fit(settings)
    encoder.save(tmp_path / "encoder.safetensors")
    waves, _ = simulated_words(PASS + 2, 5)
    found = encoder.features(waves)
    assert found.shape == (PASS + 2, 1, 5)
    assert found.dtype == np.complex64
    np.testing.assert_allclose(np.linalg.norm(found, axis=2), 1, rtol=1e-5)
    again = WordEncoder.load(tmp_path / "encoder.safetensors")
    np.testing.assert_array_equal(again.features(waves), found)
    same = word_network.fit_word_network(settings.words, settings.passes, settings.seed)
    for name, value in same.state_dict().items():
        assert torch.equal(value, encoder.network.state_dict()[name])
    changed = waves[::-1].copy()
    changed[0] = waves[0]
    np.testing.assert_array_equal(encoder.features(changed)[0], found[0])
    np.testing.assert_allclose(encoder.features(waves[3:4])[0], found[3], atol=1e-4)
    save_tensors(tmp_path / "other.safetensors", {"a": torch.zeros(1)}, {})
    with pytest.raises(UserError, match="encoder of words"):
        WordEncoder.load(tmp_path / "other.safetensors")


def test_a_public_head_has_the_scores_of_the_networks_own_but_for_a_positive_factor_of_each_clip(monkeypatch):
    for module in (encoder_module, word_network):
        monkeypatch.setattr(module, "CHUNK", 64)
    encoder = WordEncoder.fit(WordEncoderSettings(words=128, passes=1, axes_from=64, scattering=6, learned=8))
    settings = NetworkSettings("head", domain="features", start="public")
    model = build(settings, len(WORDS), 7, np.random.default_rng(0))
    model.load_state_dict(encoder.start(settings))
    waves, _ = simulated_words(PASS + 2, 5)
    part, head = encoder.parts[1], encoder.network.head
    with torch.no_grad():
        bias = model.affine.bias.real
        found = model(torch.from_numpy(encoder.features(waves))[:, None]) - bias
        hidden = encoder.network.features(log_mel(waves)) - part.centre
        own = hidden @ part.axes[:, :8] @ part.axes[:, :8].T @ head.weight.T
        np.testing.assert_allclose(bias, head.bias + head.weight @ part.centre, rtol=1e-5)
    factors = (found * own).sum(dim=1) / own.square().sum(dim=1)
    np.testing.assert_allclose(found, factors[:, None] * own, rtol=1e-3, atol=1e-4)
    assert (factors > 0.3).all()
    assert (factors < 3).all()
    with pytest.raises(UserError, match="all 7 components to start publicly, found 3"):
        encoder.start(NetworkSettings("head", domain="features", start="public", components=3))


def test_settings_of_the_encoder_are_checked_by_name():
    with pytest.raises(UserError, match="multiple of 640, found 100"):
        settings_of(WordEncoderSettings, {"words": 100})
    with pytest.raises(UserError, match="an even number together"):
        settings_of(WordEncoderSettings, {"learned": 3})
    with pytest.raises(UserError, match="sounds"):
        settings_of(WordEncoderSettings, {"sounds": 3})
    assert len(WORDS) == 8
