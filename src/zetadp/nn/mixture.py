r"""Contributions of units to mixed rows, and the training examples in a released row.

A row is the noisy mean of the contributions of a few units. Each row draws units independently: Avg-Mix
of NeuroMixGDP (Li, Cao and Yao, arXiv:2202.06467, Algorithm 1). A contribution is one vector, clipped to norm B, so one
noise multiplier :math:`\sigma` accounts for features and labels together. Features and labels share the norm B, and
their shares set the noise on each: :math:`\sigma_x = \sigma \sqrt{\lambda^2 + 1} / \lambda` on features and
:math:`\sigma_y = \sigma \sqrt{\lambda^2 + 1}` on labels.

There are three kinds of mixtures:

- `OfAllClasses`: each unit has items of every class, such as a patient with all sequences. It contributes the features
  of all classes, one after the other. The position of each class is public, so labels cost nothing.
- `Labelled`: each unit has one class. It contributes its features and its class, so the label of a row is a noisy mean
  as well (Poisson sampling).
- `OpenToClasses`: each unit has one class, and each row is open to some classes only. The schedule is drawn beforehand
  and published, so a row's label costs nothing (hierarchical sampling). A unit can only be in the rows that are open to
  its class, but there with the higher chance R / N / share. The paper instead counts all rows with chance R / N;
  papers/neuromixgdp/README.md refutes this. A free label does not depend on the people, so it is right only for classes
  of the declared sizes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from zetadp.base.randomness import Purpose, stream
from zetadp.mechanism.contributions import Statistic
from zetadp.nn.class_means import ClassMeans
from zetadp.nn.heads import RowExamples


@dataclass(frozen=True)
class Mixture(Statistic):
    """A way to mix. Calling it computes the contributions of units, as long as rows.

    Images are complex features of shape (unit, item, 1, 1, component), labels integer classes of shape (unit, item). If
    features are clipped, a contribution has norm at most B, up to rounding.

    Attributes
    ----------
    rows
        Number of rows that each node releases.
    classes, components
        Number of classes, and number of complex components. Only the first components of the features are used.
    norm
        Norm C to which an item's features are clipped.
    bound
        The clipping norm B of the run.
    clipped
        Whether features are clipped. A guarantee requires clipping.
    """

    rows: int
    classes: int
    components: int
    norm: float
    bound: float
    clipped: bool

    @property
    def schedule(self) -> np.ndarray | None:
        """Mask of the rows that are open to each class, shape (row, class); None if all are open to all classes."""
        return None

    @property
    def feature_bound(self) -> float:
        """Norm to which an item's features are clipped; infinite without clipping."""
        return self.norm if self.clipped else math.inf

    @abstractmethod
    def examples(self, rows: Tensor, deviation: float = 0.0) -> RowExamples:
        """Return the training examples in released rows.

        Parameters
        ----------
        rows
            All rows that were released with this mixture, shape (row, dimension), in the order of their release.
        deviation
            Standard deviation of the noise in each number of a row, used by `fit_head_to_rows`; zero if it is
            not known.
        """


@dataclass(frozen=True)
class OfAllClasses(Mixture):
    """Features of all classes, one after the other. Every row gives one example per class."""

    @property
    def _means(self) -> ClassMeans:
        shares = (1 / self.classes,) * self.classes
        return ClassMeans(self.components, shares, self.norm, self.bound, self.clipped)

    @property
    def dimension(self) -> int:
        """Real numbers in a contribution."""
        return self._means.dimension

    @property
    def feature_bound(self) -> float:
        """Norm to which an item's features are clipped; infinite without clipping."""
        return self._means.feature_bound if self.clipped else math.inf

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return contributions of shape (unit, dimension)."""
        return self._means(images, labels)

    def examples(self, rows: Tensor, deviation: float = 0.0) -> RowExamples:
        """Return one example per class and row; the classes of a row follow each other."""
        scale = self._means.scale / self.classes
        features = torch.view_as_complex((rows / scale).reshape(len(rows) * self.classes, self.components, 2))
        labels = torch.eye(self.classes, device=rows.device).repeat(len(rows), 1)
        return RowExamples(features, labels, (deviation / scale) ** 2)


@dataclass(frozen=True)
class Labelled(Mixture):
    r"""Features and class of units that have one class each. Every row gives one example.

    Attributes
    ----------
    share_of_labels
        Share of the squared norm for the label: :math:`1 / (\lambda^2 + 1)`. Zero contributes features only.
    real
        Whether to leave out imaginary parts, for features whose imaginary parts are zero.
    """

    share_of_labels: float
    real: bool

    @property
    def numbers(self) -> int:
        """Number of real numbers in the features."""
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
        contribution = values.mean(dim=1) * self._scale
        if not self.share_of_labels:
            return contribution
        classes = functional.one_hot(labels, self.classes).to(contribution.dtype).mean(dim=1)
        return torch.cat((contribution, self._scale_of_labels * classes), dim=1)

    def examples(self, rows: Tensor, deviation: float = 0.0) -> RowExamples:
        """Return one example per row."""
        return RowExamples(
            self._features(rows), rows[:, self.numbers :] / self._scale_of_labels, self._noise(deviation)
        )

    def _noise(self, deviation: float) -> float:
        return (deviation / self._scale) ** 2

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
    """Features of units that have one class each, mixed into rows that are open to this class.

    Attributes
    ----------
    seed, open_rows
        Seed of the published schedule, and the number of rows that are open to each class.
    shares
        Declared share of each class among the units, public constants. They add up to one.
    """

    seed: int
    open_rows: int
    shares: tuple[float, ...]

    @property
    def schedule(self) -> np.ndarray:
        """Mask of the rows that are open to each class, shape (row, class)."""
        schedule = np.zeros((self.rows, self.classes), dtype=bool)
        for number in range(self.classes):
            order = stream(self.seed, Purpose.SCHEDULE, number).permutation(self.rows)
            schedule[order[: self.open_rows], number] = True
        return schedule

    def examples(self, rows: Tensor, deviation: float = 0.0) -> RowExamples:
        """Return one example per row.

        Its label is the expected mean label of the row's members under the declared shares, like the noisy labels of
        `Labelled`: the share of each class that the row is open to, over the share of rows that are open to it.
        """
        schedule = torch.from_numpy(np.resize(self.schedule, (len(rows), self.classes))).to(rows.device)
        shares = torch.tensor(self.shares, dtype=torch.float32, device=rows.device)
        labels = schedule * shares / (self.open_rows / self.rows)
        return RowExamples(self._features(rows), labels, self._noise(deviation))
