from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from zetadp.nn.layers import Conv2d, Linear
from zetadp.nn.stacked import stack, unstack

PRECISIONS = [(torch.complex64, 1e-5), (torch.complex128, 1e-12)]


def random(*shape: int, dtype: torch.dtype = torch.complex128, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_stacked_convolution_is_the_complex_one(dtype, tolerance, stride, kernel):
    layer = Conv2d(3, 4, kernel, stride=stride, dtype=dtype)
    layer.weight.data = random(*layer.weight.shape, dtype=dtype)
    z = random(2, 3, 7, 6, dtype=dtype, seed=1)
    expected = functional.conv2d(z, layer.weight, stride=stride, padding=kernel // 2)
    torch.testing.assert_close(unstack(layer(stack(z))), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_stacked_affine_map_is_the_complex_one(dtype, tolerance):
    layer = Linear(5, 3, dtype=dtype)
    layer.weight.data, layer.bias.data = random(3, 5, dtype=dtype), random(3, dtype=dtype, seed=2)
    z = random(4, 5, dtype=dtype, seed=1)
    expected = z @ layer.weight.mT + layer.bias
    torch.testing.assert_close(unstack(layer(stack(z))), expected, atol=tolerance, rtol=tolerance)
