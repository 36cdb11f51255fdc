"""Simulated digits, and the network that learns to read them."""

from __future__ import annotations

import pytest
import torch

from zetadp.tasks.phase_mnist import encoder
from zetadp.tasks.phase_mnist.encoder import DigitEncoder, DigitEncoderSettings
from zetadp.tasks.phase_mnist.simulated import BOX, POINTS, _skeleton, simulated_digits, skeletons


@pytest.fixture(scope="module")
def digits():
    return simulated_digits(400, 0)


def test_digits_are_framed_as_those_of_mnist(digits):
    images, labels = digits
    assert images.shape == (400, 28, 28)
    assert images.min() == 0
    assert (images.amax(dim=(1, 2)) > 0.7).all()
    assert (torch.bincount(labels) == 40).all()
    grid = torch.arange(28.0)
    ink = images.sum(dim=(1, 2))
    for axis in (1, 2):
        centre = (images.sum(dim=axis) * grid).sum(dim=1) / ink
        assert (centre - 13.5).abs().max() < 0.6
        extent = [int(line.nonzero().max() - line.nonzero().min()) + 1 for line in (images > 0.5).any(dim=axis)]
        assert max(extent) <= BOX + 2
        # The larger side of every digit fills the box.
    sides = torch.stack([(images > 0.3).any(dim=axis).sum(dim=1) for axis in (1, 2)]).amax(dim=0)
    assert sides.min() >= BOX - 4


@pytest.mark.parametrize("label", range(10))
def test_points_lie_along_the_whole_of_every_way_to_write_a_digit(label):
    for way in range(len(skeletons()[label])):
        line = _skeleton(label, way)
        assert line.shape == (POINTS, 2)
        assert line[:, 1].min() < 0.1
        assert line[:, 1].max() > 0.9
        assert -0.15 < line.min() < line.max() < 1.15


def test_the_network_learns_to_read_digits_that_it_has_not_seen(monkeypatch):
    monkeypatch.setattr(encoder.DigitNetwork, "widths", (4, 8, 8))
    monkeypatch.setattr(encoder.DigitNetwork, "flat", 8 * 9)
    monkeypatch.setattr(encoder, "BATCH", 16)
    monkeypatch.setattr(encoder, "CHUNK", 800)
    network, _ = DigitEncoder.learned(DigitEncoderSettings(digits=1600, axes_from=10))
    images, labels = simulated_digits(300, 99)
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert (network(images).argmax(dim=1) == labels).float().mean() > 0.4  # by chance 0.1
