"""Pooling by modulus, and the network for spectrograms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zetadp.base.tensors import Layout
from zetadp.nn.activations import activation as activation_of
from zetadp.nn.models import NetworkSettings, build
from zetadp.nn.spectral import MagnitudeMaxPool2d
from zetadp.nn.stacked import stack, unstack

PAPER = {"widths": (8, 16, 32, 64), "hidden": 64, "activation": "igaussian"}


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
