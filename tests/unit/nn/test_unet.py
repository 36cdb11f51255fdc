from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from zetadp.base.complex_images import fourier, inverse_fourier
from zetadp.mechanism.contributions import knows_units
from zetadp.mri.kspace import to_image
from zetadp.nn.models import build
from zetadp.nn.settings import NetworkSettings
from zetadp.nn.unet import DataConsistency, UNet
from zetadp.training.round import Phase

FAMILIES = ("unet", "real_unet")


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
    image = inverse_fourier(measured(3, seed=1)[:, 0] + measured(3, seed=2)[:, 0], torch)
    there = (lines != 0).any(dim=1, keepdim=True).expand_as(lines)
    found = fourier(layer(image, lines), torch)
    torch.testing.assert_close(found[there], lines[there])
    torch.testing.assert_close(found[~there], fourier(image, torch)[~there])
    nn.init.constant_(layer.weight, 0.25)
    mixed = 0.75 * fourier(image, torch) + 0.25 * lines
    torch.testing.assert_close(fourier(layer(image, lines), torch)[there], mixed[there])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_image_has_the_scale_of_the_input(family):
    model, lines = network(family), measured(3)
    found = model(lines)
    assert found.shape == (3, 16, 16)
    torch.testing.assert_close(model(1e-4 * lines), 1e-4 * found, rtol=1e-3, atol=1e-7)
    assert torch.isfinite(model(torch.zeros_like(lines))).all()


def test_without_a_correction_the_image_is_zero_filled():
    model, lines = build(NetworkSettings("unet", widths=(4, 8)), 1, 16, np.random.default_rng(0)), measured(2)
    np.testing.assert_allclose(model(lines).detach(), np.abs(to_image(lines[:, 0].numpy())), atol=1e-5)


@pytest.mark.parametrize(
    ("family", "trained"), [("unet", "all"), ("unet", "norms"), ("real_unet", "all"), ("real_unet", "norms")]
)
def test_contributions_are_the_gradients_of_each_patient(family, trained):
    model, inputs, targets = network(family, trained), measured(6), torch.rand(6, 16, 16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=parameter.dtype)

    def losses(outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return (outputs - wanted).abs().mean(dim=(1, 2))

    assert knows_units(model)
    phase = Phase.of(model, 2, losses)
    assert sorted(phase.layout.names) == sorted(name for name, p in model.named_parameters() if p.requires_grad)
    units, wanted = (each.unflatten(0, (3, 2)) for each in (inputs, targets))
    rows = phase.contribution.of_units(units, wanted, factors=False)
    for unit in range(3):
        own = losses(model(units[unit]), wanted[unit]).mean()
        expected = torch.autograd.grad(own, [model.get_parameter(name) for name in phase.layout.names])
        for row, gradient in zip(rows, expected, strict=True):
            plain = torch.view_as_real(gradient) if gradient.is_complex() else gradient
            assert (row[unit] - plain.flatten()).norm() <= 1e-4 * plain.norm() + 1e-7
