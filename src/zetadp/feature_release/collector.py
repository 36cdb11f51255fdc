"""The receiver of released rows: it keeps them, and a head learns from them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from zetadp.feature_release.heads import learnt_head
from zetadp.feature_release.mixture import Mixture
from zetadp.nn.parameters import Layout


class Collector:
    """Takes the place of `zetadp.core.server.Server` where nodes release rows.

    Parameters
    ----------
    weights
        Starting weights, shape (dimension,), in the order of ``layout``.
    layout
        Where weight and bias lie in them.
    mixture
        How rows are mixed.
    public
        Whether the starting weights are those of a public head, which then is what the head is drawn towards.

    Attributes
    ----------
    released
        Rows of all nodes, one node after the other, shape (row, dimension); None before the round.
    learns
        Whether a head learns from them here; else the weights stay as they are.
    """

    learns = True

    def __init__(self, weights: Tensor, layout: Layout, mixture: Mixture, *, public: bool) -> None:
        self.weights = torch.nn.Parameter(weights.clone())
        self.layout, self.mixture = layout, mixture
        start = layout.unflatten(weights.clone())
        self.start = (start["affine.weight"], start["affine.bias"]) if public else None
        self.released: Tensor | None = None

    def learning_rate(self, round_number: int) -> float:
        """Return NaN: there is no rate."""
        return math.nan

    def step(self, messages: Tensor, round_number: int) -> None:
        """Keep the rows of all nodes, shape (node, row times dimension), and learn a head from them."""
        self.released = messages.reshape(-1, self.mixture.dimension).cpu()
        if not self.learns:
            return
        weight, bias = learnt_head(self.mixture.examples(self.released), self.start)
        found = self.layout.flatten({"affine.weight": weight, "affine.bias": bias})
        self.weights.data.copy_(found)

    def state(self) -> dict[str, Tensor]:
        """Return all that a resumed server needs, as tensors."""
        rows = {} if self.released is None else {"released": self.released}
        return {"weights": self.weights.detach(), **rows}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state that `state` returned."""
        self.released = state.get("released")
        with torch.no_grad():
            self.weights.copy_(state["weights"])
