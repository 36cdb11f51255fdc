from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_builder import as_dtype

from zetadp.nn.normalisation import ComplexGroupNorm, GroupNorm
from zetadp.nn.stacked import stack, unstack


def norm(groups: int, channels: int, dtype: torch.dtype = torch.float64) -> ComplexGroupNorm:
    """Return a layer without scale and shift: whitening alone."""
    layer = ComplexGroupNorm(groups, channels)
    layer.scale.data.fill_(1)
    as_dtype(layer, dtype)
    return layer


def correlated(seed: int, images: int, channels: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn(2, images, channels, rows, columns, dtype=torch.float64, generator=generator)
    mix = torch.randn(2, 2, dtype=torch.float64, generator=generator) + torch.eye(2)
    real, imaginary = torch.einsum("ij,j...->i...", mix, parts)
    return torch.complex(real, imaginary) + complex(*torch.randn(2, generator=generator).tolist())


VALUES = torch.tensor([1 + 1j, 2 - 1j, -1 + 0.5j, -2j], dtype=torch.complex128).view(1, 1, 2, 2)


def test_whitening_vector_of_the_specification():
    printed = torch.tensor([0.463669 + 1.032663j, 1.137460 - 0.377194j, -1.124116 + 0.560098j, -0.477013 - 1.215568j])
    found = unstack(norm(1, 1)(stack(VALUES))).flatten()
    torch.testing.assert_close(found.to(torch.complex64), printed, atol=6e-7, rtol=0)


@settings(max_examples=30)
@given(seed=st.integers(0, 9999), groups=st.sampled_from([1, 2, 4]))
def test_covariance_of_every_image_and_group_becomes_the_identity(seed, groups):
    layer = norm(groups, 4)
    layer.epsilon = 0.0
    out = unstack(layer(stack(correlated(seed, 3, 4, 5, 3)))).reshape(3 * groups, -1)
    for group in out:
        assert abs(group.mean()) < 1e-10
        covariance = torch.cov(torch.stack((group.real, group.imag)))
        torch.testing.assert_close(covariance, torch.eye(2, dtype=torch.float64), atol=1e-8, rtol=0)


def test_the_scale_starts_as_a_rotation_by_45_degrees_and_the_shift_at_zero():
    layer = ComplexGroupNorm(2, 4)
    torch.testing.assert_close(
        layer.scale.detach(), torch.full((4,), complex(math.cos(math.pi / 4), math.sin(math.pi / 4)))
    )
    assert not layer.shift.any()


RAMP = torch.linspace(-1, 1, 16).view(1, 1, 4, 4)
DEGENERATE = {
    "circular": torch.tensor([1, 1j, -1, -1j], dtype=torch.complex64).repeat(4).view(1, 1, 4, 4),
    "constant": torch.full((1, 1, 4, 4), 3 - 2j),
    "zero": torch.zeros(1, 1, 4, 4, dtype=torch.complex64),
    "real": torch.complex(RAMP, torch.zeros_like(RAMP)),
    "on a line": torch.complex(RAMP, RAMP),
    "on a line, large": torch.complex(1e3 * RAMP, 1e3 * RAMP),
    # The determinant of the covariance is nothing but rounding, of either sign.
    "on lines of every slope, large": torch.complex(
        1e3 * RAMP.expand(200, -1, -1, -1), torch.linspace(-3e3, 3e3, 200).view(-1, 1, 1, 1) * RAMP
    ),
}


@pytest.mark.parametrize("kind", DEGENERATE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degenerate_groups_have_finite_values_and_gradients(kind, dtype):
    layer = as_dtype(ComplexGroupNorm(1, 1), dtype)
    x = stack(DEGENERATE[kind]).to(dtype).requires_grad_()
    out = layer(x)
    gradients = torch.autograd.grad(out[..., ::3].square().sum() + out[:, :, 1].sum(), [x, *layer.parameters()])
    assert all(
        torch.view_as_real(t).isfinite().all() if t.is_complex() else t.isfinite().all() for t in (out, *gradients)
    )
    # Rounding in a large group must not be taken for variance and blown up.
    assert out.abs().max() < 5


@pytest.mark.parametrize("kind", [ComplexGroupNorm, GroupNorm])
def test_groups_must_divide_channels(kind):
    with pytest.raises(ValueError, match="groups=3, channels=4"):
        kind(3, 4)
