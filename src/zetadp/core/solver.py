"""What the server does where a head follows from one message of every node: average, and solve.

All of it is post-processing of what the nodes released, so none of it costs privacy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from zetadp.nn.closed_form import ClosedForm
    from zetadp.nn.parameters import Layout


class Solver:
    """The weights of a head, before and after its only round; takes the place of `zetadp.core.server.Server`.

    Parameters
    ----------
    weights
        Starting weights, shape (dimension,), in the order of ``layout``.
    layout
        Where weight and bias lie in them.
    statistic
        What the nodes' messages are means of.
    deviation
        Standard deviation of the noise in each coordinate of the mean message.
    public
        Whether the starting weights are those of a public head, which then is what the head is drawn towards.
    """

    def __init__(
        self, weights: Tensor, layout: Layout, statistic: ClosedForm, *, deviation: float, public: bool
    ) -> None:
        self.weights = torch.nn.Parameter(weights.clone())
        self.layout, self.statistic, self.deviation = layout, statistic, deviation
        self.public = layout.unflatten(weights.clone())["affine.weight"] if public else None

    def learning_rate(self, round_number: int) -> float:
        """Return NaN: there is no rate."""
        return math.nan

    def step(self, messages: Tensor, round_number: int) -> None:
        """Average the messages of all nodes, shape (node, dimension), with equal weight and solve for the head."""
        weight, bias = self.statistic.head(messages.mean(dim=0), self.deviation, self.public)
        found = {"affine.weight": weight.to(torch.complex64), "affine.bias": bias.to(torch.complex64)}
        self.weights.data.copy_(self.layout.flatten(found))

    def state(self) -> dict[str, Tensor]:
        """Return all that a resumed server needs, as tensors."""
        return {"weights": self.weights.detach()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state that `state` returned."""
        with torch.no_grad():
            self.weights.copy_(state["weights"])
