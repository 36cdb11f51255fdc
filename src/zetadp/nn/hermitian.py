r"""Hermitian matrices as real vectors of the same length.

A Hermitian matrix of side d has d real numbers on its diagonal and d(d-1)/2 complex ones above it, each of which stands
twice in the matrix. Scaled by :math:`\sqrt 2`, the numbers above the diagonal give a vector whose Euclidean norm is the
Frobenius norm of the matrix. So one clipping norm bounds both, and equal noise of variance :math:`s^2` on every
coordinate of the vector is noise of variance :math:`s^2` on the diagonal and :math:`s^2/2` in each part above it,
mirrored: the one place where half the variance in each part is right, because every part counts twice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def to_vector(matrices: Tensor) -> Tensor:
    """Return Hermitian matrices, shape (..., d, d), as real vectors of shape (..., d * d) and of the same norm.

    Only the diagonal's real part and what is above it are read: the diagonal first, then pairs of real and imaginary
    part row by row.
    """
    side = matrices.shape[-1]
    row, column = torch.triu_indices(side, side, offset=1, device=matrices.device)
    diagonal = matrices.diagonal(dim1=-2, dim2=-1).real
    above = torch.view_as_real(matrices[..., row, column]).flatten(-2)
    return torch.cat((diagonal, math.sqrt(2) * above), dim=-1)


def to_matrix(vector: Tensor) -> Tensor:
    """Return the Hermitian matrix of shape (d, d) that a real vector of shape (d * d,) stands for."""
    side = math.isqrt(len(vector))
    if side**2 != len(vector):
        raise ValueError(f"Expected as many numbers as a square matrix has, found {len(vector)}.")
    row, column = torch.triu_indices(side, side, offset=1, device=vector.device)
    pairs = vector[side:].reshape(-1, 2) / math.sqrt(2)
    above = torch.complex(pairs[:, 0], pairs[:, 1])
    matrix = torch.diag(torch.complex(vector[:side], torch.zeros_like(vector[:side])))
    matrix[row, column] = above
    matrix[column, row] = above.conj()
    return matrix
