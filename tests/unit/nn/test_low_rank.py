from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_builder import CLASSES, NETWORKS, SIZE, network, patients

from zetadp.base.parameters import Layout
from zetadp.nn.layers import Conv2d, LowRankConv2d, updates
from zetadp.nn.models import NetworkSettings, build

UPDATED = ["complex low rank", "real low rank"]


@settings(max_examples=30)
@given(
    inputs=st.integers(1, 4),
    outputs=st.integers(1, 4),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 3),
    rank=st.integers(1, 3),
    dtype=st.sampled_from([torch.complex128, torch.float64]),
)
def test_it_convolves_with_the_sum_of_frozen_weight_and_product_of_factors(
    inputs, outputs, kernel, stride, rank, dtype
):
    random = torch.Generator().manual_seed(kernel)
    layer = LowRankConv2d(inputs, outputs, kernel, rank=rank, stride=stride, dtype=dtype)
    plain = Conv2d(inputs, outputs, kernel, stride=stride, dtype=dtype)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, dtype=dtype, generator=random)
    product = layer.outer.weight.flatten(1) @ layer.inner.weight.flatten(1)
    assert torch.linalg.matrix_rank(product) <= rank
    plain.weight.data = (layer.weight + product.view(layer.weight.shape)).detach()
    channels = inputs * (2 if dtype.is_complex else 1)
    images = torch.randn(2, channels, 7, 6, dtype=torch.float64, generator=random)
    torch.testing.assert_close(layer(images), plain(images))


@pytest.mark.parametrize("name", UPDATED)
def test_a_fresh_network_scores_to_the_bit_as_the_one_that_it_updates(name):
    plain = build(replace(NETWORKS[name], trained="all"), CLASSES, SIZE, np.random.default_rng(5))
    fresh = build(NETWORKS[name], CLASSES, SIZE, np.random.default_rng(5))
    images, _ = patients(1, 6, domain=NETWORKS[name].domain)
    assert torch.equal(fresh(images[0]), plain(images[0]))
    factors = [p for name, p in fresh.named_parameters() if ".inner." in name]
    assert len(factors) == 2 * NETWORKS[name].convolutions
    assert all(p.abs().min() > 0 for p in factors)
    # The first step moves the outer factor alone: the gradient of the inner one passes through it.
    fresh(images[0]).square().sum().backward()
    for key, parameter in fresh.named_parameters():
        if parameter.requires_grad:
            assert bool(parameter.grad.any()) == (".inner." not in key), key


@pytest.mark.parametrize("name", UPDATED)
def test_the_factors_are_what_a_network_has_besides_the_one_that_it_updates(name):
    plain, updated = network(replace(NETWORKS[name], trained="all")), network(NETWORKS[name])
    assert updated.state_dict().keys() == plain.state_dict().keys() | updates(updated).keys()
    assert not plain.state_dict().keys() & updates(updated).keys()
    assert not updates(plain)
    images, _ = patients(1, 3, domain=NETWORKS[name].domain)
    assert not torch.equal(updated(images[0]), plain(images[0]))
    without = {key: torch.zeros_like(value) for key, value in updates(updated).items()}
    updated.load_state_dict(plain.state_dict() | without)
    assert torch.equal(updated(images[0]), plain(images[0]))


@pytest.mark.parametrize("family", ["complex", "real"])
@pytest.mark.parametrize("trained", ["low_rank", "low_rank_outer"])
@pytest.mark.parametrize("rank", [1, 4])
def test_what_clipping_and_noise_see_is_the_factors_and_the_head(family, trained, rank):
    shape = NetworkSettings(family, widths=(8, 16), convolutions=2, head="pooled", groups=4)
    model = build(replace(shape, trained=trained, rank=rank), CLASSES, SIZE, np.random.default_rng(0))
    weights = [layer.weight for layer in model.blocks if isinstance(layer, Conv2d)]
    assert len(weights) == 4
    outputs, inputs = sum(len(w) for w in weights), sum(w[0].numel() for w in weights)
    width = len(weights[-1])
    expected = rank * outputs + CLASSES * (width + 1) + (rank * inputs if trained == "low_rank" else 0)
    assert Layout.of(model).dimension == expected * (2 if family == "complex" else 1)
    whole = Layout.of(build(shape, CLASSES, SIZE, np.random.default_rng(0))).dimension
    assert trained == "low_rank" or Layout.of(model).dimension < whole
