"""The server's part of a round: average the nodes' messages, then take an optimiser step or solve for a head.

All of it is post-processing of what the nodes released, so none of it costs privacy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zetadp.base.tensors import Layout
from zetadp.core.optimisers import Recipe
from zetadp.core.settings import OptimiserSettings
from zetadp.nn.closed_form import ClassMeans
from zetadp.nn.heads import learnt_head
from zetadp.nn.mixture import Mixture

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import ReduceLROnPlateau


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
        self.settings, self.rounds, self.layout = settings, rounds, layout
        self.weights = torch.nn.Parameter(weights.clone())
        self.parts = {"all": self.weights}
        self.recipe: Recipe | None = None
        self.plateau: ReduceLROnPlateau | None = None
        self.optimiser: torch.optim.Optimizer
        if settings.recipe is not None and layout is not None:
            self.parts = {name: torch.nn.Parameter(view) for name, view in layout.unflatten(self.weights.data).items()}
            self.recipe = Recipe.from_json(settings.recipe)
            self.optimiser, self.plateau = self.recipe.build(self.parts)
        elif settings.name == "nadam":
            self.optimiser = torch.optim.NAdam([self.weights])
        else:
            # With this dampening the momentum is a running mean, so the rate means the same for every momentum.
            momentum = settings.momentum
            self.optimiser = torch.optim.SGD([self.weights], momentum=momentum, dampening=momentum)
        self._average = torch.zeros_like(self.weights.data) if settings.averaged else None

    def learning_rate(self, round_number: int) -> float:
        """Return the learning rate of a round, counted from zero; with a plateau, that of the next step."""
        if self.recipe is not None:
            self.recipe.set_round(self.optimiser, round_number)
            return float(self.optimiser.param_groups[0]["lr"])
        late = round_number >= self.settings.drop_after * self.rounds
        return self.settings.learning_rate / (self.settings.drop_factor if late else 1.0)

    def step(self, messages: Tensor, round_number: int, missing: Collection[str] = ()) -> None:
        """Average the messages of all nodes, shape (node, dimension), with equal weight and take one step.

        All nodes have the same weight: weights by the numbers of drawn patients would reveal private information.
        """
        self.weights.grad = messages.mean(dim=0)
        if self.recipe is not None and self.layout is not None:
            self.recipe.set_round(self.optimiser, round_number)
            for name, gradient in self.layout.unflatten(self.weights.grad).items():
                self.parts[name].grad = gradient
        else:
            self.optimiser.param_groups[0]["lr"] = self.learning_rate(round_number)
        self.optimiser.step()
        if self.plateau is not None:
            self.plateau.step(float(self.weights.grad.norm()))
        if self._average is None:
            return
        count = round_number + 1 - (self.rounds - max(1, round(self.settings.averaged * self.rounds)))
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
    public
        Whether the starting weights are those of a public head. The head is then drawn towards it.

    Attributes
    ----------
    start
        Weight and bias of the public head; None if there is none.
    """

    def __init__(self, weights: Tensor, layout: Layout, *, public: bool) -> None:
        self.weights = torch.nn.Parameter(weights.clone())
        self.layout = layout
        start = layout.unflatten(weights.clone())
        self.start = (start["affine.weight"], start["affine.bias"]) if public else None

    def step(self, messages: Tensor, round_number: int, missing: Collection[str] = ()) -> None:
        """Set the weights to the head that follows from the messages of all nodes, shape (node, dimension)."""
        if (head := self.head(messages, missing)) is not None:
            weight, bias = (part.to(torch.complex64) for part in head)
            found = {"affine.weight": weight, "affine.bias": bias}
            self.weights.data.copy_(self.layout.flatten(found))

    @abstractmethod
    def head(self, messages: Tensor, missing: Collection[str] = ()) -> tuple[Tensor, Tensor] | None:
        """Return weight and bias of the head that follows from messages; None leaves the weights unchanged."""


class Solver(HeadReceiver):
    """A head that follows from the mean of the messages in closed form.

    Parameters
    ----------
    weights, layout, public
        As in `HeadReceiver`.
    statistic
        Estimator whose noisy mean contributions the nodes send.
    deviation
        Returns the standard deviation of the noise in each coordinate of the mean message, given the names of the nodes
        that are missing from it.
    """

    def __init__(
        self,
        weights: Tensor,
        layout: Layout,
        statistic: ClassMeans,
        *,
        deviation: Callable[[Collection[str]], float],
        public: bool,
    ) -> None:
        super().__init__(weights, layout, public=public)
        self.statistic, self.deviation = statistic, deviation

    def head(self, messages: Tensor, missing: Collection[str] = ()) -> tuple[Tensor, Tensor]:
        """Average the messages of all nodes with equal weight and solve for the head."""
        public = None if self.start is None else self.start[0]
        return self.statistic.head(messages.mean(dim=0), self.deviation(missing), public)


class Collector(HeadReceiver):
    """A head that is trained on mixed rows; the rows are stored with it.

    Parameters
    ----------
    weights, layout, public
        As in `HeadReceiver`.
    mixture
        How rows are mixed.
    learns
        Whether a head is trained on the rows here. If not, the weights stay unchanged.
    """

    def __init__(self, weights: Tensor, layout: Layout, mixture: Mixture, *, public: bool, learns: bool) -> None:
        super().__init__(weights, layout, public=public)
        self.mixture, self.learns = mixture, learns

    def head(self, messages: Tensor, missing: Collection[str] = ()) -> tuple[Tensor, Tensor] | None:
        """Store the rows of all nodes, one node after the other, and train a head on them."""
        self.released = messages.reshape(-1, self.mixture.dimension).cpu()
        return learnt_head(self.mixture.examples(self.released), self.start) if self.learns else None

    def state(self) -> dict[str, Tensor]:
        """Return all that a resumed server needs, as tensors."""
        return super().state() | ({} if self.released is None else {"released": self.released})

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state that `state` returned."""
        super().load(state)
        self.released = state.get("released")
