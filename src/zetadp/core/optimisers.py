"""Any optimiser and scheduler of PyTorch, as plain constants that a plan holds, and built again from them.

They see released gradients only, so whatever they do is post-processing and costs no privacy.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zetadp.base.validation import UserError

PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Recipe:
    """What an optimiser is made of: its class, and options for groups of parameters.

    Attributes
    ----------
    optimiser
        Name of the class in `torch.optim`.
    groups
        For each group the names of its parameters, and its options.
    scheduler
        Name of the class in `torch.optim.lr_scheduler`; empty without a scheduler.
    schedule
        Options of the scheduler. It takes one step after each round.
    """

    optimiser: str
    groups: tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...]
    scheduler: str = ""
    schedule: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, model: nn.Module, optimiser: Optimizer, scheduler: LRScheduler | None = None) -> Self:
        """Read the recipe of an optimiser that was made for a model's parameters.

        Raises
        ------
        UserError
            If the optimiser is not of `torch.optim`, needs a closure, misses a trained parameter or holds one of
            another model, or if an option is not a plain value.
        """
        if getattr(torch.optim, type(optimiser).__name__, None) is not type(optimiser):
            raise UserError(f"optimiser: Expected an optimiser of torch.optim, found {type(optimiser).__qualname__}.")
        if isinstance(optimiser, torch.optim.LBFGS):
            raise UserError(
                "optimiser: Expected an optimiser that takes one gradient a step, found LBFGS, which asks for more. "
                "Every gradient is a release. Use SGD, Adam or another."
            )
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = []
        for group in optimiser.param_groups:
            options = {key: _plain(value, key) for key, value in group.items() if key not in ("params", "initial_lr")}
            if "initial_lr" in group:  # a scheduler has changed the rate since
                options["lr"] = _plain(group["initial_lr"], "lr")
            missing = [parameter for parameter in group["params"] if id(parameter) not in names]
            if missing:
                raise UserError(
                    "optimiser: Expected parameters of the model that is trained, found others. Make the optimiser "
                    "with model.parameters()."
                )
            wanted = tuple(names[id(p)] for p in group["params"] if p.requires_grad)
            groups.append((wanted, options))
        held = {name for wanted, _ in groups for name in wanted}
        left = [name for name, p in model.named_parameters() if p.requires_grad and name not in held]
        if left:
            raise UserError(
                f"optimiser: Expected every trained parameter, found none of {left[0]!r}. Give it to the optimiser, or "
                "freeze it with requires_grad_(False)."
            )
        recipe = cls(type(optimiser).__name__, tuple(groups))
        if scheduler is None:
            return recipe
        recipe = replace(recipe, scheduler=type(scheduler).__name__, schedule=_schedule(scheduler))
        try:
            recipe.build(dict(model.named_parameters()))
        except (TypeError, ValueError) as error:
            raise UserError(
                f"scheduler: Expected one that plain numbers describe, found {recipe.scheduler}: {error}. StepLR, "
                "MultiStepLR, CosineAnnealingLR and LinearLR are among them."
            ) from error
        return recipe

    def build(self, parameters: Mapping[str, nn.Parameter]) -> tuple[Optimizer, LRScheduler | None]:
        """Return a new optimiser, and its scheduler, for parameters by their names."""
        groups = [{"params": [parameters[name] for name in names], **options} for names, options in self.groups]
        optimiser: Optimizer = getattr(torch.optim, self.optimiser)([each for each in groups if each["params"]])
        if not self.scheduler:
            return optimiser, None
        return optimiser, getattr(torch.optim.lr_scheduler, self.scheduler)(optimiser, **(self.schedule or {}))

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as a JSON object."""
        content: dict[str, Any] = {"optimiser": self.optimiser}
        content["groups"] = [{"parameters": list(names), **options} for names, options in self.groups]
        if self.scheduler:
            content |= {"scheduler": self.scheduler, "schedule": dict(self.schedule or {})}
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read a recipe that `to_json` wrote."""
        groups = []
        for group in content["groups"]:
            options = {key: _from_json(value) for key, value in group.items() if key != "parameters"}
            groups.append((tuple(group["parameters"]), options))
        schedule = content.get("schedule")
        return cls(content["optimiser"], tuple(groups), content.get("scheduler", ""), schedule)


def _schedule(scheduler: LRScheduler) -> dict[str, Any]:
    """Return the options that a scheduler was made with: its attributes of the names of its class's arguments."""
    name = type(scheduler).__name__
    refused = ("LambdaLR", "MultiplicativeLR", "ReduceLROnPlateau", "SequentialLR", "ChainedScheduler")
    if getattr(torch.optim.lr_scheduler, name, None) is not type(scheduler) or name in refused:
        raise UserError(
            f"scheduler: Expected a scheduler of torch.optim.lr_scheduler that plain numbers describe, found {name}. "
            "StepLR, MultiStepLR, CosineAnnealingLR and LinearLR are among them."
        )
    names = [key for key in inspect.signature(type(scheduler)).parameters if key not in ("optimizer", "last_epoch")]
    found = {key: getattr(scheduler, key) for key in names if hasattr(scheduler, key)}
    if "milestones" in found:  # which PyTorch keeps as a Counter
        found["milestones"] = sorted(found["milestones"].elements())
    return {key: _plain(value, key) for key, value in found.items()}


def _plain(value: Any, key: str) -> Any:  # noqa: ANN401  (an option)
    """Return an option as a value that JSON can hold."""
    if isinstance(value, torch.Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, tuple | list) and all(isinstance(each, PLAIN) for each in value):
        return list(value)
    if isinstance(value, PLAIN):
        return value
    raise UserError(f"optimiser: Expected a number for {key}, found {type(value).__name__}.")


def _from_json(value: Any) -> Any:  # noqa: ANN401  (an option)
    return tuple(value) if isinstance(value, list) else value
