"""The server's part of a round: average the nodes' messages, then take an optimiser step or solve for a head.

All of it is post-processing of what the nodes released, so none of it costs privacy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from zetadp.base.tensors import Layout
from zetadp.nn.class_means import ClassMeans
from zetadp.nn.heads import fit_head_to_rows
from zetadp.nn.mixture import Mixture
from zetadp.training.optimisers import build, recipe_in, set_round
from zetadp.training.plan import Plan
from zetadp.training.settings import OptimiserSettings


class Receiver(ABC):
    """An object that turns the messages of each round into weights."""

    weights: torch.nn.Parameter
    released: Tensor | None = None
    """Mixed rows that the nodes released, shape (row, dimension); None if the nodes release no rows."""

    def learning_rate(self, round_number: int) -> float:
        """Return the learning rate of a round, counted from zero; NaN if there is none."""
        return math.nan

    @abstractmethod
    def step(self, messages: Tensor, round_number: int, missing: Collection[str] = ()) -> None:
        """Update the weights.

        Parameters
        ----------
        messages
            Messages of the nodes, or one row that is the mean of a masked sum, shape (node, dimension).
        round_number
            The round, counted from zero.
        missing
            Names of nodes that sent none.
        """

    def state(self) -> dict[str, Tensor]:
        """Return all that a resumed run needs, as tensors."""
        return {"weights": self.weights.detach()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state that `state` returned."""
        with torch.no_grad():
            self.weights.copy_(state["weights"])


class Server(Receiver):
    """The model's weights and the optimiser that moves them.

    The weights are one flat real vector, so real and imaginary parts have separate moments. PyTorch's optimisers give
    the same result for complex parameters, because they work on their real view. An optimiser of the user's own sees
    the parameters in their shapes. If the settings average the weights, the average replaces them after the last round.

    Parameters
    ----------
    weights
        Starting weights, shape (dimension,).
    settings
        Optimiser and schedule.
    rounds
        Declared number of rounds, which the schedule refers to.
    layout
        Positions of the parameters in the weights; needed for an optimiser of the user's own only.
    """

    def __init__(self, weights: Tensor, settings: OptimiserSettings, rounds: int, layout: Layout | None = None) -> None:
        self.averaged, self.rounds = settings.averaged, rounds
        self.layout = None if settings.recipe is None else layout
        self.recipe = recipe_in(settings, rounds)
        self.weights = torch.nn.Parameter(weights.clone())
        self.parts = {name: torch.nn.Parameter(view) for name, view in self._views(self.weights.data).items()}
        self.optimiser, self.plateau = build(self.recipe, self.parts)
        self._average = torch.zeros_like(self.weights.data) if settings.averaged else None

    def _views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of a flat vector by the names that the optimiser has for them."""
        return {"all": vector} if self.layout is None else self.layout.unflatten(vector)

    def learning_rate(self, round_number: int) -> float:
        """Return the learning rate of a round, counted from zero; with a plateau, that of the next step."""
        set_round(self.recipe, self.optimiser, round_number)
        return float(self.optimiser.param_groups[0]["lr"])

    def step(self, messages: Tensor, round_number: int, missing: Collection[str] = ()) -> None:
        """Average the messages of all nodes, shape (node, dimension), with equal weight and take one step.

        All nodes have the same weight: weights by the numbers of drawn patients would reveal private information.
        """
        self.weights.grad = messages.mean(dim=0)
        for name, gradient in self._views(self.weights.grad).items():
            self.parts[name].grad = gradient
        set_round(self.recipe, self.optimiser, round_number)
        self.optimiser.step()
        if self.plateau is not None:
            self.plateau.step(float(self.weights.grad.norm()))
        if self._average is None:
            return
        count = round_number + 1 - (self.rounds - max(1, round(self.averaged * self.rounds)))
        if count > 0:
            self._average.lerp_(self.weights.data, 1 / count)
        if round_number + 1 == self.rounds:
            self.weights.data.copy_(self._average)

    def state(self) -> dict[str, Tensor]:
        """Return all that a resumed server needs, as tensors."""
        tensors = super().state()
        for name, part in self.parts.items():
            moments = self.optimiser.state[part]
            tensors |= {f"optimiser.{name}.{key}": value for key, value in moments.items() if isinstance(value, Tensor)}
        if self._average is not None:
            tensors["average"] = self._average
        if self.plateau is not None:
            rates = [group["lr"] for group in self.optimiser.param_groups]
            seen = [self.plateau.best, self.plateau.num_bad_epochs, self.plateau.cooldown_counter]
            tensors["plateau"] = torch.tensor([*seen, *rates], dtype=torch.float64)
        return tensors

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state that `state` returned."""
        super().load(state)
        if self._average is not None:
            self._average.copy_(state["average"])
        moments: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            if key.startswith("optimiser."):
                name, _, moment = key.removeprefix("optimiser.").rpartition(".")
                moments.setdefault(name, {})[moment] = value.clone()
        for name, part in self.parts.items():
            self.optimiser.state[part] = moments.get(name, {})
        if self.plateau is not None:
            self.plateau.best, bad, cooldown, *rates = state["plateau"].tolist()
            self.plateau.num_bad_epochs, self.plateau.cooldown_counter = int(bad), int(cooldown)
            for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
                group["lr"] = rate


class HeadReceiver(Receiver):
    """The weights of a head, before and after its only round; it replaces `Server`.

    Parameters
    ----------
    weights
        Starting weights, shape (dimension,), in the order of ``layout``.
    layout
        Positions of weight and bias in them.
    plan
        Plan of the run. The head is drawn to starting weights that the plan names as public.
    solved
        The statistic that the messages are means of, or how they mix rows. The rows of all nodes are stored.
    """

    def __init__(self, weights: Tensor, layout: Layout, plan: Plan, solved: ClassMeans | Mixture) -> None:
        self.weights = torch.nn.Parameter(weights.clone())
        self.layout, self.plan, self.solved = layout, plan, solved

    def step(self, messages: Tensor, round_number: int, missing: Collection[str] = ()) -> None:
        """Set the weights to the head that follows from the messages of all nodes, shape (node, dimension)."""
        plan, start = self.plan, self.layout.unflatten(self.weights.data)
        public = (start["affine.weight"], start["affine.bias"]) if "start" in plan.public else None
        if isinstance(self.solved, Mixture):
            self.released = messages.reshape(-1, self.solved.dimension).cpu()
            if plan.training.mixing is None or not plan.training.mixing.learn:
                return
            head = fit_head_to_rows(self.solved.examples(self.released, plan.noise_of_row), public)
        else:
            deviation = plan.training.clip * plan.noise_of_mean(missing)
            head = self.solved.head(messages.mean(dim=0), deviation, public and public[0])
        weight, bias = (part.to(torch.complex64) for part in head)
        self.weights.data.copy_(self.layout.flatten({"affine.weight": weight, "affine.bias": bias}))
