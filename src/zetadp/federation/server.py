"""What the server does in a round: average the nodes' messages and take an optimiser step.

All of it is post-processing of what the nodes released, so none of it costs privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from zetadp.validation import in_range, positive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True)
class OptimiserSettings:
    """The server's NAdam and its schedule.

    Attributes
    ----------
    learning_rate
        Rate at the start.
    drop_after
        Fraction of the rounds after which the rate is divided by ``drop_factor``.
    drop_factor
        Divisor of the rate.
    """

    learning_rate: float = 2e-4
    drop_after: float = 0.6
    drop_factor: float = 10.0

    def __post_init__(self) -> None:
        """Check every setting."""
        positive(learning_rate=self.learning_rate, drop_factor=self.drop_factor)
        in_range(0, 1, drop_after=self.drop_after)


class Server:
    """The model's weights and the optimiser that moves them.

    The weights are one flat real vector, in which real and imaginary parts have moments of their own: the same result
    as PyTorch's NAdam on complex parameters, which works on their real view.

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
        self.optimiser = torch.optim.NAdam([self.weights], lr=settings.learning_rate)

    def learning_rate(self, round_number: int) -> float:
        """Return the rate of a round, counted from zero."""
        late = round_number >= self.settings.drop_after * self.rounds
        return self.settings.learning_rate / (self.settings.drop_factor if late else 1.0)

    def step(self, messages: Tensor, round_number: int) -> None:
        """Average the messages of all nodes, shape (node, dimension), with equal weight and take one step.

        Nodes weigh the same whatever they hold: a weight by realised counts would be private information.
        """
        self.optimiser.param_groups[0]["lr"] = self.learning_rate(round_number)
        self.weights.grad = messages.mean(dim=0)
        self.optimiser.step()

    def state(self) -> dict[str, Tensor]:
        """Return all that a resumed server needs, as tensors."""
        moments = self.optimiser.state_dict()["state"].get(0, {})
        return {"weights": self.weights.detach(), **{f"optimiser.{key}": value for key, value in moments.items()}}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state that `state` returned."""
        with torch.no_grad():
            self.weights.copy_(state["weights"])
        moments = {
            key.removeprefix("optimiser."): value for key, value in state.items() if key.startswith("optimiser.")
        }
        content = self.optimiser.state_dict()
        content["state"] = {0: moments} if moments else {}
        self.optimiser.load_state_dict(content)
