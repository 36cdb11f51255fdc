r"""What a unit contributes to released rows, and what a released row says.

A row is the noisy mean of the contributions of units that are drawn for it alone, each independently: Avg-Mix of
NeuroMixGDP (Li, Cao and Yao, arXiv:2202.06467, Algorithm 1). A contribution is one vector, clipped to norm B, so one
noise multiplier accounts for features and labels together; how the norm is shared sets the noise on either:
:math:`\sigma_x = \sigma \sqrt{\lambda^2 + 1} / \lambda` and :math:`\sigma_y = \sigma \sqrt{\lambda^2 + 1}`.

- Units that have items of every class, as patients have all sequences, contribute the features of all classes, one
  after the other. Which class is where is public, so labels cost nothing.
- Units of one class contribute features and their class. Rows are then soft labels of soft images (Poisson sampling).
- Or rows are open to some classes only, which is drawn beforehand and published: the row's label, at no cost
  (hierarchical sampling). A unit is in no other row, so it is exposed in these at the higher chance R / N / share. The
  paper's rule, which counts all rows at R / N, is refuted in docs/release_accounting.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from zetadp.nn.closed_form import ClassMeans
from zetadp.randomness import Purpose, stream


class RowExamples(NamedTuple):
    """What released rows teach.

    Attributes
    ----------
    features
        Shape (example, component), complex64.
    labels
        Shape (example, class): shares of the classes, which noise may have made negative.
    """

    features: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Mixture(ABC):
    """A way to mix; called, it makes the units' contributions.

    Attributes
    ----------
    rows
        Rows that each node releases.
    classes, components
        Number of classes, and complex components of the features, the first of those there are.
    norm
        Norm C that an item's features have at most.
    bound
        The clipping norm B of the run.
    clipped
        Whether features are clipped; without, there is no guarantee.
    """

    rows: int
    classes: int
    components: int
    norm: float
    bound: float
    clipped: bool

    @property
    def schedule(self) -> np.ndarray | None:
        """Which rows are open to which class, boolean of shape (row, class); None where all are to all."""
        return None

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Real numbers in a contribution, and in a row."""

    @abstractmethod
    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return contributions of shape (unit, dimension), of norm at most B, up to rounding, if clipped.

        Parameters
        ----------
        images
            Complex features of shape (unit, item, 1, 1, component).
        labels
            Integer class labels of shape (unit, item).
        """

    @abstractmethod
    def examples(self, rows: Tensor) -> RowExamples:
        """Return what rows teach that were released by this plan, shape (row, dimension)."""


@dataclass(frozen=True)
class OfAllClasses(Mixture):
    """Features of all classes, one after the other: of every row one example a class."""

    @property
    def _means(self) -> ClassMeans:
        shares = (1 / self.classes,) * self.classes
        return ClassMeans(self.components, shares, self.norm, self.bound, self.clipped)

    @property
    def dimension(self) -> int:
        """Real numbers in a contribution."""
        return self._means.dimension

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return contributions of shape (unit, dimension)."""
        return self._means(images, labels)

    def examples(self, rows: Tensor) -> RowExamples:
        """Return one example a class of every row."""
        scale = self._means.scale / self.classes
        features = torch.view_as_complex((rows / scale).reshape(len(rows) * self.classes, self.components, 2))
        return RowExamples(features, torch.eye(self.classes, device=rows.device).repeat(len(rows), 1))


@dataclass(frozen=True)
class Labelled(Mixture):
    r"""Features of a unit of one class, and the class.

    Attributes
    ----------
    share_of_labels
        Share of the squared norm that the label has: :math:`1 / (\lambda^2 + 1)`.
    real
        Whether imaginary parts, which are zero, are left out.
    """

    share_of_labels: float
    real: bool

    @property
    def numbers(self) -> int:
        """Real numbers of the features."""
        return self.components * (1 if self.real else 2)

    @property
    def dimension(self) -> int:
        """Real numbers in a contribution."""
        return self.numbers + (self.classes if self.share_of_labels else 0)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return contributions of shape (unit, dimension)."""
        features = images.flatten(2)[..., : self.components]
        values = features.real if self.real else torch.view_as_real(features).flatten(2)
        if self.clipped:
            norms = torch.linalg.vector_norm(values, dim=2, keepdim=True)
            values = values * (self.norm / norms.clamp_min(self.norm))
        found = values.mean(dim=1) * self._scale
        if not self.share_of_labels:
            return found
        classes = functional.one_hot(labels, self.classes).to(found.dtype).mean(dim=1)
        return torch.cat((found, self._scale_of_labels * classes), dim=1)

    def examples(self, rows: Tensor) -> RowExamples:
        """Return one example of every row."""
        return RowExamples(self._features(rows), rows[:, self.numbers :] / self._scale_of_labels)

    @property
    def _scale_of_labels(self) -> float:
        return self.bound * math.sqrt(self.share_of_labels)

    @property
    def _scale(self) -> float:
        return self.bound * math.sqrt(1 - self.share_of_labels) / self.norm

    def _features(self, rows: Tensor) -> Tensor:
        values = rows[:, : self.numbers] / self._scale
        if self.real:
            return torch.complex(values, torch.zeros_like(values))
        return torch.view_as_complex(values.reshape(len(rows), self.components, 2))


@dataclass(frozen=True)
class OpenToClasses(Labelled):
    """Features of a unit of one class, which is in rows that are open to this class only.

    Attributes
    ----------
    seed, open_rows
        Seed of the published schedule, and how many of its rows are open to each class.
    """

    seed: int
    open_rows: int

    @property
    def schedule(self) -> np.ndarray:
        """Which rows are open to which class, boolean of shape (row, class)."""
        found = np.zeros((self.rows, self.classes), dtype=bool)
        for number in range(self.classes):
            order = stream(self.seed, Purpose.SCHEDULE, number).permutation(self.rows)
            found[order[: self.open_rows], number] = True
        return found

    def examples(self, rows: Tensor) -> RowExamples:
        """Return one example of every row, with the classes that it is open to in equal shares."""
        schedule = torch.from_numpy(np.resize(self.schedule, (len(rows), self.classes))).to(rows.device)
        return RowExamples(self._features(rows), schedule / (self.classes * self.open_rows / self.rows))
