from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zetadp.nn.activations import conj_mish, mish
from zetadp.nn.stacked import ordinary_operations

KINDS = {
    "mish": mish,
    "conj": conj_mish,
    "pooled": partial(mish, pooled=True),
    "pooled conj": partial(conj_mish, pooled=True),
}


def random(*shape: int, seed: int = 0, scale: float = 3.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return scale * torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def value_and_gradient(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    out = f(x)
    direction = random(*out.shape, seed=1, dtype=x.dtype)
    return out.detach(), torch.autograd.grad((out * direction).sum(), [x])[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 5e-6)])
@settings(max_examples=25)
@given(
    images=st.integers(0, 5),
    channels=st.integers(1, 3),
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    scale=st.sampled_from([0.1, 3.0, 30.0]),
    seed=st.integers(0, 999),
)
def test_values_and_gradients_are_those_of_ordinary_operations(
    kind, dtype, tolerance, images, channels, rows, columns, scale, seed
):
    x = random(images, 2 * channels, 2 * rows, 2 * columns, seed=seed, scale=scale, dtype=dtype)
    with ordinary_operations():
        plain = value_and_gradient(KINDS[kind], x)
    for found, expected in zip(value_and_gradient(KINDS[kind], x), plain, strict=True):
        torch.testing.assert_close(found, expected, atol=tolerance * scale, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_values_far_to_the_left_keep_their_digits(dtype):
    """There Mish is nearly x exp(x); a difference of numbers near one would keep none of its digits."""
    x = torch.linspace(-60, -10, 101, dtype=dtype).view(1, -1)
    value, slope = torch.func.vjp(mish, x)
    exact = x.double() * x.double().exp()
    torch.testing.assert_close(value.double(), exact, rtol=1e-4, atol=0)
    (gradient,) = slope(torch.ones_like(x))
    torch.testing.assert_close(gradient.double(), (1 + x.double()) * x.double().exp(), rtol=1e-4, atol=0)
