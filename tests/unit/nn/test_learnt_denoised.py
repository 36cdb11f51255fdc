"""A head of released rows is learnt as if their features had no noise, where its variance is known."""

from __future__ import annotations

import pytest
import torch

from zetadp.nn.heads import learnt_head
from zetadp.nn.mixture import Labelled, RowExamples

ROWS, COMPONENTS, CLASSES = 6000, 5, 3


def rows(deviation: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features under noise, labels that follow from them without it, and the weights that do."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(CLASSES, COMPONENTS, generator=generator)
    clean = torch.randn(ROWS, COMPONENTS, generator=generator) + 2
    noise = deviation * torch.randn(ROWS, COMPONENTS, generator=generator)
    return clean + noise, clean @ weights.T + 0.5, weights


@pytest.mark.parametrize("deviation", [0.5, 1.0])
def test_the_weights_are_those_of_features_without_noise(deviation):
    seen, labels, weights = rows(deviation)
    found, bias = learnt_head(RowExamples(torch.complex(seen, torch.zeros_like(seen)), labels, deviation**2))
    assert not found.imag.any()
    assert (found.real - weights).norm() < 0.1 * weights.norm()
    torch.testing.assert_close(bias.real, torch.full((CLASSES,), 0.5), atol=0.4, rtol=0)
    # Least squares that does not know of the noise shrinks the weights by 1 / (1 + deviation^2).
    assert found.real.norm() > 1.1 * weights.norm() / (1 + deviation**2)


def test_complex_features_get_complex_weights():
    seen, labels, weights = rows(0.5)
    other = 0.5 * torch.randn(seen.shape, generator=torch.Generator().manual_seed(2))
    found, _ = learnt_head(RowExamples(torch.complex(other, seen), labels, 0.25))
    assert (-found.imag - weights).norm() < 0.15 * weights.norm()


def test_the_noise_of_features_is_that_of_the_row_over_their_scale():
    mixture = Labelled(4, CLASSES, COMPONENTS, 2.0, 1.0, True, share_of_labels=0.5, real=True)
    row = torch.zeros(4, mixture.dimension)
    row[:, 0] = 0.1  # as large as the noise
    found = mixture.examples(row, 0.1)
    assert found.noise == pytest.approx(float(found.features[0, 0].real) ** 2)
    assert mixture.examples(row).noise == 0
