r"""Class means and covariances, released once with noise: the simplest rival of mixed rows.

Each person contributes three parts to the sums of one class: a one, the features x, and the products :math:`u u^T` of
the features u in a few public directions. The three parts share a squared norm of one, so a contribution has norm at
most one. One Gaussian release with multiplier :math:`\sigma` is therefore exactly :math:`1/\sigma`-GDP. Neighbours
differ in one person whose contribution is replaced by zero. The class of a person is private too. Everything computed
from the release, such as samples for training a head, is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zetadp.nn.heads import RowExamples

SHARE_OF_COUNTS = 0.01
"""Share of the squared norm for the one that counts people. It can be small: classes have thousands of people."""


@dataclass(frozen=True)
class ClassMoments:
    """A release of class means and, optionally, covariances, and samples from it.

    Attributes
    ----------
    classes
        Number of classes.
    directions
        Public directions in which covariances are released, shape (component, direction). None releases means alone.
    share_of_covariances
        Share of the squared norm for the products, if covariances are released.
    """

    classes: int
    directions: Tensor | None = None
    share_of_covariances: float = 0.5

    @property
    def _scales(self) -> tuple[float, float, float]:
        """Factors of the one, the features, and the products; their squares add up to one."""
        second = self.share_of_covariances if self.directions is not None else 0.0
        return math.sqrt(SHARE_OF_COUNTS), math.sqrt(1 - SHARE_OF_COUNTS - second), math.sqrt(second)

    def contributions(self, features: Tensor) -> Tensor:
        """Return each person's contribution to the sums of their class, shape (person, number).

        Every contribution has norm at most one, up to rounding.

        Parameters
        ----------
        features
            Real features of shape (person, component). They are clipped to norm one.
        """
        counted, mean, second = self._scales
        features = clipped(features)
        parts = [torch.full((len(features), 1), counted), mean * features]
        if self.directions is not None:
            parts.append(second * _products(clipped(features @ self.directions)))
        return torch.cat(parts, dim=1)

    def released(self, features: Tensor, labels: Tensor, mu: float, random: np.random.Generator) -> Tensor:
        """Release noisy sums over all people, with mu-GDP.

        Parameters
        ----------
        features, labels
            Real features of shape (person, component), and classes from 0 of shape (person,).
        mu
            The guarantee. Infinity adds no noise.
        random
            Generator of the noise. A seeded generator protects nobody.

        Returns
        -------
        float64, shape (class, number).

        Raises
        ------
        ValueError
            If mu is not positive.
        """
        return noisy_sums(self.contributions, features, labels, self.classes, mu, random)

    def means(self, sums: Tensor) -> Tensor:
        """Return class means from released sums, shape (class, component)."""
        size = sums.shape[1] - 1 if self.directions is None else len(self.directions)
        return sums[:, 1 : 1 + size] / self._scales[1] / self._counts(sums)[:, None]

    def covariances(self, sums: Tensor) -> Tensor:
        """Return the covariance of each class from released sums, shape (class, direction, direction).

        Eigenvalues that noise made negative are set to zero.

        Raises
        ------
        ValueError
            If the release has no covariances.
        """
        if self.directions is None:
            raise ValueError("Expected public directions, in which covariances are released, found none.")
        size, side = self.directions.shape
        second = torch.zeros(self.classes, side, side, dtype=sums.dtype)
        row, column = torch.triu_indices(side, side)
        second[:, row, column] = sums[:, 1 + size :] / _weights(side).to(sums.dtype) / self._scales[2]
        second = second + second.triu(1).mT
        means = self.means(sums) @ self.directions.to(sums.dtype)
        estimates = second / self._counts(sums)[:, None, None] - means[:, :, None] * means[:, None, :]
        values, axes = torch.linalg.eigh(estimates)
        repaired: Tensor = axes @ (values.clamp_min(0)[:, :, None] * axes.mT)
        return repaired

    def samples(self, sums: Tensor, number: int, random: np.random.Generator) -> RowExamples:
        """Draw samples of each class from normal distributions with the released moments.

        Parameters
        ----------
        sums
            The result of `released`.
        number
            Number of samples of each class.
        random
            Generator of the samples.
        """
        means = self.means(sums)
        samples = means.repeat_interleave(number, dim=0)
        if self.directions is not None:
            values, axes = torch.linalg.eigh(self.covariances(sums))
            roots = axes * values.clamp_min(0).sqrt()[:, None]
            normal = torch.from_numpy(random.standard_normal((self.classes, number, self.directions.shape[1])))
            # The pseudo-inverse leads back to features, because directions need not be orthonormal.
            back = torch.linalg.pinv(self.directions.double())
            samples = samples + (normal @ roots.mT @ back).flatten(0, 1)
        labels = torch.eye(self.classes).repeat_interleave(number, dim=0)
        return RowExamples(samples.to(torch.complex64), labels)

    def _counts(self, sums: Tensor) -> Tensor:
        return (sums[:, 0] / self._scales[0]).clamp_min(1)


def nearest_mean(means: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the head that chooses the class with the nearest mean.

    Parameters
    ----------
    means
        Class means, shape (class, component).
    """
    return means, -0.5 * means.square().sum(dim=1)


def noisy_sums(
    contributions: Callable[[Tensor], Tensor],
    features: Tensor,
    labels: Tensor,
    classes: int,
    mu: float,
    random: np.random.Generator,
) -> Tensor:
    """Release the noisy sum of contributions of each class, with mu-GDP.

    Parameters
    ----------
    contributions
        Returns one vector per person, of norm at most one, for features of shape (person, component).
    features, labels, classes
        Features of shape (person, component), classes from 0 of shape (person,), and the number of classes.
    mu, random
        Same as for `ClassMoments.released`.

    Returns
    -------
    float64, shape (class, number).

    Raises
    ------
    ValueError
        If mu is not positive.
    """
    if not mu > 0:
        raise ValueError(f"Expected mu > 0, found {mu}.")
    sums = torch.zeros(classes, contributions(features[:1]).shape[1], dtype=torch.float64)
    for rows, classes_of_rows in zip(features.split(4096), labels.split(4096), strict=True):  # type: ignore[no-untyped-call]
        sums.index_add_(0, classes_of_rows, contributions(rows).double())
    return sums + torch.from_numpy(random.standard_normal(sums.shape)) / mu


def clipped(vectors: Tensor, norm: float = 1.0) -> Tensor:
    """Clip real or complex vectors of shape (person, component) to a norm."""
    shortened: Tensor = vectors / (torch.linalg.vector_norm(vectors, dim=1, keepdim=True) / norm).clamp_min(1)
    return shortened


def _weights(side: int) -> Tensor:
    """Return 1 for the diagonal and sqrt(2) above it: upper triangles then have the Frobenius norm of the matrix."""
    row, column = torch.triu_indices(side, side)
    return torch.where(row == column, 1.0, math.sqrt(2))


def _products(vectors: Tensor) -> Tensor:
    """Return the outer product of each vector with itself: the upper triangle, with the norm of the whole matrix."""
    side = vectors.shape[1]
    row, column = torch.triu_indices(side, side)
    return vectors[:, row] * vectors[:, column] * _weights(side)
