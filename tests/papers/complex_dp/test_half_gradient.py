"""Half gradients (Ziller et al., eq. 13) save no noise: they are whole ones with twice the clip, divided by two."""

from __future__ import annotations

import pytest
import torch

from zetadp.accounting.seeded_noise import noisy_mean
from zetadp.base.randomness import Purpose, stream

BOUND, SIGMA, EXPECTED = 0.7, 1.3, 5


def released(gradients: torch.Tensor, bound: float) -> torch.Tensor:
    """Return the clipped sum with the noise of a bound, divided by the expected number; real parts, then imaginary."""
    factors = (bound / gradients.abs().square().sum(dim=1).sqrt()).clamp(max=1)
    total = torch.view_as_real((gradients * factors[:, None]).sum(dim=0)).flatten()
    return noisy_mean(total, SIGMA * bound, EXPECTED, stream(0, Purpose.NOISE))


def test_a_half_gradient_is_a_whole_one_with_twice_the_clip():
    random = torch.Generator().manual_seed(0)
    whole = (
        torch.randn(EXPECTED, 9, dtype=torch.complex64, generator=random) * torch.tensor([0.01, 0.1, 1, 3, 9])[:, None]
    )
    assert torch.allclose(2 * released(whole / 2, BOUND), released(whole, 2 * BOUND), atol=1e-6)


@pytest.mark.parametrize("z", [1 + 2j, -0.3 + 0.1j])
def test_pytorch_returns_twice_the_gradient_of_the_paper(z):
    weight = torch.tensor(z, dtype=torch.complex128, requires_grad=True)
    (weight * weight.conj()).real.backward()
    assert weight.grad is not None
    assert complex(weight.grad) == pytest.approx(2 * z)  # eq. 13 gives z
