r"""Membership inference on released rows: whether one person's contribution was among those that were mixed.

The attacker knows the person's contribution c, all public constants, and what can be known of the others. The sum of
the others in a row is taken as normal; with s a row times its divisor m, and :math:`\nu, \Sigma` mean and covariance of
others and noise together, a row moves by c with chance q, so its likelihood ratio is

.. math:: 1 - q + q \exp\big( (s - \nu)^T \Sigma^{-1} c - \tfrac{1}{2} c^T \Sigma^{-1} c \big),

and the score of a release is the logarithm of the product over its rows. Where nobody else contributes anything this is
the best attack there is, and its errors lie on the trade-off curve of the accountant. Against people who do contribute
it is close to the best, as far as many of them are in a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zetadp.privacy.sampling import sampled_loss


@dataclass(frozen=True)
class RowAttack:
    """An attack on the rows of one release, or of many independent ones.

    Attributes
    ----------
    target
        What the person contributes, shape (dimension,).
    rate
        Chance of every person to be in a row, q, where rows are open to them.
    mixed
        The divisor m of rows.
    deviation
        Standard deviation of the noise on sums, before the division.
    others
        Contributions of the others that the attacker knows, shape (person, dimension); None for nobody.
    """

    target: Tensor
    rate: float
    mixed: float
    deviation: float
    others: Tensor | None = None

    def scores(self, rows: Tensor) -> np.ndarray:
        """Return one score a release, for rows of shape (release, row, dimension) that are open to the person."""
        dimension = len(self.target)
        centre = torch.zeros(dimension, dtype=torch.float64)
        covariance = self.deviation**2 * torch.eye(dimension, dtype=torch.float64)
        if self.others is not None:
            known = self.others.double()
            centre = self.rate * known.sum(dim=0)
            covariance = covariance + self.rate * (1 - self.rate) * known.T @ known
        target = self.target.double()
        seen = torch.linalg.solve(covariance, target)
        size = float(target @ seen)
        found = (rows.double() * self.mixed - centre) @ seen - size / 2
        return np.asarray(sampled_loss(found.numpy(), self.rate).sum(axis=1))
