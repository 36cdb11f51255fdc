r"""DP-MERF: a noisy mean embedding by random features, and a generator of examples that has the same embedding.

Harder, Adamczewski and Park 2021 (arXiv:2002.11603). Each person contributes to the sum of one class: a one, and
:math:`\phi(x)`, the cosines and sines of random projections of the features, whose norm is exactly one, whatever the
features. Both share a norm of one, so one Gaussian release with multiplier :math:`\sigma` is exactly
:math:`1/\sigma`-GDP; neighbours differ in one person whose contribution is replaced by zero. The projections are drawn
without looking at data. A generator is then trained on the release alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from zetadp.feature_release.mixture import RowExamples
from zetadp.feature_release.moments import SHARE_OF_COUNTS, noisy_sums
from zetadp.validation import positive

CODE = 10
"""Random numbers that the generator takes."""
HIDDEN = 200
BATCH = 50
"""Examples of each class in a step."""


@dataclass(frozen=True)
class MeanEmbedding:
    """Random features of people, summed by class.

    Attributes
    ----------
    classes
        Number of classes.
    frequencies
        Random projections, shape (component, frequency).
    """

    classes: int
    frequencies: Tensor

    @classmethod
    def drawn(
        cls, classes: int, components: int, frequencies: int, length: float, random: np.random.Generator
    ) -> MeanEmbedding:
        """Draw the projections that belong to a Gaussian kernel of this length scale."""
        positive(frequencies=frequencies, length=length)
        found = random.standard_normal((components, frequencies), dtype=np.float32) / length
        return cls(classes, torch.from_numpy(found))

    def mapped(self, features: Tensor) -> Tensor:
        """Return cosines and sines of norm one together, shape (person, twice as many as frequencies)."""
        angles = features @ self.frequencies
        return torch.cat((angles.cos(), angles.sin()), dim=1) / math.sqrt(self.frequencies.shape[1])

    def contributions(self, features: Tensor) -> Tensor:
        """Return what people add to the sums of their own class, of norm one up to rounding."""
        ones = torch.full((len(features), 1), math.sqrt(SHARE_OF_COUNTS))
        return torch.cat((ones, math.sqrt(1 - SHARE_OF_COUNTS) * self.mapped(features)), dim=1)

    def released(self, features: Tensor, labels: Tensor, mu: float, random: np.random.Generator) -> Tensor:
        """Return noisy sums, shape (class, number): a mu-GDP release (parameters as of `ClassMoments.released`)."""
        return noisy_sums(self.contributions, features, labels, self.classes, mu, random)

    def generated(self, sums: Tensor, number: int, *, steps: int, rate: float, seed: int) -> RowExamples:
        """Return so many examples of each class by a generator that is trained on released sums.

        Parameters
        ----------
        sums
            What `released` returned.
        number
            Examples of each class.
        steps, rate
            Of Adam.
        seed
            Seed of weights and codes.
        """
        counts = (sums[:, :1] / math.sqrt(SHARE_OF_COUNTS)).clamp_min(1)
        wanted = (sums[:, 1:] / math.sqrt(1 - SHARE_OF_COUNTS) / counts).float()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = nn.Sequential(
                nn.Linear(CODE + self.classes, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
                nn.Linear(HIDDEN, len(self.frequencies)),
            )  # fmt: skip
            optimiser = torch.optim.Adam(network.parameters(), rate)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
            with torch.enable_grad():
                for _ in range(steps):
                    made = self.mapped(network(self._codes(BATCH))).view(self.classes, BATCH, -1).mean(dim=1)
                    optimiser.zero_grad()
                    (made - wanted).square().sum().backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                    schedule.step()
            with torch.no_grad():
                found = network(self._codes(number))
        labels = torch.eye(self.classes).repeat_interleave(number, dim=0)
        return RowExamples(torch.complex(found, torch.zeros_like(found)), labels)

    def _codes(self, number: int) -> Tensor:
        labels = torch.eye(self.classes).repeat_interleave(number, dim=0)
        return torch.cat((torch.randn(len(labels), CODE), labels), dim=1)
