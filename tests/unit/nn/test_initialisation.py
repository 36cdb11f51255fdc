from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from zetadp.nn.layers import Conv2d, Linear
from zetadp.nn.models import initialise


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (Conv2d(20, 100, dtype=torch.complex64), 180),
        (Conv2d(20, 100, dtype=torch.float32), 180),
        (Linear(200, 100, dtype=torch.complex64), 200),
        (Linear(200, 100, dtype=torch.float32), 200),
    ],
)
def test_total_variance_of_a_weight_is_two_over_fan_in(layer, fan_in):
    initialise(layer, np.random.default_rng(0))
    weight = layer.weight.detach().flatten()
    parts = [weight.real, weight.imag] if weight.is_complex() else [weight]
    error = 5 * math.sqrt(2 / weight.numel())
    for part in parts:
        variance = float(part.double().square().mean())
        assert variance == pytest.approx(2 / fan_in / len(parts), rel=error)
        assert abs(part.mean()) < 5 * math.sqrt(variance / part.numel())
    if weight.is_complex():
        correlation = torch.corrcoef(torch.stack(parts))[0, 1]
        assert abs(correlation) < 5 / math.sqrt(weight.numel())
    if isinstance(layer, Linear):
        assert not layer.bias.any()
