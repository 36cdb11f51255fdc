"""The area under ROC curves, and its intervals over patients and speakers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from papers.complex_dp.encoder import WHITENING, fit_axes, unit
from papers.complex_dp.roc import area_shares, macro_area, placements
from papers.complex_dp.speech_commands.task import interval
from zetadp.training.metrics import mean_interval


def drawn(items: int = 300, classes: int = 5, seed: int = 0, *, digits: int = 8):
    """Return labels, probabilities that say something of them, and owners whose items resemble each other."""
    random = np.random.default_rng(seed)
    owners = random.integers(0, 30, items)
    labels = np.concatenate((np.arange(classes), random.integers(0, classes, items - classes)))
    skill = random.normal(1, 1, 30)
    raw = random.normal(size=(items, classes)) + skill[owners, None] * np.eye(classes)[labels]
    scores = np.exp(raw) / np.exp(raw).sum(axis=1, keepdims=True)
    return labels, scores.round(digits), owners


@pytest.mark.parametrize("digits", [8, 1])
def test_the_area_is_that_of_scikit_learn(digits):
    from sklearn.metrics import roc_auc_score

    labels, scores, _ = drawn(digits=digits)
    expected = np.mean([roc_auc_score(labels == number, scores[:, number]) for number in range(5)])
    assert macro_area(labels, scores)[0] == pytest.approx(expected, abs=1e-12)
    assert area_shares(labels, scores).mean() == pytest.approx(expected, abs=1e-12)
    first = labels == 0
    for own in (first, ~first):
        placed = placements(scores[:, 0], first)[own].mean()
        assert placed == pytest.approx(roc_auc_score(first, scores[:, 0]), abs=1e-12)


def test_weights_are_repeated_items_and_a_class_without_items_is_left_out():
    labels, scores, _ = drawn(60, digits=2)
    times = np.random.default_rng(1).integers(0, 4, (3, 60))
    found = macro_area(labels, scores, times.astype(float))
    for row, each in zip(times, found, strict=True):
        assert each == pytest.approx(macro_area(np.repeat(labels, row), np.repeat(scores, row, axis=0))[0], abs=1e-12)
    labels, scores, _ = drawn(classes=4)
    padded = np.concatenate((scores, scores[:, :1]), axis=1)
    assert macro_area(labels, padded)[0] == macro_area(labels, scores)[0]
    assert area_shares(labels, padded) == pytest.approx(area_shares(labels, scores))
    assert np.isnan(macro_area(np.zeros(5, int), np.ones((5, 2)))[0])


def test_intervals_resample_owners_and_shares_give_the_same_ones():
    labels, scores, owners = drawn(600)
    low, high = interval(labels, scores, owners, np.random.default_rng(0))
    assert low < macro_area(labels, scores)[0] < high
    shares = area_shares(labels, scores)
    sums, counts = (np.bincount(owners, weights=each) for each in (shares, np.ones(600)))
    linear = mean_interval(sums, counts, np.random.default_rng(0))
    # The shares are exact to first order in the influence of an owner, of whom there are 30.
    assert linear == pytest.approx((low, high), abs=0.15 * (high - low))
    alone = interval(labels, scores, np.arange(600), np.random.default_rng(0))
    assert alone[1] - alone[0] < 0.8 * (high - low)
    assert np.isnan(interval(labels, scores, np.zeros(600), np.random.default_rng(0))).all()


def test_axes_are_principal_whatever_the_passes_and_features_are_partly_whitened(monkeypatch):
    def blocks(images):
        """Return means of blocks of pixels: coefficients that are quick to compute."""
        return torch.nn.functional.avg_pool2d(images.unsqueeze(1), 7).flatten(1)

    images = torch.rand(40, 28, 28, generator=torch.Generator().manual_seed(0))
    axes = fit_axes(blocks, images, 10)
    found = axes.components(images)
    assert found.mean(dim=0).abs().max() < 1e-6
    assert torch.allclose(found.T @ found / 40, torch.diag(axes.variances), atol=1e-6)
    assert (axes.variances.diff() <= 0).all()
    features = axes.scaled(found)
    assert torch.allclose(features, unit(found / axes.variances.sqrt() ** WHITENING), atol=1e-6)
    assert torch.allclose(features.norm(dim=1), torch.ones(40))
    monkeypatch.setattr("papers.complex_dp.encoder.AT_ONCE", 7)
    parts = fit_axes(blocks, images, 10)
    assert torch.allclose(axes.variances, parts.variances, atol=1e-6)
    assert torch.allclose(found, parts.components(images), atol=1e-4)
