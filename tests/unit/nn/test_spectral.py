"""Pooling by modulus, and the network for spectrograms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from zetadp.base.parameters import Layout
from zetadp.nn.activations import activation as activation_of
from zetadp.nn.models import NetworkSettings, build
from zetadp.nn.spectral import MagnitudeMaxPool2d
from zetadp.nn.stacked import stack, unstack
from zetadp.privacy.contributions import knows_units, patient_gradients

PAPER = {"widths": (8, 16, 32, 64), "hidden": 64, "activation": "igaussian"}
SMALL = {"widths": (2, 3, 3, 4), "hidden": 5, "activation": "igaussian"}


def complex_images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))


def pooled_by_loop(z: torch.Tensor, side: int | None) -> tuple[torch.Tensor, list[tuple[int, ...]]]:
    """Return pooled images, and the place of every number that was taken."""
    images, channels, rows, columns = z.shape
    height, width = (rows, columns) if side is None else (side, side)
    found = torch.zeros(images, channels, rows // height, columns // width, dtype=z.dtype)
    taken = []
    for place in np.ndindex(*found.shape):
        image, channel, row, column = place
        inside = [
            (image, channel, row * height + down, column * width + right)
            for down in range(height)
            for right in range(width)
        ]
        best = max(inside, key=lambda at: abs(complex(z[at])))
        found[place] = z[best]
        taken.append(best)
    return found, taken


@pytest.mark.parametrize(("side", "shape"), [(2, (2, 3, 5, 6)), (3, (1, 2, 7, 3)), (None, (2, 3, 4, 5))])
def test_pooling_takes_the_number_of_largest_modulus_and_its_gradient_goes_there(side, shape):
    z = complex_images(*shape).requires_grad_()
    expected, taken = pooled_by_loop(z.detach(), side)
    found = unstack(MagnitudeMaxPool2d(side)(stack(z)))
    assert torch.equal(found, expected)
    weights = complex_images(*found.shape, seed=1)
    (weights.conj() * found).real.sum().backward()
    expected_gradient = torch.zeros(shape, dtype=z.dtype)
    for place, weight in zip(taken, weights.flatten(), strict=True):
        expected_gradient[place] = weight
    assert torch.allclose(z.grad, expected_gradient)


def test_pooling_before_an_activation_that_grows_with_the_modulus_changes_nothing():
    x = stack(complex_images(2, 3, 6, 6))
    pool, activation = MagnitudeMaxPool2d(2), activation_of("igaussian", 1)
    assert torch.allclose(pool(activation(x)), activation(pool(x)))


def test_the_network_of_the_paper_has_its_shapes_and_its_twin_as_many_numbers():
    model = build(NetworkSettings("spectrogram", "complex", **PAPER), 8, 129, np.random.default_rng(0))
    shapes, before = [], 1
    for width in PAPER["widths"]:
        shapes.append((width, before, 3, 3))
        before = width
    shapes += [(64, 64), (64,), (8, 64), (8,)]
    assert [tuple(p.shape) for p in model.parameters()] == shapes
    assert all(p.is_complex() for p in model.parameters())
    twin = build(NetworkSettings("spectrogram", "image", **PAPER), 8, 129, np.random.default_rng(0))
    numbers = [Layout.of(network).dimension for network in (model, twin)]
    assert numbers[1] == pytest.approx(numbers[0], rel=0.02)
    # 124 x 129 - 2 - 2, halved, - 2 - 2: what the last convolution gives.
    sizes = []
    model.blocks[-3].register_forward_hook(lambda _, __, output: sizes.append(tuple(output.shape)))
    with torch.no_grad():
        scores = model(torch.randn(2, 1, 124, 129, dtype=torch.complex64))
    assert sizes == [(2, 128, 56, 58)]
    assert scores.shape == (2, 8)
    # The activation keeps moduli below 1; one of almost 1 may be rounded to the next number above it.
    assert ((scores >= 0) & (scores <= 1 + torch.finfo(scores.dtype).eps)).all()


@pytest.mark.parametrize("domain", ["complex", "image"])
def test_gradients_of_single_clips_are_those_of_torch_func(domain):
    model = build(NetworkSettings("spectrogram", domain, **SMALL), 8, 17, np.random.default_rng(0)).double()
    if domain == "complex":
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.complex128)
    assert knows_units(model)
    inputs = complex_images(3, 1, 16, 17)
    inputs = inputs if domain == "complex" else inputs.abs()
    labels = torch.tensor([1, 5, 5])
    found = torch.cat(patient_gradients(model, Layout.of(model), inputs.unsqueeze(1), labels.unsqueeze(1)), dim=1)

    # torch.func differentiates by real numbers: complex weights go in as pairs.
    pairs = {n: torch.view_as_real(p) if p.is_complex() else p for n, p in model.named_parameters()}
    pairs = {name: value.detach().clone() for name, value in pairs.items()}

    def loss(given, image, label):
        weights = {n: torch.view_as_complex(v) if domain == "complex" else v for n, v in given.items()}
        return functional.cross_entropy(functional_call(model, weights, (image[None],)), label[None])

    for clip in range(3):
        expected = grad(loss)(pairs, inputs[clip], labels[clip])
        named = {n: torch.view_as_complex(v.contiguous()) if domain == "complex" else v for n, v in expected.items()}
        flat = Layout.of(model).flatten(named)
        assert float(flat.norm()) > 1e-3
        assert torch.allclose(found[clip], flat, rtol=1e-9, atol=1e-12)
    if domain == "image":
        mapped = vmap(grad(loss), (None, 0, 0))(pairs, inputs, labels)
        assert torch.allclose(mapped["head.0.bias"][2], expected["head.0.bias"])
