"""Spectra of clips, and the public start of heads on the encoder's features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zetadp.base.validation import UserError
from zetadp.nn.models import build
from zetadp.nn.settings import NetworkSettings
from zetadp.tasks.speech_commands import encoder as encoder_module
from zetadp.tasks.speech_commands.clips import WORDS
from zetadp.tasks.speech_commands.encoder import BANDS, WordEncoder, WordEncoderSettings, _mel_bands, log_mel
from zetadp.tasks.speech_commands.simulated import simulated_words


def test_mel_bands_cover_every_frequency_and_loudness_drops_out():
    bands = _mel_bands()
    assert bands.shape == (129, BANDS)
    assert (bands.sum(axis=0) > 0).all()
    assert (bands[2:124].sum(axis=1) > 0).all()
    waves, _ = simulated_words(4, 0)
    quieter = (waves // 2).astype(np.int16)
    assert torch.allclose(log_mel(waves), log_mel(quieter), atol=0.2)


def test_a_public_head_has_the_scores_of_the_networks_own_but_for_a_positive_factor_of_each_clip(monkeypatch):
    monkeypatch.setattr(encoder_module, "CHUNK", 64)
    encoder = WordEncoder.fit(WordEncoderSettings(words=128, passes=1, axes_from=64, scattering=6, learned=8))
    settings = NetworkSettings("head", domain="features", start="public")
    model = build(settings, len(WORDS), 7, np.random.default_rng(0))
    model.load_state_dict(encoder.start(settings))
    waves, _ = simulated_words(34, 5)
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
