from __future__ import annotations

import numpy as np
import torch
from torch import nn

from zetadp.mri.kspace import to_image
from zetadp.nn.models import build
from zetadp.nn.settings import NetworkSettings
from zetadp.nn.unet import DataConsistency, UNet, fourier, inverse_fourier


def network(family: str, trained: str = "all") -> UNet:
    settings = NetworkSettings(family, widths=(4, 8), convolutions=1, activation="crelu", groups=1, trained=trained)
    made = build(settings, 1, 16, np.random.default_rng(0))
    assert isinstance(made, UNet)
    # As drawn it is zero, and nothing before it shows.
    nn.init.normal_(torch.view_as_real(made.last.weight) if made.complex else made.last.weight)
    return made


def measured(items: int, seed: int = 0) -> torch.Tensor:
    random = np.random.default_rng(seed)
    kspace = random.standard_normal((items, 1, 16, 16)) + 1j * random.standard_normal((items, 1, 16, 16))
    return torch.from_numpy((kspace * (random.random(16) < 0.5)).astype(np.complex64))


def test_full_consistency_puts_the_measured_lines_in_place():
    layer, lines = DataConsistency(), measured(3)[:, 0]
    image = inverse_fourier(measured(3, seed=1)[:, 0] + measured(3, seed=2)[:, 0])
    there = (lines != 0).any(dim=1, keepdim=True).expand_as(lines)
    found = fourier(layer(image, lines))
    torch.testing.assert_close(found[there], lines[there])
    torch.testing.assert_close(found[~there], fourier(image)[~there])
    nn.init.constant_(layer.weight, 0.25)
    mixed = 0.75 * fourier(image) + 0.25 * lines
    torch.testing.assert_close(fourier(layer(image, lines))[there], mixed[there])


def test_without_a_correction_the_image_is_zero_filled():
    model, lines = build(NetworkSettings("unet", widths=(4, 8)), 1, 16, np.random.default_rng(0)), measured(2)
    np.testing.assert_allclose(model(lines).detach(), np.abs(to_image(lines[:, 0].numpy())), atol=1e-5)
