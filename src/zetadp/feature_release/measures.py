r"""How well features are suited to mixing: how far they have collapsed, and how far mixed rows stay from other classes.

Both are of Li, Cao and Yao (arXiv:2202.06467, Sections 4 and 5), who choose a public extractor with a small first and a
large second. Computed of private features they are themselves private: choose the extractor on public data. Complex
features take Hermitian covariances and the complex norm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zetadp.feature_release.moments import clipped

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

AT_ONCE = 1000
"""Mixed rows whose distances are held in memory together."""


def neural_collapse(features: Tensor, labels: Tensor, norm: float = 1.0) -> float:
    r"""Return :math:`\mathrm{Tr}(\Sigma_W \Sigma_B^+) / K`: zero where all features of a class are equal.

    Parameters
    ----------
    features
        Real or complex, shape (person, component).
    labels
        Classes from 0, shape (person,); K is the number of those there are.
    norm
        Norm that features are clipped to first.
    """
    x = clipped(features, norm)
    x = x.to(torch.complex128 if x.is_complex() else torch.float64)
    centre = x.mean(dim=0)
    own = labels.unique()  # type: ignore[no-untyped-call]
    means = torch.stack([x[labels == label].mean(dim=0) for label in own])
    # The covariance of K means has rank K - 1 at most: its pseudo-inverse follows from the singular values, and only
    # what lies in their span counts.
    _, values, axes = torch.linalg.svd(means - centre, full_matrices=False)
    kept = values > 1e-9 * values.max()
    away = torch.cat([x[labels == label] - mean for label, mean in zip(own, means, strict=True)])
    within = (away @ axes[kept].mH).abs().square().mean(dim=0)
    # K cancels: it divides both the covariance of means and the trace.
    return float((within / values[kept].square()).sum())


def distance_of_mixed(
    features: Tensor, labels: Tensor, rows: int, random: np.random.Generator, norm: float = 1.0
) -> float:
    """Return the least distance of rows that mix two people to the features of a person with another label.

    A row of two classes has a label that nobody has, so everybody counts; for a row of one class, people of the others
    do. The more rows and people, the smaller is the least: compare equal numbers only.

    Parameters
    ----------
    features, labels, norm
        As of `neural_collapse`.
    rows
        Rows to mix, without noise.
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
