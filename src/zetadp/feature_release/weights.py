r"""Rows that mix with random weights: RW-Mix, for comparison with the mean of `zetadp.feature_release.mixture`.

Li, Cao and Yao (arXiv:2202.06467, Section 3) draw the weights of a row from a Dirichlet law and clip them to
:math:`C_w`. Weights that add up to one depend on how many people are drawn: one more person changes everybody's weight,
and :math:`C_w C` does not bound what a row changes by. So weights are drawn for each person independently here: Gamma
variables with mean 1/m, whose shares of their sum have the Dirichlet law, clipped to :math:`C_w` and not rescaled.

One person then moves a row by at most :math:`C_w C`. A row with a smaller weight is a row with the largest one, shrunk
and given more noise, so the Poisson-sampled Gaussian with sensitivity :math:`C_w C` accounts for it. At equal
guarantee the noise is :math:`m C_w \ge 1` times that of the mean, whose weights are all 1/m. Nothing in the pipeline
mixes in this way, since it never helped (docs/release_experiments.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from zetadp.validation import positive


@dataclass(frozen=True)
class RandomWeights:
    """A law of weights.

    Attributes
    ----------
    mixed
        People expected in a row, m.
    concentration
        Shape of the Gamma law, which is the Dirichlet law's alpha; infinite for equal weights.
    most
        What weights are clipped to, in units of 1/m: :math:`m C_w`, at least one.
    """

    mixed: float
    concentration: float
    most: float

    def __post_init__(self) -> None:
        """Refuse laws that are none, and clips below the mean."""
        positive(mixed=self.mixed)
        if not self.concentration > 0:
            raise ValueError(f"Expected concentration > 0, found {self.concentration}.")
        if not 1 <= self.most < math.inf:
            raise ValueError(f"Expected weights clipped to at least 1/m, and finite, found {self.most}/m.")

    def drawn(self, number: int, random: np.random.Generator) -> np.ndarray:
        """Return so many independent weights, none above `most` / m."""
        if self.concentration == math.inf:
            return np.full(number, 1 / self.mixed)
        weights = random.gamma(self.concentration, 1 / self.concentration, number)
        found: np.ndarray = np.minimum(weights, self.most) / self.mixed
        return found

    def rows(self, vectors: Tensor, number: int, noise_multiplier: float, random: np.random.Generator) -> Tensor:
        """Return released rows, with seeded draws and noise: a simulation that protects nobody.

        Parameters
        ----------
        vectors
            What people contribute, of norm at most one, shape (person, dimension).
        number
            How many rows.
        noise_multiplier
            Of the Poisson-sampled Gaussian with rate m / N that accounts for every row.
        random
            Generator of draws, weights and noise.
        """
        chosen = random.random((number, len(vectors))) < self.mixed / len(vectors)
        row, person = np.nonzero(chosen)
        mixing = csr_matrix((self.drawn(len(row), random), (row, person)), chosen.shape)
        noise = random.standard_normal((number, vectors.shape[1]))
        found = mixing @ vectors.double().numpy() + noise_multiplier * self.most / self.mixed * noise
        return torch.from_numpy(found).float()
