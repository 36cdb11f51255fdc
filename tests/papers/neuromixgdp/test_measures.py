"""Measures of features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from papers.neuromixgdp.measures import distance_of_mixed, neural_collapse

CLASSES, COMPONENTS = 4, 7


def people(number: int, spread: float, kind=torch.complex128) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(number) % CLASSES
    means = torch.randn(CLASSES, COMPONENTS, dtype=kind, generator=random)
    return 0.1 * (means[labels] + spread * torch.randn(number, COMPONENTS, dtype=kind, generator=random)), labels


@pytest.mark.parametrize("kind", [torch.float64, torch.complex128])
def test_collapse_is_what_its_definition_says(kind):
    x, labels = people(400, 0.5, kind)
    means = torch.stack([x[labels == number].mean(dim=0) for number in range(CLASSES)])
    away, between = x - means[labels], means - means.mean(dim=0)
    # Hermitian covariances written out, and a pseudo-inverse that knows nothing of rank.
    within = torch.einsum("ni,nj->ij", away, away.conj()) / len(x)
    across = torch.einsum("ki,kj->ij", between, between.conj()) / CLASSES
    expected = torch.trace(within @ torch.linalg.pinv(across, rtol=1e-9)).real / CLASSES
    assert neural_collapse(x, labels) == pytest.approx(float(expected), rel=1e-6)
    # Neither a phase nor any other unitary map changes it.
    unitary = torch.linalg.qr(torch.randn(COMPONENTS, COMPONENTS, dtype=kind))[0]
    assert neural_collapse(x @ unitary, labels) == pytest.approx(float(expected), rel=1e-6)


def test_collapsed_features_measure_zero_and_spread_ones_more():
    x, labels = people(400, 0.0)
    assert neural_collapse(x, labels) == pytest.approx(0, abs=1e-12)
    assert neural_collapse(*people(400, 0.1)) < neural_collapse(*people(400, 0.5))


def test_features_are_clipped_before_they_are_measured():
    x, labels = people(400, 0.5)
    norms = x.norm(dim=1, keepdim=True)
    assert neural_collapse(100 * x, labels) == pytest.approx(neural_collapse(x / norms, labels))
    assert neural_collapse(100 * x, labels) != pytest.approx(neural_collapse(x, labels), rel=0.01)


def test_the_distance_of_mixed_rows_is_the_least_to_another_label():
    # On a line, the mean of classes 0 and 2 falls upon class 1; in corners of a simplex, on nobody.
    line = torch.tensor([[-1.0], [0.0], [1.0]])
    labels = torch.arange(3)
    assert distance_of_mixed(line, labels, 200, np.random.default_rng(0)) == 0
    corners = torch.eye(3, dtype=torch.complex64)
    assert distance_of_mixed(corners, labels, 200, np.random.default_rng(0)) == pytest.approx(0.5**0.5)
    # Rows of one class are compared with the others alone.
    pair = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = distance_of_mixed(pair, torch.tensor([0, 0, 1]), 200, np.random.default_rng(0))
    assert found == pytest.approx(0.5**0.5)
