"""Private descent of a head, written with matrices. The comparison with released rows uses it because it is fast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from zetadp.privacy import gaussian

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor


@dataclass(frozen=True)
class Steps:
    """Steps of a descent, as `zetadp.core.settings` knows them. The defaults are those of phase_mnist.yaml."""

    rounds: int = 100
    clip: float = 0.3
    rate: float = 300.0
    momentum: float = 0.5
    averaged: float = 0.5


def descended(
    weight: Tensor,
    contributed: Callable[[Tensor], Iterable[Tensor]],
    units: int,
    how: Steps,
    budget: tuple[float, float],
    seed: int = 0,
    holders: int = 1,
) -> Tensor:
    """Train a head by private descent in which every unit takes part in every round.

    Parameters
    ----------
    weight
        The head at the start.
    contributed
        Function that returns, for a head, parts of the sum of all units' clipped gradients.
    units
        Number of units.
    how
        Settings of the steps.
    budget
        Epsilon and delta.
    seed
        Seed of the noise.
    holders
        Number of data holders. Each adds its own noise.
    """
    random = torch.Generator().manual_seed(seed)
    sigma = math.sqrt(holders * how.rounds) / gaussian.mu(*budget)
    total, velocity = torch.zeros_like(weight), torch.zeros_like(weight)
    last = max(1, round(how.averaged * how.rounds))
    for number in range(how.rounds):
        message = sigma * how.clip * torch.randn(weight.shape, generator=random)
        for part in contributed(weight):
            message += part
        velocity = how.momentum * velocity + (1 - how.momentum) * message / units
        weight = weight - how.rate * velocity
        if number >= how.rounds - last:
            total += weight
    return total / last
