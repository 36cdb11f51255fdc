"""Any optimiser and scheduler of PyTorch, as plain constants that a plan holds, and built again from them.

They see released gradients only, so whatever they do is post-processing and costs no privacy.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from inspect import signature
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from zetadp.base.usercode import user_code
from zetadp.base.validation import UserError
from zetadp.training.networks import plain_name
from zetadp.training.settings import OptimiserSettings

Recipe: TypeAlias = Mapping[str, Any]
"""Keys of a recipe, as JSON holds them:

- ``optimiser``: name of the class in `torch.optim`;
- ``groups``: for each group the names of its ``parameters``, and its options in the first round;
- ``schedule``: for each group the options that a scheduler changes, with their values in every round. It is tabulated
  before the first round, so a scheduler sees the number of the round and nothing else. Absent without a scheduler;
- ``plateau``: options of `ReduceLROnPlateau`, which sees the length of the released gradient. Absent without it.
"""
PLAIN = (bool, int, float, str, type(None))
PLATEAU = ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lrs", "eps")
"""Attributes of `ReduceLROnPlateau` that are its options; the class takes ``min_lrs`` as ``min_lr``."""


def recipe_of(
    model: nn.Module, optimiser: Optimizer, scheduler: LRScheduler | None = None, *, rounds: int
) -> dict[str, Any]:
    """Return the recipe of an optimiser that was made for a model's parameters.

    Raises
    ------
    UserError
        If the optimiser is not of `torch.optim`, needs a closure, misses a trained parameter or holds one of another
        model, if it has stepped or has hooks, if an option is not a plain value, or if the schedule cannot be
        tabulated.
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
    parameters = {plain_name(name): parameter for name, parameter in model.named_parameters()}
    names = {id(parameter): name for name, parameter in parameters.items()}
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
        groups.append({"parameters": [names[id(p)] for p in group["params"] if p.requires_grad], **options})
    assigned = {name for group in groups for name in group["parameters"]}
    left = [name for name, p in parameters.items() if p.requires_grad and name not in assigned]
    if left:
        raise UserError(
            f"optimiser: Expected every trained parameter, found none of {left[0]!r}. Give it to the optimiser, or "
            "freeze it with requires_grad_(False)."
        )
    recipe: dict[str, Any] = {"optimiser": type(optimiser).__name__, "groups": groups}
    if scheduler is not None and getattr(scheduler, "optimizer", None) is not optimiser:
        raise UserError("scheduler: Expected one that was made for the optimiser given, found another. Give both.")
    if type(scheduler) is ReduceLROnPlateau:
        recipe["plateau"] = {name: _plain(getattr(scheduler, name), name) for name in PLATEAU}
    elif scheduler is not None:
        recipe["schedule"] = _tabulated(optimiser, scheduler, rounds)
    parts = {name: nn.Parameter(p.detach().clone()) for name, p in parameters.items() if p.requires_grad}
    for part in parts.values():
        part.grad = torch.zeros_like(part)
    try:
        new = build(recipe, parts)[0]
        _check_new(optimiser, new, {part: parameters[name] for name, part in parts.items()})
        new.step()
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"optimiser: Expected one that these weights and options fit, found {type(optimiser).__name__}: {error}. "
            "Use SGD, Adam or another."
        ) from error
    return recipe


def recipe_in(settings: OptimiserSettings, rounds: int) -> Recipe:
    """Return the recipe that settings describe, for all weights as one vector called ``all``, or the user's own."""
    if settings.recipe is not None:
        return settings.recipe
    # With this dampening the momentum is a running mean, so the rate means the same for every momentum.
    momentum = {"momentum": settings.momentum, "dampening": settings.momentum}
    late = settings.drop_after * rounds
    rates = [settings.learning_rate / (settings.drop_factor if n >= late else 1.0) for n in range(rounds)]
    return {
        "optimiser": {"nadam": "NAdam", "sgd": "SGD"}[settings.name],
        "groups": [{"parameters": ["all"], **(momentum if settings.name == "sgd" else {})}],
        "schedule": [{"lr": rates}],
    }


def build(recipe: Recipe, parameters: Mapping[str, nn.Parameter]) -> tuple[Optimizer, ReduceLROnPlateau | None]:
    """Return a new optimiser for parameters by their names, and the scheduler that sees released gradients."""
    groups = []
    for group in recipe["groups"]:
        options = {key: _option(value) for key, value in group.items() if key != "parameters"}
        groups.append({"params": [parameters[name] for name in group["parameters"]], **options})
    kind = getattr(torch.optim, recipe["optimiser"])
    # Adagrad makes its state from the arguments, whatever its groups say.
    names = [name for name in signature(kind).parameters if name in groups[0] and name != "params"]
    optimiser: Optimizer = kind(groups, **{name: groups[0][name] for name in names})
    if "plateau" not in recipe:
        return optimiser, None
    options = {key: value for key, value in recipe["plateau"].items() if key != "min_lrs"}
    return optimiser, ReduceLROnPlateau(optimiser, min_lr=recipe["plateau"]["min_lrs"], **options)


def set_round(recipe: Recipe, optimiser: Optimizer, round_number: int) -> None:
    """Give an optimiser that `build` returned the options of a round, counted from zero."""
    for group, table in zip(optimiser.param_groups, recipe.get("schedule", ()), strict=False):
        group.update({key: _option(values[min(round_number, len(values) - 1)]) for key, values in table.items()})


def _check_new(optimiser: Optimizer, new: Optimizer, parameters: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Refuse an optimiser with what a recipe does not hold: a state that a new one has not, or hooks.

    Parameters
    ----------
    optimiser, new
        The optimiser to check, and a new one of its recipe.
    parameters
        For each parameter of the new one, that of the checked one.
    """
    for part, parameter in parameters.items():
        before, after = optimiser.state.get(parameter, {}), new.state.get(part, {})
        if before.keys() != after.keys() or not all(torch.equal(*_tensors(before[key], after[key])) for key in before):
            raise UserError(
                f"optimiser: Expected a new optimiser, found {type(optimiser).__name__} with a state "
                f"({', '.join(map(str, before))}): it has stepped, or a state was loaded. Training would begin without "
                "it. Make a new one of model.parameters()."
            )
    if optimiser._optimizer_step_pre_hooks or optimiser._optimizer_step_post_hooks:
        raise UserError(
            f"optimiser: Expected an optimiser without hooks, found hooks of {type(optimiser).__name__}, which "
            "training would not call. Remove them."
        )


def _tensors(*values: Any) -> list[torch.Tensor]:  # noqa: ANN401  (what a state holds)
    return [torch.as_tensor(value).cpu() for value in values]


def _tabulated(optimiser: Optimizer, scheduler: LRScheduler, rounds: int) -> list[dict[str, list[Any]]]:
    """Return the options that a scheduler changes, in every round, from a copy of it that moves no weights."""
    groups = [{**group, "params": [torch.zeros(1)]} for group in optimiser.param_groups]
    stand_in = torch.optim.SGD(groups, lr=0.0)
    tables: list[dict[str, list[Any]]] = [{key: [] for key in optimiser.defaults} for _ in groups]
    failed = (
        f"scheduler: Expected a rate that follows from the number of the round alone, for {rounds} rounds, found an "
        f"error of {type(scheduler).__name__}: "
    )
    hint = (
        " Take one of torch.optim.lr_scheduler, or LambdaLR with a function of the round; ReduceLROnPlateau sees the "
        "length of the released gradient."
    )
    with user_code(failed, hint):
        twin = copy.deepcopy(scheduler, {id(optimiser): stand_in})
        for number in range(rounds):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a step of the schedule without one of the optimiser
                if number:
                    twin.step()
            for table, group in zip(tables, stand_in.param_groups, strict=True):
                for key, values in table.items():
                    values.append(_plain(group[key], key))
    return [{key: values for key, values in table.items() if values != values[:1] * rounds} for table in tables]


def _plain(value: Any, key: str) -> Any:  # noqa: ANN401  (an option)
    """Return an option as a value that JSON can hold."""
    if isinstance(value, torch.Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, tuple | list) and all(isinstance(element, PLAIN) for element in value):
        return list(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"optimiser: Expected a finite number for {key} in every round, found {value}.")
    if isinstance(value, PLAIN):
        return value
    raise UserError(f"optimiser: Expected a number for {key}, found {type(value).__name__}.")


def _option(value: Any) -> Any:  # noqa: ANN401  (any value)
    """Return an option of a recipe as PyTorch takes it."""
    return tuple(value) if isinstance(value, list) else value
