r"""Two measures of how well features suit mixing: neural collapse, and the distance of mixed rows to other classes.

Both are from Li, Cao and Yao (arXiv:2202.06467, Sections 4 and 5). A good extractor has a small collapse measure and a
large distance. Both measures reveal the data that they are computed from, so use public data to choose an extractor.
For complex features, covariances are Hermitian and norms are complex.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from papers.neuromixgdp.moments import clipped

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

AT_ONCE = 1000
"""Number of mixed rows whose distances are in memory at the same time."""


def neural_collapse(features: Tensor, labels: Tensor, norm: float = 1.0) -> float:
    r"""Return the neural collapse :math:`\mathrm{Tr}(\Sigma_W \Sigma_B^+) / K`.

    It is zero if all features of each class are equal.

    Parameters
    ----------
    features
        Real or complex, shape (person, component).
    labels
        Classes from 0, shape (person,). K is the number of different classes among them.
    norm
        Norm to which features are clipped first.
    """
    x = clipped(features, norm)
    x = x.to(torch.complex128 if x.is_complex() else torch.float64)
    centre = x.mean(dim=0)
    own = labels.unique()  # type: ignore[no-untyped-call]
    means = torch.stack([x[labels == label].mean(dim=0) for label in own])
    # The covariance of K means has rank K - 1 at most. Its pseudo-inverse follows from the singular values, so only the
    # part of the features in the span of the means matters.
    _, values, axes = torch.linalg.svd(means - centre, full_matrices=False)
    kept = values > 1e-9 * values.max()
    away = torch.cat([x[labels == label] - mean for label, mean in zip(own, means, strict=True)])
    within = (away @ axes[kept].mH).abs().square().mean(dim=0)
    # K cancels: it divides both the covariance of means and the trace.
    return float((within / values[kept].square()).sum())


def distance_of_mixed(
    features: Tensor, labels: Tensor, rows: int, random: np.random.Generator, norm: float = 1.0
) -> float:
    """Return the smallest distance between a row that mixes two people and the features of a person of another class.

    If both people of a row are of one class, only people of other classes count. If they are of two classes, everybody
    counts. The result falls as rows and people grow in number, so compare results for equal numbers only.

    Parameters
    ----------
    features, labels, norm
        Same as for `neural_collapse`.
    rows
        Number of rows to mix. They get no noise.
    random
        Generator of the pairs.
    """
    x = clipped(features, norm)
    pairs = torch.from_numpy(random.integers(0, len(x), (rows, 2)))
    least = float("inf")
    for chosen in pairs.split(AT_ONCE):  # type: ignore[no-untyped-call]
        mixed = x[chosen].mean(dim=1)
        found = torch.cdist(_stacked(mixed), _stacked(x))
        classes = labels[chosen]
        same = (classes[:, :1] == labels) & (classes[:, 1:] == labels)
        least = min(least, float(found.masked_fill(same, float("inf")).min()))
    return least


def _stacked(features: Tensor) -> Tensor:
    return torch.view_as_real(features).flatten(1) if features.is_complex() else features
