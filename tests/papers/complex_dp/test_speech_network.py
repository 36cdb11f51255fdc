"""The speech network of Ziller et al. in its readings, and its training without noise and with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from papers.complex_dp import train_speech
from papers.complex_dp.speech_network import READINGS, PartsMaxPool2d, SpeechNetwork
from papers.complex_dp.train_speech import Clips, private_rows, search
from zetadp.nn.stacked import stack, unstack


def clips(count: int, seed: int = 0) -> Clips:
    """Return clips of one speaker each, whose word is the frequency with the largest modulus."""
    random = torch.Generator().manual_seed(seed)
    inputs = 0.01 * torch.randn(count, 1, 20, 20, dtype=torch.complex64, generator=random)
    words = (torch.arange(count) + torch.arange(count) // 8) % 8
    inputs[torch.arange(count), 0, :, 2 * words] += 0.1
    return Clips(inputs, words, np.array([f"{number:03d}" for number in range(count)]))


def test_pooling_by_parts_takes_both_maxima_apart():
    z = torch.tensor([[[[1 - 5j, -2 + 0j], [0 + 3j, -4 + 1j]]]], dtype=torch.complex64)
    assert unstack(PartsMaxPool2d(2)(stack(z))).item() == 1 + 3j
    assert unstack(PartsMaxPool2d(None)(stack(z))).item() == 1 + 3j


@pytest.mark.parametrize(("name", "reading"), READINGS.items())
def test_a_reading_scales_clips_and_bounds_scores_as_it_says(name, reading):
    model, inputs = SpeechNetwork(reading, np.random.default_rng(0)), clips(8).inputs
    inputs[0] = 0
    with torch.no_grad():
        scores, louder = model(inputs), model(20 * inputs)
    assert scores.shape == (8, 8)
    assert scores.isfinite().all()
    assert torch.allclose(scores, louder, atol=1e-4) == reading.scaled
    assert bool((scores <= 1 + 1e-6).all()) or not reading.last


def test_the_search_measures_other_speakers_after_each_number_of_steps(monkeypatch):
    monkeypatch.setattr(train_speech, "WATCHED", (1, 3))
    found = search(clips(128), ["learns"], 0)
    assert found["steps"].tolist() == [1, 3]
    assert found["clips"].tolist() == [16, 16]
    assert found["auc"].between(0, 100).all()


def test_private_rows_stand_at_the_true_epsilons_of_the_paper(monkeypatch, tmp_path):
    claims = [replace(claim, rounds=3, sampling_probability=0.2) for claim in train_speech.ZILLER]
    monkeypatch.setattr(train_speech, "ZILLER", claims)
    rows = list(private_rows(clips(40), clips(16, seed=1), tmp_path, 0))
    right, added = (float(row["epsilon"]) for row in rows)
    assert right < added
    assert all(0 <= row["auc"] <= 100 for row in rows)
