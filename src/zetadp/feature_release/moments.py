r"""Class means and covariances, released once with noise: the simplest rival of mixed rows.

Each person contributes to the sums of one class: a one, its features x, and the products :math:`u u^T` of their few
public directions u. Shares of the squared norm divide a budget of one between the three, so a person's contribution has
norm at most one, and one Gaussian release with multiplier :math:`\sigma` is exactly :math:`1/\sigma`-GDP. Neighbours
differ in one person whose contribution is replaced by zero; the class of a person is private, too. All that follows,
such as samples that a head learns from, is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zetadp.feature_release.mixture import RowExamples

SHARE_OF_COUNTS = 0.01
"""Share of the squared norm that the one has, which is counted: classes of thousands need little."""


@dataclass(frozen=True)
class ClassMoments:
    """What people contribute to the moments of their classes, and what noisy moments teach.

    Attributes
    ----------
    classes
        Number of classes.
    directions
        Public directions in which covariances are released, shape (component, direction); None for means alone.
    share_of_covariances
        Their share of the squared norm, where there are any.
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
        """Return what people add to the sums of their own class, of norm at most one up to rounding.

        Parameters
        ----------
        features
            Real features of shape (person, component); those longer than one are clipped to norm one.
        """
        counted, mean, second = self._scales
        features = clipped(features)
        parts = [torch.full((len(features), 1), counted), mean * features]
        if self.directions is not None:
            parts.append(second * _products(clipped(features @ self.directions)))
        return torch.cat(parts, dim=1)

    def released(self, features: Tensor, labels: Tensor, mu: float, random: np.random.Generator) -> Tensor:
        """Return noisy sums, shape (class, number): a mu-GDP release of all people.

        Parameters
        ----------
        features, labels
            Of shapes (person, component) and (person,).
        mu
            The guarantee; infinite for no noise.
        random
            Generator of the noise. A seeded one protects nobody.
        """
        return noisy_sums(self.contributions, features, labels, self.classes, mu, random)

    def means(self, sums: Tensor) -> Tensor:
        """Return class means, shape (class, component), of released sums."""
        size = sums.shape[1] - 1 if self.directions is None else len(self.directions)
        return sums[:, 1 : 1 + size] / self._scales[1] / self._counts(sums)[:, None]

    def covariances(self, sums: Tensor) -> Tensor:
        """Return the covariance of each class in the public directions; noise makes no eigenvalue negative."""
        if self.directions is None:
            raise ValueError("Expected public directions, in which covariances are released, found none.")
        size, side = self.directions.shape
        second = torch.zeros(self.classes, side, side, dtype=sums.dtype)
        row, column = torch.triu_indices(side, side)
        second[:, row, column] = sums[:, 1 + size :] / _weights(side).to(sums.dtype) / self._scales[2]
        second = second + second.triu(1).mT
        means = self.means(sums) @ self.directions.to(sums.dtype)
        found = second / self._counts(sums)[:, None, None] - means[:, :, None] * means[:, None, :]
        values, axes = torch.linalg.eigh(found)
        repaired: Tensor = axes @ (values.clamp_min(0)[:, :, None] * axes.mT)
        return repaired

    def samples(self, sums: Tensor, number: int, random: np.random.Generator) -> RowExamples:
        """Return so many samples of each class from normal distributions with the released moments."""
        means = self.means(sums)
        drawn = means.repeat_interleave(number, dim=0)
        if self.directions is not None:
            values, axes = torch.linalg.eigh(self.covariances(sums))
            roots = axes * values.clamp_min(0).sqrt()[:, None]
            normal = torch.from_numpy(random.standard_normal((self.classes, number, self.directions.shape[1])))
            # Directions need not be orthonormal: back to features by the pseudo-inverse.
            back = torch.linalg.pinv(self.directions.double())
            drawn = drawn + (normal @ roots.mT @ back).flatten(0, 1)
        labels = torch.eye(self.classes).repeat_interleave(number, dim=0)
        return RowExamples(torch.complex(drawn.float(), torch.zeros(drawn.shape)), labels)

    def _counts(self, sums: Tensor) -> Tensor:
        return (sums[:, 0] / self._scales[0]).clamp_min(1)


def nearest_mean(means: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the head whose scores fall with the squared distance to class means."""
    return means, -0.5 * means.square().sum(dim=1)


def noisy_sums(
    contributions: Callable[[Tensor], Tensor],
    features: Tensor,
    labels: Tensor,
    classes: int,
    mu: float,
    random: np.random.Generator,
) -> Tensor:
    """Return what people of each class add up to, with noise, shape (class, number): a mu-GDP release.

    Parameters
    ----------
    contributions
        Returns the vector of each person, of norm at most one.
    features, labels, classes
        Of the people, shapes (person, component) and (person,), and the number of classes.
    mu, random
        As of `ClassMoments.released`.
    """
    if not mu > 0:
        raise ValueError(f"Expected mu > 0, found {mu}.")
    found = torch.zeros(classes, contributions(features[:1]).shape[1], dtype=torch.float64)
    for rows, own in zip(features.split(4096), labels.split(4096), strict=True):  # type: ignore[no-untyped-call]
        found.index_add_(0, own, contributions(rows).double())
    return found + torch.from_numpy(random.standard_normal(found.shape)) / mu


def clipped(vectors: Tensor, norm: float = 1.0) -> Tensor:
    """Return real or complex vectors, shape (person, component), shortened to a norm where they are longer."""
    shortened: Tensor = vectors / (torch.linalg.vector_norm(vectors, dim=1, keepdim=True) / norm).clamp_min(1)
    return shortened


def _weights(side: int) -> Tensor:
    """Return one for the diagonal and the root of two above it: the vector then has the matrix's Frobenius norm."""
    row, column = torch.triu_indices(side, side)
    return torch.where(row == column, 1.0, math.sqrt(2))


def _products(vectors: Tensor) -> Tensor:
    """Return products of each vector with itself: upper triangles, whose norm is that of the whole matrix."""
    side = vectors.shape[1]
    row, column = torch.triu_indices(side, side)
    return vectors[:, row] * vectors[:, column] * _weights(side)
