r"""Rows that mix people with random weights (RW-Mix), for comparison with the mean of `zetadp.nn.mixture`.

Li, Cao and Yao (arXiv:2202.06467, Section 3) draw the weights of a row from a Dirichlet distribution and clip them to
:math:`C_w`. These weights add up to one, so one more person changes the weights of everybody in the row. The change of
the row can then exceed :math:`C_w C`, the paper's bound. This module therefore draws the weight of each person
independently, from a Gamma distribution with mean 1/m. Weights are clipped to :math:`C_w` and not rescaled. (Gamma
variables divided by their sum follow the Dirichlet distribution.)

One person now changes a row by at most :math:`C_w C`. A person with a smaller weight is as well hidden as one with the
largest weight and more noise, so the Poisson-sampled Gaussian with sensitivity :math:`C_w C` bounds the privacy loss.
At an equal guarantee the noise is :math:`m C_w \ge 1` times that of the mean, whose weights are all 1/m. The pipeline
does not use random weights: they never helped (README.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from zetadp.base.validation import positive


@dataclass(frozen=True)
class RandomWeights:
    r"""A distribution of weights.

    Attributes
    ----------
    mixed
        Expected number m of people in a row.
    concentration
        Shape parameter of the Gamma distribution, which is the alpha of the Dirichlet distribution. Infinity gives
        equal weights.
    most
        Largest weight in units of 1/m, :math:`m C_w`; at least one.

    Raises
    ------
    ValueError
        If a setting is not positive, or if `most` is infinite or below one.
    """

    mixed: float
    concentration: float
    most: float

    def __post_init__(self) -> None:
        """Check every setting."""
        positive(mixed=self.mixed)
        if not self.concentration > 0:
            raise ValueError(f"Expected concentration > 0, found {self.concentration}.")
        if not 1 <= self.most < math.inf:
            raise ValueError(f"Expected weights clipped to at least 1/m, and finite, found {self.most}/m.")

    def drawn(self, number: int, random: np.random.Generator) -> np.ndarray:
        """Draw independent weights, shape (number,), none above `most` / m."""
        if self.concentration == math.inf:
            return np.full(number, 1 / self.mixed)
        weights = random.gamma(self.concentration, 1 / self.concentration, number)
        found: np.ndarray = np.minimum(weights, self.most) / self.mixed
        return found

    def rows(self, vectors: Tensor, number: int, noise_multiplier: float, random: np.random.Generator) -> Tensor:
        """Simulate released rows. Draws and noise come from a seed, so this protects nobody.

        Parameters
        ----------
        vectors
            Contributions of N people, of norm at most one, shape (person, dimension).
        number
            Number of rows.
        noise_multiplier
            Noise multiplier of the Poisson-sampled Gaussian with rate m / N, which accounts for every row.
        random
            Generator of draws, weights and noise.

        Returns
        -------
        float32, shape (number, dimension).
        """
        chosen = random.random((number, len(vectors))) < self.mixed / len(vectors)
        row, person = np.nonzero(chosen)
        mixing = csr_matrix((self.drawn(len(row), random), (row, person)), chosen.shape)
        noise = random.standard_normal((number, vectors.shape[1]))
        found = mixing @ vectors.double().numpy() + noise_multiplier * self.most / self.mixed * noise
        return torch.from_numpy(found).float()
