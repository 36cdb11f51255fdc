"""Spectra of clips, and the public start of heads on the encoder's features."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from papers.complex_dp.roc import macro_area
from papers.complex_dp.speech_commands import encoder as encoder_module
from papers.complex_dp.speech_commands.clips import WORDS
from papers.complex_dp.speech_commands.encoder import WordEncoder, log_mel
from papers.complex_dp.speech_commands.simulated import simulated_words
from papers.complex_dp.speech_commands.task import SpeechCommands
from zetadp.base.validation import UserError
from zetadp.nn.models import build
from zetadp.nn.settings import NetworkSettings


def test_a_public_head_has_the_scores_of_the_networks_own_but_for_a_positive_factor_of_each_clip(monkeypatch):
    monkeypatch.setattr(encoder_module, "CHUNK", 64)
    recipe = {"seed": 0, "words": 128, "passes": 1, "axes_from": 64, "scattering": 6, "learned": 8}
    monkeypatch.setattr(WordEncoder, "recipe", recipe)
    encoder = WordEncoder.fit()
    settings = NetworkSettings("head", domain="features", start="public")
    model = build(settings, len(WORDS), 7, np.random.default_rng(0))
    model.load_state_dict(encoder.start(settings))
    waves, _ = simulated_words(34, 5)
    part, head = encoder.parts[1], encoder.head
    with torch.no_grad():
        bias = model.affine.bias.real
        found = model(torch.from_numpy(encoder.features(waves))) - bias
        hidden = encoder.hidden_layer(log_mel(waves)) - part.centre
        own = hidden @ part.axes[:, :8] @ part.axes[:, :8].T @ head.weight.T
        np.testing.assert_allclose(bias, head.bias + head.weight @ part.centre, rtol=1e-5)
    factors = (found * own).sum(dim=1) / own.square().sum(dim=1)
    np.testing.assert_allclose(found, factors[:, None] * own, rtol=1e-3, atol=1e-4)
    assert (factors > 0.3).all()
    assert (factors < 3).all()
    with pytest.raises(UserError, match="all 7 components to start publicly, found 3"):
        encoder.start(NetworkSettings("head", domain="features", start="public", components=3))


def predictions(unit: str, speakers: int = 12, each: int = 10) -> tuple[pd.DataFrame, torch.Tensor, torch.Tensor]:
    count = speakers * each
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(count) % 8
    outputs = torch.randn(count, 8, generator=random) + 1.5 * torch.nn.functional.one_hot(targets)
    clips = [f"c{n:03d}" for n in range(count)]
    owners = [f"s{n // each:02d}" for n in range(count)]
    items = pd.DataFrame({"clip": clips, "speaker": owners, "patient": clips if unit == "clip" else owners})
    task = SpeechCommands(unit=unit)
    return items.assign(**task.measure(outputs, targets)), outputs, targets


def test_metrics_are_of_speakers_whatever_the_unit_of_training():
    task = SpeechCommands()
    found, outputs, targets = predictions("clip")
    metrics = task.summarise(found)
    expected = float(macro_area(targets.numpy(), outputs.double().softmax(dim=1).numpy())[0])
    assert metrics["metric"] == "auc"
    assert metrics["auc"] == pytest.approx(expected, abs=1e-6)
    # What is watched is a mean over clips, and the same.
    assert float(task.scores(outputs, targets).mean()) == pytest.approx(expected, abs=1e-6)
    assert metrics["auc_interval"]["low"] < expected < metrics["auc_interval"]["high"]
    assert metrics["accuracy"] == pytest.approx(float((outputs.argmax(dim=1) == targets).float().mean()))
    assert set(metrics["per_patient"]) == {f"s{n:02d}" for n in range(12)}
    assert set(metrics["per_patient_images"].values()) == {10}
    assert np.mean(list(metrics["per_patient"].values())) == pytest.approx(expected, abs=1e-6)
    assert metrics["classes"] == list(WORDS)
    other = SpeechCommands(unit="speaker").summarise(predictions("speaker")[0])
    assert other == metrics
