r"""Membership inference on released rows: decide whether one person's contribution was mixed into them.

The attacker knows the person's contribution c, all public constants, and optionally the contributions of the others.
The attack treats the sum of the others in a row as normal. Let s be a row times its divisor m, and let
:math:`\nu, \Sigma` be the mean and the covariance of the others' sum plus noise. The person shifts s by c with chance
q, so the likelihood ratio of a row is

.. math:: 1 - q + q \exp\big( (s - \nu)^T \Sigma^{-1} c - \tfrac{1}{2} c^T \Sigma^{-1} c \big).

The score of a release is the logarithm of the product over its rows. If nobody else contributes, no attack is better,
and its errors lie on the trade-off curve of the accountant. If others contribute, the attack is close to the best as
long as a row mixes many people.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zetadp.accounting.kinds import sampled_loss


@dataclass(frozen=True)
class RowAttack:
    """An attack on the rows of one release, or of several independent releases.

    Attributes
    ----------
    target
        Contribution of the person, shape (dimension,).
    rate
        Chance q that a person is in a row that is open to them.
    mixed
        The divisor m of rows.
    deviation
        Standard deviation of the noise on sums, before the division by m.
    others
        Contributions of the other people, which the attacker knows, shape (person, dimension). None if nobody else
        contributes.
    """

    target: Tensor
    rate: float
    mixed: float
    deviation: float
    others: Tensor | None = None

    def scores(self, rows: Tensor) -> np.ndarray:
        """Return the log-likelihood ratio of each release, shape (release,).

        Parameters
        ----------
        rows
            Rows that are open to the person, shape (release, row, dimension).
        """
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
        projections = (rows.double() * self.mixed - centre) @ seen - size / 2
        return np.asarray(sampled_loss(projections.numpy(), self.rate).sum(axis=1))
