r"""DP-MERF: release a noisy mean embedding, then train a generator of examples that has the same embedding.

The method is that of Harder, Adamczewski and Park 2021 (arXiv:2002.11603). Each person contributes two parts to the sum
of one class: a one, and :math:`\phi(x)`, the cosines and sines of random projections of the features.
:math:`\phi(x)` has norm one for all features. Both parts are scaled so that a contribution has norm one. One
Gaussian release with multiplier :math:`\sigma` is therefore exactly :math:`1/\sigma`-GDP, for neighbours that differ in
one person whose contribution is replaced by zero. The projections do not depend on data, and the generator is trained
on the release alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from papers.neuromixgdp.moments import SHARE_OF_COUNTS, noisy_sums
from zetadp.base.validation import positive
from zetadp.nn.heads import RowExamples

CODE = 10
"""Number of random inputs of the generator."""
HIDDEN = 200
BATCH = 50
"""Number of generated examples per class in a step."""


@dataclass(frozen=True)
class MeanEmbedding:
    """Sums of random features, by class.

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
    def draw(
        cls, classes: int, components: int, frequencies: int, length: float, random: np.random.Generator
    ) -> MeanEmbedding:
        """Draw the projections of a Gaussian kernel.

        Parameters
        ----------
        classes, components, frequencies
            Number of classes, of components of the features, and of projections.
        length
            Length scale of the kernel, in the units of the features.
        random
            Generator of the projections.
        """
        positive(frequencies=frequencies, length=length)
        projections = random.standard_normal((components, frequencies), dtype=np.float32) / length
        return cls(classes, torch.from_numpy(projections))

    def mapped(self, features: Tensor) -> Tensor:
        """Return the embedding of each person, of norm one: cosines, then sines, shape (person, 2 * frequency)."""
        angles = features @ self.frequencies
        return torch.cat((angles.cos(), angles.sin()), dim=1) / math.sqrt(self.frequencies.shape[1])

    def contributions(self, features: Tensor) -> Tensor:
        """Return each person's contribution to the sums of their class, shape (person, 1 + 2 * frequency).

        Every contribution has norm one, up to rounding.
        """
        ones = torch.full((len(features), 1), math.sqrt(SHARE_OF_COUNTS))
        return torch.cat((ones, math.sqrt(1 - SHARE_OF_COUNTS) * self.mapped(features)), dim=1)

    def released(self, features: Tensor, labels: Tensor, mu: float, random: np.random.Generator) -> Tensor:
        """Release noisy sums, shape (class, number), with mu-GDP (same parameters as `ClassMoments.released`)."""
        return noisy_sums(self.contributions, features, labels, self.classes, mu, random)

    def generated(self, sums: Tensor, number: int, *, steps: int, rate: float, seed: int) -> RowExamples:
        """Train a generator on released sums, and return the examples that it generates.

        This is post-processing of the release and costs no privacy.

        Parameters
        ----------
        sums
            The result of `released`.
        number
            Number of examples of each class.
        steps, rate
            Number of steps and first learning rate of Adam. The rate falls along a cosine.
        seed
            Seed of the generator's weights and random inputs.
        """
        counts = (sums[:, :1] / math.sqrt(SHARE_OF_COUNTS)).clamp_min(1)
        targets = (sums[:, 1:] / math.sqrt(1 - SHARE_OF_COUNTS) / counts).float()
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
                    embedded = self.mapped(network(self._codes(BATCH))).view(self.classes, BATCH, -1).mean(dim=1)
                    optimiser.zero_grad()
                    (embedded - targets).square().sum().backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                    schedule.step()
            with torch.no_grad():
                generated = network(self._codes(number))
        labels = torch.eye(self.classes).repeat_interleave(number, dim=0)
        return RowExamples(generated.to(torch.complex64), labels)

    def _codes(self, number: int) -> Tensor:
        labels = torch.eye(self.classes).repeat_interleave(number, dim=0)
        return torch.cat((torch.randn(len(labels), CODE), labels), dim=1)
