"""Optimisers and schedulers of PyTorch, driven from released gradients."""

from __future__ import annotations

import json

import pytest
import torch
from torch.optim import lr_scheduler

from zetadp.base.tensors import Layout
from zetadp.base.validation import UserError
from zetadp.core.optimisers import Recipe
from zetadp.core.server import Server
from zetadp.core.settings import OptimiserSettings


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4, dtype=torch.complex64), torch.nn.Linear(4, 2, dtype=torch.complex64)
    )


def groups(net):
    first = {"params": [net[0].weight], "lr": 0.5}
    return torch.optim.SGD(
        [first, {"params": [net[0].bias, *net[1].parameters()]}], lr=0.1, momentum=0.9, nesterov=True
    )


OPTIMISERS = {
    "SGD in groups": groups,
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.1, amsgrad=True),
    "RMSprop": lambda net: torch.optim.RMSprop(net.parameters(), lr=0.02),
    "Adagrad": lambda net: torch.optim.Adagrad(net.parameters(), lr=0.02),
    "RAdam": lambda net: torch.optim.RAdam(net.parameters(), lr=0.02),
}
SCHEDULERS = {
    "none": lambda _: None,
    "StepLR": lambda optimiser: lr_scheduler.StepLR(optimiser, 2, gamma=0.5),
    "MultiStepLR": lambda optimiser: lr_scheduler.MultiStepLR(optimiser, [1, 1, 3]),
    "CosineAnnealingLR": lambda optimiser: lr_scheduler.CosineAnnealingLR(optimiser, 6),
}


def server(recipe, net):
    layout = Layout.of(net)
    start = layout.flatten(dict(net.named_parameters())).detach()
    return Server(start, OptimiserSettings(recipe=json.loads(json.dumps(recipe.to_json()))), 6, layout)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_the_server_moves_weights_as_the_users_own_loop_would(optimiser, scheduler):
    net = model()
    own = OPTIMISERS[optimiser](net)
    schedule = SCHEDULERS[scheduler](own)
    found = server(Recipe.of(net, own, schedule), net)
    layout, random = found.layout, torch.Generator().manual_seed(1)
    for number in range(6):
        messages = torch.randn(3, len(found.weights), generator=random)
        if number == 3:  # a resumed run goes on as if nothing had happened
            kept = {name: value.clone() for name, value in found.state().items()}
            found = server(
                Recipe.of(net, OPTIMISERS[optimiser](net), SCHEDULERS[scheduler](OPTIMISERS[optimiser](net))), net
            )
            found.load(kept)
        found.step(messages, number)
        for name, gradient in layout.unflatten(messages.mean(dim=0)).items():
            net.get_parameter(name).grad = gradient
        own.step()
        if schedule is not None:
            schedule.step()
        assert torch.equal(found.weights, layout.flatten(dict(net.named_parameters())))
        assert found.learning_rate(number + 1) == own.param_groups[0]["lr"]


WRONG = {
    "closure": lambda net: (torch.optim.LBFGS(net.parameters()), None),
    "another model": lambda _: (torch.optim.SGD(model().parameters(), lr=0.1), None),
    "a parameter left out": lambda net: (torch.optim.SGD(net[0].parameters(), lr=0.1), None),
    "own class": lambda net: (type("Mine", (torch.optim.SGD,), {})(net.parameters(), lr=0.1), None),
    "function": lambda net: _with(net, lambda o: lr_scheduler.LambdaLR(o, lambda _: 1.0)),
    "metric": lambda net: _with(net, lr_scheduler.ReduceLROnPlateau),
    "not rebuilt": lambda net: _with(net, lambda o: lr_scheduler.OneCycleLR(o, 0.1, 20)),
}


def _with(net, scheduler):
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return optimiser, scheduler(optimiser)


@pytest.mark.parametrize("what", WRONG)
def test_what_plain_numbers_cannot_describe_is_refused(what):
    net = model()
    with pytest.raises(UserError, match=r"^(optimiser|scheduler): "):
        Recipe.of(net, *WRONG[what](net))


def test_frozen_weights_need_no_optimiser():
    net = model()
    net[0].requires_grad_(requires_grad=False)
    recipe = Recipe.of(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert recipe.groups[0][0] == ("1.weight", "1.bias")
