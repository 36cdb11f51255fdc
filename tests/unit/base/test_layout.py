from __future__ import annotations

import torch
from training_builder import NETWORKS, network

from zetadp.base.tensors import Layout
from zetadp.nn.models import NetworkSettings

MIXED = NetworkSettings(widths=(2, 4), convolutions=1, hidden=3, groups=2, activation="cardioid_per_channel")


def test_every_real_component_stands_in_the_vector_exactly_once():
    for settings in (*NETWORKS.values(), MIXED):
        model = network(settings)
        layout = Layout.of(model)
        vector = layout.flatten(dict(model.named_parameters()))
        numbers = [p.numel() * (2 if p.is_complex() else 1) for p in model.parameters() if p.requires_grad]
        assert vector.dtype == torch.float32
        assert vector.shape == (layout.dimension,) == (sum(numbers),)
        # Moving one place of the vector moves one component of one parameter.
        back = layout.unflatten(torch.arange(layout.dimension, dtype=torch.float64))
        parts = [torch.view_as_real(p) if p.is_complex() else p for p in back.values()]
        seen = torch.cat([part.flatten() for part in parts])
        assert sorted(seen.tolist()) == list(range(layout.dimension))


def test_frozen_parameters_are_left_out():
    model = network(MIXED)
    frozen, *rest = model.parameters()
    frozen.requires_grad_(requires_grad=False)
    assert Layout.of(model).dimension == sum(p.numel() * (2 if p.is_complex() else 1) for p in rest)
