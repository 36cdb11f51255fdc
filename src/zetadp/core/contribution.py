"""What a unit, such as a patient, contributes in a round: the gradient of a network, or a statistic in its place."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from zetadp.nn.parameters import Layout
from zetadp.privacy.clipping import Losses, PatientStatistic, cross_entropies


@dataclass(frozen=True)
class Contribution:
    """What is computed of each unit, and clipped by the core.

    Attributes
    ----------
    model
        The network, which has the round's weights.
    layout
        The order of its parameters in a flat vector.
    items
        Items that make one contribution.
    losses
        Loss of each item.
    statistic
        What takes the place of the gradient; None for the gradient.
    """

    model: nn.Module
    layout: Layout
    items: int
    losses: Losses = cross_entropies
    statistic: PatientStatistic | None = None

    @property
    def dimension(self) -> int:
        """Real numbers in a contribution."""
        return self.layout.dimension if self.statistic is None else self.statistic.dimension

    def weights(self) -> Tensor:
        """Return the network's weights as they stand, flat and real, shape (dimension of the layout,)."""
        return self.layout.flatten(dict(self.model.named_parameters())).detach()
