"""What the server does in a round: average the nodes' messages and take an optimiser step.

All of it is post-processing of what the nodes released, so none of it costs privacy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zetadp.core.optimiser import Descent, NAdam

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from zetadp.core.settings import OptimiserSettings


class Server:
    """The model's weights and the optimiser that moves them.

    The weights are one flat real vector, in which real and imaginary parts have moments of their own: the same result
    as PyTorch's NAdam on complex parameters, which works on their real view. Where weights are averaged, they are the
    average once the last round is done.

    Parameters
    ----------
    weights
        Starting weights, shape (dimension,).
    settings
        Optimiser and schedule.
    rounds
        Declared number of rounds, which the schedule refers to.
    """

    def __init__(self, weights: Tensor, settings: OptimiserSettings, rounds: int) -> None:
        self.settings, self.rounds = settings, rounds
        self.weights = torch.nn.Parameter(weights.clone())
        self.optimiser = NAdam() if settings.name == "nadam" else Descent(settings.momentum)
        self._average = torch.zeros_like(self.weights.data) if settings.averaged else None

    def learning_rate(self, round_number: int) -> float:
        """Return the rate of a round, counted from zero."""
        late = round_number >= self.settings.drop_after * self.rounds
        return self.settings.learning_rate / (self.settings.drop_factor if late else 1.0)

    def step(self, messages: Tensor, round_number: int) -> None:
        """Average the messages of all nodes, shape (node, dimension), with equal weight and take one step.

        Nodes weigh the same whatever they hold: a weight by realised counts would be private information.
        """
        self.weights.grad = messages.mean(dim=0)
        self.optimiser.step(self.weights.data, self.weights.grad, self.learning_rate(round_number))
        if self._average is None:
            return
        count = round_number + 1 - (self.rounds - max(1, round(self.settings.averaged * self.rounds)))
        if count > 0:
            self._average.lerp_(self.weights.data, 1 / count)
        if round_number + 1 == self.rounds:
            self.weights.data.copy_(self._average)

    def state(self) -> dict[str, Tensor]:
        """Return all that a resumed server needs, as tensors."""
        tensors = {f"optimiser.{key}": value for key, value in self.optimiser.state.items()}
        if self._average is not None:
            tensors["average"] = self._average
        return {"weights": self.weights.detach(), **tensors}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state that `state` returned."""
        with torch.no_grad():
            self.weights.copy_(state["weights"])
            if self._average is not None:
                self._average.copy_(state["average"])
        self.optimiser.state = {
            key.removeprefix("optimiser."): value.clone()
            for key, value in state.items()
            if key.startswith("optimiser.")
        }
