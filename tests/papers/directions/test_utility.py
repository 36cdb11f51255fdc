"""The network of the comparison of directions is differentiated and clipped by person in one pass."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from papers.directions import compare_utility

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("bound", [0.3, math.inf])
def test_the_sum_is_that_of_single_gradients_clipped_by_themselves(bound):
    generator = torch.Generator().manual_seed(4)
    networks = 0.3 * torch.randn(2, compare_utility.DIMENSION, generator=generator)
    weights = networks[1:].clone().requires_grad_()
    images = torch.randn(6, compare_utility.UNITS[0], generator=generator) * torch.arange(1, 7)[:, None]
    labels, wanted, norms = torch.arange(6), torch.zeros(compare_utility.DIMENSION), []
    for image, label in zip(images, labels, strict=True):
        loss = functional.cross_entropy(compare_utility.scores(weights, image[None])[1][0], label[None])
        (gradient,) = torch.autograd.grad(loss, weights)
        norms.append(float(gradient.norm()))
        wanted += gradient[0] * min(1.0, bound / norms[-1])
    assert min(norms) > 0.3
    found = compare_utility.clipped_sums(networks, images, labels, torch.tensor([1.0, bound]))
    torch.testing.assert_close(found[1], wanted, rtol=1e-4, atol=1e-5)


def test_each_pair_has_the_same_noise_or_less_true_epsilon():
    for pair in (75, 400):
        spent = {
            name: compare_utility.true_epsilon(name, pair) for name in ("direction", "gaussian", "printed_direction")
        }
        assert 0.99 * spent["gaussian"] < spent["direction"] <= spent["gaussian"] * 1.001 < spent["printed_direction"]
