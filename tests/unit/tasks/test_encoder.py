"""Principal axes of public features, and networks that learn from public items."""

from __future__ import annotations

import pytest
import torch

from zetadp.tasks.encoder import fit_axes, unit
from zetadp.tasks.phase_mnist.encoder import DigitNetwork

COUNT = 40


def blocks(images):
    """Return means of blocks of pixels: coefficients that are quick to compute."""
    return torch.nn.functional.avg_pool2d(images.unsqueeze(1), 7).flatten(1)


def network(seed=0):
    """Return the features of an untrained network of one seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return DigitNetwork().eval().features


@pytest.fixture(scope="module")
def images():
    return torch.rand(COUNT, 28, 28, generator=torch.Generator().manual_seed(0))


def test_components_are_uncorrelated_and_in_order_of_variance(images):
    encoder = fit_axes(blocks, images, 10)
    found = encoder.components(images)
    covariance = found.T @ found / COUNT
    assert found.mean(dim=0).abs().max() < 1e-6
    assert torch.allclose(covariance, torch.diag(encoder.variances), atol=1e-6)
    assert (encoder.variances.diff() <= 0).all()


def test_components_do_not_depend_on_how_images_are_divided_into_passes(images, monkeypatch):
    whole = fit_axes(blocks, images, 10)
    monkeypatch.setattr("zetadp.tasks.encoder.AT_ONCE", 7)
    parts = fit_axes(blocks, images, 10)
    assert torch.allclose(whole.variances, parts.variances, atol=1e-6)
    assert torch.allclose(whole.components(images).abs(), parts.components(images).abs(), atol=1e-4)


@pytest.mark.parametrize("whitening", [0.0, 0.5, 1.0])
def test_whitening_divides_by_a_power_of_the_public_variance_and_keeps_the_norm_at_one(images, whitening):
    encoder = fit_axes(blocks, images, 10)
    components = encoder.components(images)
    found = encoder.scaled(components, 6, whitening)
    assert found.shape == (COUNT, 6)
    assert torch.allclose(found.norm(dim=1), torch.ones(COUNT))
    expected = components[:, :6] / encoder.variances[:6].sqrt() ** whitening
    assert torch.allclose(found, unit(expected), atol=1e-6)


@pytest.mark.parametrize("seed", [27, 71, 349, 1024])
def test_fewer_images_than_coefficients_give_finite_axes(images, seed):
    # With these seeds LAPACK's float32 routine gave NaN, or gave up, on some processors and numbers of threads.
    encoder = fit_axes(network(seed), images[:20], 5)
    assert torch.isfinite(encoder.scaled(encoder.components(images), 5)).all()


def test_an_image_of_nothing_gives_finite_features():
    assert torch.isfinite(unit(torch.zeros(2, 5))).all()
