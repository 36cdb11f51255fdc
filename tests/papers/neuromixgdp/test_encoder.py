"""Programs that compute public features of simulated digits, which no file of `papers.digits` holds."""

from __future__ import annotations

import pytest
import torch

from papers.complex_dp.phase_mnist.encoder import DigitEncoder, simulated_digits
from papers.neuromixgdp import attack_releases, compare_mnist, compare_regimes

COMPONENTS = 20 + 8


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Put an encoder of few components that has learnt nothing, and few digits, in the place of the program's."""
    monkeypatch.setattr(DigitEncoder, "learn_simulated", lambda encoder, random: simulated_digits(70, 0)[0])
    # Axes of thousands of scattering coefficients take long.
    monkeypatch.setattr(DigitEncoder, "maps", lambda encoder: (encoder.hidden_layer,) * 2)
    monkeypatch.setattr(DigitEncoder, "recipe", {"seed": 0, "scattering": 20, "learned": 8})
    made = DigitEncoder.fit()
    for program in (attack_releases, compare_mnist, compare_regimes):
        monkeypatch.setattr(program, "encoder", lambda: made)
    for program in (attack_releases, compare_mnist):
        monkeypatch.setattr(program, "DIGITS", 70)
    monkeypatch.setattr(compare_regimes, "PEOPLE", (70 - 2000,))  # and 2000 for testing


def test_programs_take_the_features_of_the_public_encoder():
    axes = compare_mnist.directions.__wrapped__("encoder")
    torch.testing.assert_close(axes.T @ axes, torch.eye(COMPONENTS), atol=1e-4, rtol=0)
    drawn, labels = compare_regimes.public_digits.__wrapped__()
    assert drawn.shape == (len(labels), COMPONENTS)
    torch.testing.assert_close(drawn.norm(dim=1), torch.ones(len(labels)))
    images = attack_releases.decoder()(drawn[:3])
    assert images.shape == (3, 28 * 28)
    assert ((images >= 0) & (images <= 1)).all()
