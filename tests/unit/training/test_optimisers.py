"""Optimisers and schedulers of PyTorch, driven from released gradients."""

from __future__ import annotations

import json

import pytest
import torch
from torch.optim import lr_scheduler

from zetadp.base.tensors import Layout
from zetadp.base.validation import UserError
from zetadp.training.optimisers import recipe_of
from zetadp.training.server import Server
from zetadp.training.settings import OptimiserSettings


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4, dtype=torch.complex64), torch.nn.Linear(4, 2, dtype=torch.complex64)
    )


def groups(net):
    first = {"params": [net[0].weight], "lr": 0.5, "momentum": 0.8}
    return torch.optim.SGD(
        [first, {"params": [net[0].bias, *net[1].parameters()]}], lr=0.1, momentum=0.9, nesterov=True
    )


OPTIMISERS = {
    "SGD in groups": groups,
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.1, amsgrad=True),
    "Adagrad": lambda net: torch.optim.Adagrad(net.parameters(), lr=0.02, initial_accumulator_value=1.0),
    "RAdam": lambda net: torch.optim.RAdam(net.parameters(), lr=0.02),
}
SCHEDULERS = {
    "none": lambda _: None,
    "StepLR": lambda optimiser: lr_scheduler.StepLR(optimiser, 2, gamma=0.5),
    "LambdaLR": lambda optimiser: lr_scheduler.LambdaLR(optimiser, lambda done: 0.9**done),
    "OneCycleLR": lambda optimiser: lr_scheduler.OneCycleLR(
        optimiser, 0.3, total_steps=ROUNDS, cycle_momentum=not {"momentum", "betas"}.isdisjoint(optimiser.defaults)
    ),
    "SequentialLR": lambda optimiser: lr_scheduler.SequentialLR(
        optimiser,
        [
            lr_scheduler.LinearLR(optimiser, 0.1, total_iters=3),
            lr_scheduler.LambdaLR(optimiser, lambda done: 0.5**done),
        ],
        milestones=[3],
    ),
    "ReduceLROnPlateau": lambda optimiser: lr_scheduler.ReduceLROnPlateau(optimiser, patience=0, factor=0.5),
}
ROUNDS = 6


def server(recipe, net):
    layout = Layout.of(net)
    start = layout.flatten(dict(net.named_parameters())).detach()
    return Server(start, OptimiserSettings(recipe=json.loads(json.dumps(recipe))), ROUNDS, layout)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_the_server_moves_weights_as_the_users_own_loop_would(optimiser, scheduler):
    net = model()
    own = OPTIMISERS[optimiser](net)
    schedule = SCHEDULERS[scheduler](own)
    found = server(recipe_of(net, own, schedule, rounds=ROUNDS), net)
    layout, random = found.layout, torch.Generator().manual_seed(1)
    for number in range(ROUNDS):
        messages = torch.randn(3, len(found.weights), generator=random)
        if number == 3:  # a resumed run goes on as if nothing had happened
            kept = {name: value.clone() for name, value in found.state().items()}
            again = OPTIMISERS[optimiser](net)
            found = server(recipe_of(net, again, SCHEDULERS[scheduler](again), rounds=ROUNDS), net)
            found.load(kept)
        assert found.learning_rate(number) == own.param_groups[0]["lr"]
        found.step(messages, number)
        for name, gradient in layout.unflatten(messages.mean(dim=0)).items():
            net.get_parameter(name).grad = gradient
        own.step()
        if isinstance(schedule, lr_scheduler.ReduceLROnPlateau):
            schedule.step(messages.mean(dim=0).norm())
        elif schedule is not None:
            schedule.step()
        assert torch.equal(found.weights, layout.flatten(dict(net.named_parameters())))


WRONG = {
    "closure": lambda net: (torch.optim.LBFGS(net.parameters()), None),
    "another model": lambda _: (torch.optim.SGD(model().parameters(), lr=0.1), None),
    "a parameter left out": lambda net: (torch.optim.SGD(net[0].parameters(), lr=0.1), None),
    "own class": lambda net: (type("Mine", (torch.optim.SGD,), {})(net.parameters(), lr=0.1), None),
    "real weights only": lambda net: (torch.optim.Adafactor(net.parameters()), None),
    "too short": lambda net: _with(net, lambda o: lr_scheduler.OneCycleLR(o, 0.1, 3)),
    "of another optimiser": lambda net: (_with(net, None)[0], _with(net, lambda o: lr_scheduler.StepLR(o, 1))[1]),
    "a function of a loss": lambda net: _with(net, lambda o: lr_scheduler.LambdaLR(o, _at_start)),
    "infinite": lambda net: _with(net, lambda o: lr_scheduler.LambdaLR(o, lambda done: float("inf") if done else 1.0)),
    "infinite from the start": lambda net: (torch.optim.SGD(net.parameters(), lr=float("inf")), None),
    "no number": lambda net: (torch.optim.SGD(net.parameters(), lr=float("nan")), None),
    "for a GPU": lambda net: (torch.optim.Adam(net.parameters(), capturable=True), None),
    "has stepped": lambda net: (_stepped(net), None),
    "has hooks": lambda net: (_hooked(net), None),
    "no scheduler": lambda net: (_with(net, None)[0], object()),
}


def _at_start(done: int) -> float:
    if done:
        raise RuntimeError("no loss is known")
    return 1.0


def _stepped(net):
    optimiser = torch.optim.Adam(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    return optimiser


def _hooked(net):
    optimiser = torch.optim.Adam(net.parameters())
    optimiser.register_step_post_hook(lambda *_: None)
    return optimiser


def _with(net, scheduler):
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return optimiser, scheduler(optimiser) if scheduler else None


@pytest.mark.parametrize("what", WRONG)
def test_what_the_number_of_the_round_cannot_describe_is_refused(what):
    net = model()
    with pytest.raises(UserError, match=r"^(optimiser|scheduler): "):
        recipe_of(net, *WRONG[what](net), rounds=ROUNDS)
