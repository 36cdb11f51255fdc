"""Clipped sums of a network's gradients, computed from a network, its patients and their groups."""

from __future__ import annotations

from typing import Any

import torch

from zetadp.mechanism import clipping
from zetadp.mechanism.contributions import Contributors, Gradient, cross_entropies


def clipped_sums(
    model: Any,
    layout: Any,
    images: Any,
    labels: Any,
    groups: Any,
    *,
    count: int,
    statistic: Any = None,
    losses: Any = cross_entropies,
    **how: Any,
) -> clipping.ClippedSums:
    """Return the clipped sum of each group."""
    contribution = statistic or Gradient(model, layout, losses)
    return clipping.clipped_sums(contribution, contributors(images, labels, groups, count), **how)


def contributors(images: Any, labels: Any, groups: Any, count: int) -> Contributors:
    """Return patients with consecutive images, shape (patient, image, ...)."""
    items = torch.arange(labels.shape[:2].numel(), device=images.device).view(labels.shape[:2])
    return Contributors(images.flatten(0, 1), labels.flatten(0, 1), items, groups, count)
