"""The mechanism with draws that nobody can repeat: exact arithmetic, and the operating system's generator.

Floating-point noise gives patients away in its low-order bits, and a seed can be known. Here each clipped gradient is
truncated onto an integer grid, its norm is checked in integers, sums are exact, and the noise is an exactly rounded
Gaussian: the release is post-processing of the continuous Gaussian mechanism, so every accountant holds as it is.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zetadp.privacy.bernoulli import bernoulli_mask
from zetadp.privacy.exact import rounded_normal
from zetadp.privacy.grid import Grid, from_grid
from zetadp.privacy.mechanism import NodeMechanism
from zetadp.transfer import to_device

if TYPE_CHECKING:
    from torch import Tensor

    from zetadp.privacy.events import Round


class ExactSampledGaussian(NodeMechanism):
    """The mechanism of one node, with sampling and noise from the operating system. It takes no seed.

    Parameters
    ----------
    node, constants
        As in `NodeMechanism`; noise multiplier and clip above zero and finite.
    grid
        The grid of the integer sums, a public constant of the run.
    """

    repeatable = False

    def __init__(self, node: str, *, grid: Grid, **constants: Any) -> None:  # noqa: ANN401
        super().__init__(node, **constants)
        if not self.noise_multiplier > 0 or grid.bound != self.clip:
            msg = (
                f"Expected noise and a grid of bound {self.clip}, found noise_multiplier={self.noise_multiplier} and "
                f"bound {grid.bound}."
            )
            raise ValueError(msg)
        self.grid: Grid = grid

    def image_choices(self, round_number: int) -> np.random.Generator:
        """Return a generator seeded by the operating system."""
        return np.random.default_rng()

    def _drawn(self, event: Round, again: int) -> np.ndarray:
        probability = Fraction(event.expected) / event.population
        return bernoulli_mask(probability, event.population)

    def _privatised(self, event: Round, clipped_sum: Tensor, again: int) -> Tensor:
        """Add exact noise to the integer sum; conversion to float comes last and is post-processing."""
        noise = rounded_normal(len(clipped_sum), self.grid.noise_scale(event.noise_multiplier))
        noisy = clipped_sum + to_device(torch.from_numpy(noise), clipped_sum.device)
        return from_grid(noisy, self.grid, event.expected)
