"""The private descent of a head, written out in matrices: what the searches of settings try."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import torch

from zetadp.privacy import gaussian

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor


class Steps(Protocol):
    """Steps of a descent, as `zetadp.core.settings` knows them."""

    rounds: int
    clip: float
    rate: float
    momentum: float
    averaged: float


def descended(
    weight: Tensor,
    contributed: Callable[[Tensor], Iterable[Tensor]],
    units: int,
    how: Steps,
    budget: tuple[float, float],
    seed: int = 0,
    holders: int = 1,
) -> Tensor:
    """Return a head after a private descent in which every unit takes part.

    Parameters
    ----------
    weight
        The head at the start.
    contributed
        Takes a head to parts of the sum of all units' clipped gradients.
    units
        Number of units.
    how
        The steps.
    budget
        Epsilon and delta.
    seed
        Seed of the noise.
    holders
        How many hold the units; each adds noise of its own.
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
