"""Starting weights, drawn from an explicit generator."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from zetadp.nn.layers import Conv2d, Linear
from zetadp.nn.low_rank import LowRankConv2d


@torch.no_grad()
def initialise(model: nn.Module, generator: np.random.Generator) -> None:
    """Draw the weights of every linear map by He's rule; leave biases, scales and shifts as they are.

    A complex weight gets real and imaginary part from ``N(0, 1 / fan_in)`` each, so that its total variance is
    ``2 / fan_in``, the value that He et al. (doi:10.1109/ICCV.2015.123) give a real one. Of low-rank updates the inner
    factor is drawn, after all else, so that the network that they update is that without them; the outer stays zero.
    """
    maps = [module for module in model.modules() if isinstance(module, (Conv2d, Linear))]
    updated = [module for module in maps if isinstance(module, LowRankConv2d)]
    factors = {factor for module in updated for factor in (module.inner, module.outer)}
    for module in [*(module for module in maps if module not in factors), *(module.inner for module in updated)]:
        weight = module.weight
        fan_in = weight[0].numel()
        parts = torch.view_as_real(weight) if weight.is_complex() else weight
        spread = math.sqrt((1 if weight.is_complex() else 2) / fan_in)
        draw = generator.standard_normal(parts.shape, dtype=np.float32) * np.float32(spread)
        parts.copy_(torch.from_numpy(draw))
