from __future__ import annotations

import numpy as np
import pytest
import torch

from zetadp.nn.closed_form import to_matrix, to_vector


def hermitian(count: int, side: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(count, side, side, dtype=torch.complex128, generator=generator)
    return draw + draw.mH


@pytest.mark.parametrize("side", [1, 2, 5])
def test_the_vector_has_the_length_of_the_matrix_and_keeps_inner_products(side):
    one, other = hermitian(20, side), hermitian(20, side, seed=1)
    assert to_vector(one).shape == (20, side**2)
    torch.testing.assert_close(to_vector(one).norm(dim=1), torch.linalg.matrix_norm(one))
    inner = (one.conj() * other).sum(dim=(1, 2))
    torch.testing.assert_close((to_vector(one) * to_vector(other)).sum(dim=1), inner.real)


def test_the_matrix_comes_back():
    for matrix in hermitian(5, 4):
        torch.testing.assert_close(to_matrix(to_vector(matrix)), matrix)


def test_only_lengths_of_square_matrices_are_taken():
    with pytest.raises(ValueError, match="square matrix"):
        to_matrix(torch.zeros(5))


def test_equal_noise_on_the_vector_has_half_the_variance_in_each_part_off_the_diagonal():
    side, draws, deviation = 3, 20_000, 2.0
    noise = deviation * np.random.default_rng(0).standard_normal((draws, side**2))
    matrices = torch.stack([to_matrix(row) for row in torch.from_numpy(noise)])
    torch.testing.assert_close(matrices, matrices.mH)
    row, column = torch.triu_indices(side, side, offset=1)
    diagonal, above = matrices.diagonal(dim1=1, dim2=2), matrices[:, row, column]
    assert diagonal.imag.abs().max() == 0
    parts = torch.cat((diagonal.real, above.real, above.imag), dim=1).numpy()
    wanted = deviation**2 * np.diag([1.0] * 3 + [0.5] * 6)
    # Six standard errors of an empirical variance or covariance, at most that of the largest.
    assert np.abs(parts.T @ parts / draws - wanted).max() < 6 * deviation**2 * (2 / draws) ** 0.5
