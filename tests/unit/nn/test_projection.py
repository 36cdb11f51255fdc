from __future__ import annotations

import pytest
import torch

from zetadp.nn.heads import RIDGE, fit_projection, head_on


@pytest.fixture(scope="module")
def drawn():
    """Return correlated features of unequal scale whose classes differ in three directions of small variance."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat(2000)
    mixing = torch.randn(12, 12, generator=random)
    scales = torch.logspace(0, -0.3, 12)
    means = torch.zeros(4, 12)
    means[:, 9:] = torch.randn(4, 3, generator=random)
    latent = (torch.randn(len(labels), 12, generator=random) + means[labels]) * scales
    return latent @ mixing + 5, labels


def test_components_are_uncorrelated_with_unit_variance(drawn):
    features, labels = drawn
    centre, projection = fit_projection(features, labels)
    parts = ((features - centre) @ projection).double()
    assert parts.mean(dim=0).abs().max() < 1e-4
    covariance = torch.cov(features.T.double(), correction=0)
    ridge = RIDGE * covariance.diagonal().mean() * torch.eye(12, dtype=torch.float64)
    found = projection.T.double() @ (covariance + ridge) @ projection.double()
    torch.testing.assert_close(found, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-4)
    assert torch.cov(parts.T, correction=0).diagonal().max() < 1 + 1e-4


def test_the_first_components_hold_all_that_tells_the_classes_apart(drawn):
    features, labels = drawn
    centre, projection = fit_projection(features, labels)
    parts = (features - centre) @ projection
    means = torch.stack([parts[labels == c].mean(dim=0) for c in range(4)])
    told = means.square().sum(dim=0)
    assert told[:3].sum() > 0.999 * told.sum()
    # The principal components of the features themselves do not: what tells has small variance.
    centred = features - centre
    first = torch.linalg.svd(centred, full_matrices=False)[2][:3].T
    of_first = torch.stack([(centred @ first)[labels == c].mean(dim=0) for c in range(4)]).square().sum()
    of_all = torch.stack([centred[labels == c].mean(dim=0) for c in range(4)]).square().sum()
    assert of_first < 0.9 * of_all


@pytest.mark.parametrize("count", [2, 6])
def test_the_head_has_the_least_cross_entropy(drawn, count):
    """At the minimum of a convex loss its gradient vanishes."""
    features, labels = drawn
    centre, projection = fit_projection(features, labels)
    parts = (features - centre) @ projection
    weight, bias = head_on(parts, labels, count)
    assert weight.shape == (4, count)
    pairs = torch.view_as_complex(parts.reshape(len(parts), 6, 2))[:, :count]
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    scores = (pairs @ weight.T + bias).real
    torch.nn.functional.cross_entropy(scores, labels).backward()
    assert weight.grad.abs().max() < 2e-3
    assert bias.grad.abs().max() < 2e-3
    assert (scores.argmax(dim=1) == labels).float().mean() > 0.5
