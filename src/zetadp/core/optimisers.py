"""Any optimiser and scheduler of PyTorch, as plain constants that a plan holds, and built again from them.

They see released gradients only, so whatever they do is post-processing and costs no privacy.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from zetadp.base.validation import UserError

PLAIN = (bool, int, float, str, type(None))
PLATEAU = ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lrs", "eps")
"""Attributes of `ReduceLROnPlateau` that are its options; the class takes ``min_lrs`` as ``min_lr``."""


@dataclass(frozen=True)
class Recipe:
    """What an optimiser is made of: its class, and options for groups of parameters.

    Attributes
    ----------
    optimiser
        Name of the class in `torch.optim`.
    groups
        For each group the names of its parameters, and its options in the first round.
    schedule
        For each group the options that a scheduler changes, with their values in every round. It is tabulated before
        the first round, so a scheduler sees the number of the round and nothing else.
    plateau
        Options of `ReduceLROnPlateau`, which sees the length of the released gradient; empty without it.
    """

    optimiser: str
    groups: tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...]
    schedule: tuple[Mapping[str, Sequence[Any]], ...] = ()
    plateau: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, optimiser: Optimizer, scheduler: LRScheduler | None = None, *, rounds: int) -> Self:
        """Read the recipe of an optimiser that was made for a model's parameters.

        Raises
        ------
        UserError
            If the optimiser is not of `torch.optim`, needs a closure, misses a trained parameter or holds one of
            another model, if an option is not a plain value, or if the schedule cannot be tabulated.
        """
        if getattr(torch.optim, type(optimiser).__name__, None) is not type(optimiser):
            raise UserError(
                f"optimiser: Expected an optimiser of torch.optim, found {type(optimiser).__qualname__}. Make one: "
                "torch.optim.SGD(model.parameters(), lr=0.05)."
            )
        if isinstance(optimiser, torch.optim.LBFGS):
            raise UserError(
                "optimiser: Expected an optimiser that takes one gradient a step, found LBFGS, which asks for more. "
                "Every gradient is a release. Use SGD, Adam or another."
            )
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = []
        for group in optimiser.param_groups:
            options = {key: _plain(group[key], key) for key in optimiser.defaults}
            if "initial_lr" in group and scheduler is None:  # a scheduler that is not used has changed the rate
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
        schedule: tuple[dict[str, list[Any]], ...] = ()
        plateau: dict[str, Any] = {}
        if scheduler is not None and getattr(scheduler, "optimizer", None) is not optimiser:
            raise UserError("scheduler: Expected one that was made for the optimiser given, found another. Give both.")
        if type(scheduler) is ReduceLROnPlateau:
            plateau = {name: _plain(getattr(scheduler, name), name) for name in PLATEAU}
        elif scheduler is not None:
            schedule = _tabulated(optimiser, scheduler, rounds)
        recipe = cls(type(optimiser).__name__, tuple(groups), schedule, plateau)
        parts = {name: nn.Parameter(p.detach().clone()) for name, p in model.named_parameters() if p.requires_grad}
        for part in parts.values():
            part.grad = torch.zeros_like(part)
        try:
            recipe.build(parts)[0].step()
        except (RuntimeError, TypeError, ValueError) as error:
            raise UserError(
                f"optimiser: Expected one that these weights and options fit, found {recipe.optimiser}: {error}. Use "
                "SGD, Adam or another."
            ) from error
        return recipe

    def build(self, parameters: Mapping[str, nn.Parameter]) -> tuple[Optimizer, ReduceLROnPlateau | None]:
        """Return a new optimiser for parameters by their names, and the scheduler that sees released gradients."""
        groups = [{"params": [parameters[name] for name in names], **options} for names, options in self.groups]
        optimiser: Optimizer = getattr(torch.optim, self.optimiser)(groups)
        if not self.plateau:
            return optimiser, None
        options = {key: value for key, value in self.plateau.items() if key != "min_lrs"}
        return optimiser, ReduceLROnPlateau(optimiser, min_lr=self.plateau["min_lrs"], **options)

    def set_round(self, optimiser: Optimizer, round_number: int) -> None:
        """Give an optimiser that `build` returned the options of a round, counted from zero."""
        for group, table in zip(optimiser.param_groups, self.schedule, strict=False):
            group.update({key: values[min(round_number, len(values) - 1)] for key, values in table.items()})

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as a JSON object."""
        content: dict[str, Any] = {"optimiser": self.optimiser}
        content["groups"] = [{"parameters": list(names), **options} for names, options in self.groups]
        content |= {"schedule": [dict(table) for table in self.schedule]} if self.schedule else {}
        return content | ({"plateau": dict(self.plateau)} if self.plateau else {})

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read a recipe that `to_json` wrote."""
        groups = []
        for group in content["groups"]:
            options = {key: _from_json(value) for key, value in group.items() if key != "parameters"}
            groups.append((tuple(group["parameters"]), options))
        schedule = [
            {key: [_from_json(value) for value in values] for key, values in table.items()}
            for table in content.get("schedule", ())
        ]
        return cls(content["optimiser"], tuple(groups), tuple(schedule), content.get("plateau", {}))


def _tabulated(optimiser: Optimizer, scheduler: LRScheduler, rounds: int) -> tuple[dict[str, list[Any]], ...]:
    """Return the options that a scheduler changes, in every round, from a copy of it that moves no weights."""
    groups = [{**group, "params": [torch.zeros(1)]} for group in optimiser.param_groups]
    stand_in = torch.optim.SGD(groups, lr=0.0)
    tables: list[dict[str, list[Any]]] = [{key: [] for key in optimiser.defaults} for _ in groups]
    try:
        twin = copy.deepcopy(scheduler, {id(optimiser): stand_in})
        for number in range(rounds):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a step of the schedule without one of the optimiser
                if number:
                    twin.step()
            for table, group in zip(tables, stand_in.param_groups, strict=True):
                for key, values in table.items():
                    values.append(_plain(group[key], key))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"scheduler: Expected a rate that follows from the number of the round alone, for {rounds} rounds, found "
            f"{type(scheduler).__name__}: {error}. Take one of torch.optim.lr_scheduler, or LambdaLR with a function "
            "of the round; ReduceLROnPlateau sees the length of the released gradient."
        ) from error
    if not all(math.isfinite(rate) for table in tables for rate in table["lr"]):
        raise UserError("scheduler: Expected finite learning rates in all rounds, found NaN or infinity.")
    return tuple({key: values for key, values in table.items() if values != values[:1] * rounds} for table in tables)


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
