"""Networks and losses in which one unit changes the contribution of another are refused before anything is recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from training_builder import CLASSES

from zetadp.base.validation import UserError
from zetadp.mechanism.clipping import clipped_sums
from zetadp.mechanism.contributions import Contributors, cross_entropies
from zetadp.nn.layers import Linear
from zetadp.training.independence import check_independence, check_run
from zetadp.training.records import LabelledItems
from zetadp.training.round import Phase

INPUTS = 6
UNITS, ITEMS = 12, 2


class Map(nn.Module):
    """An affine map of the library, which computes all units in one batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Linear(INPUTS, 5, dtype=torch.float32)
        self.middle = nn.Identity()
        self.last = Linear(5, CLASSES, dtype=torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(self.prepared(x)).tanh()))

    def prepared(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Plain(Map):
    """The same map of PyTorch's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(INPUTS, 5), nn.Linear(5, CLASSES)


def mixing(base: type[Map], prepare) -> type[Map]:
    return type("Mixing", (base,), {"prepared": lambda self, x: prepare(self, x)})


class NormalisedGradient(torch.autograd.Function):
    """The identity, whose backward pass divides by the gradient of the whole batch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.norm()


class Backwards(Map):
    """Mixes in the backward pass alone."""

    def forward(self, x):
        return self.last(NormalisedGradient.apply(self.first(x).tanh()))


class Remembers(Map):
    """Writes a statistic of the items into a buffer, which would be released without noise."""

    def __init__(self, *, saved: bool, evaluated: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(INPUTS), persistent=saved)
        self.evaluated = evaluated

    def forward(self, x):
        if self.evaluated or torch.is_grad_enabled():
            with torch.no_grad():
                self.mean += x.mean(dim=0)
        return super().forward(x)


WAYS = {
    "divides by the largest number": lambda _, x: x / x.abs().max(),
    "centres batches of more than 16": lambda _, x: x - x.mean(0) if len(x) > 16 else x,
    "adds a little of the mean": lambda _, x: x + 1e-5 * x.mean(0),
    "takes the first item away": lambda _, x: x - x[:1],
    "centres batches of more than 2": lambda _, x: x - x.mean(0) if len(x) > 2 else x,
    "takes the last item away": lambda _, x: x - x[-1:],
    "fills missing values in with the mean": lambda _, x: torch.where(x == 0, x.mean(0), x),
    "divides by the median": lambda _, x: x / x.median(),
    "adds the neighbour": lambda _, x: x + x.roll(ITEMS, 0),
    "centres in training only": lambda self, x: x - x.mean(0) if self.training else x,
    "cuts at a detached quantile": lambda _, x: x.clamp(max=x.detach().flatten().sort().values[-2]),
}


def balanced(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Weights classes by their frequency in the batch."""
    counts = torch.bincount(targets, minlength=CLASSES).float()
    return cross_entropies(outputs, targets) * len(targets) / (CLASSES * counts[targets])


def ranked(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Leaves easy items out, compared with the others of the batch."""
    losses = cross_entropies(outputs, targets)
    return losses * (losses >= losses.detach().median())


LOSSES = {
    "balanced by the batch": balanced,
    "hard items of the batch": ranked,
    "divided by the batch's largest": lambda o, y: cross_entropies(o, y) / cross_entropies(o, y).detach().max(),
}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    # Sorted classes, and the largest number in front: neighbours look alike, and a few items show nothing.
    x = torch.randn(UNITS, ITEMS, INPUTS, generator=random)
    x[0, 0, 0] = 9.0
    return x, torch.arange(UNITS * ITEMS).view(UNITS, ITEMS) * CLASSES // (UNITS * ITEMS)


@pytest.mark.parametrize("base", [Map, Plain])
@pytest.mark.parametrize("way", WAYS)
def test_a_network_that_mixes_units_in_any_way_is_refused(way, base):
    with pytest.raises(UserError, match="mixes"):
        check_independence(mixing(base, WAYS[way])(), cross_entropies, *batch())


def test_mixing_in_the_backward_pass_alone_is_refused():
    with pytest.raises(UserError, match="backward pass"):
        check_independence(Backwards(), cross_entropies, *batch())


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("base", [Map, Plain])
def test_a_loss_that_mixes_units_is_refused(base, name):
    with pytest.raises(UserError, match="loss"):
        check_independence(base(), LOSSES[name], *batch())


@pytest.mark.parametrize(("saved", "evaluated"), [(True, True), (False, True), (True, False)])
def test_a_statistic_of_the_items_in_a_buffer_is_refused(saved, evaluated):
    with pytest.raises(UserError, match="'mean'"):
        check_independence(Remembers(saved=saved, evaluated=evaluated), cross_entropies, *batch())


def test_where_each_unit_takes_a_pass_of_its_own_nothing_mixes_them():
    """Neither does what no check can see: a network that mixes units on numbers that the checked ones do not have."""
    torch.manual_seed(1)
    model = mixing(Map, lambda _, x: torch.where(x == -1, x.mean(0), x))()
    x, y = (each.flatten(0, 1) for each in batch())
    x[-6 * ITEMS :, ::2] = -1
    units = [range(first, first + ITEMS) for first in range(0, len(x), ITEMS)]
    phase = replace(Phase.of(model, ITEMS), chunk=6 * ITEMS)
    phase = check_run(phase, LabelledItems(x, y), units, alone=True)

    def total(items: torch.Tensor) -> torch.Tensor:
        chosen, groups = torch.tensor([list(unit) for unit in units]), torch.zeros(len(units), dtype=torch.long)
        drawn = Contributors(items, y, chosen, groups, 1)
        return clipped_sums(phase.contribution, drawn, bound=0.1, chunk=phase.chunk).sums

    changed = x.clone()
    changed[-ITEMS:] = 1e4
    assert (total(changed) - total(x)).norm() <= 2 * 0.1


def test_draws_of_its_own_are_refused():
    noisy = mixing(Map, lambda _, x: x + 1e-6 * torch.randn_like(x))
    with pytest.raises(UserError, match="draws"):
        check_independence(noisy(), cross_entropies, *batch())


def test_batch_normalisation_is_judged_by_what_it_does():
    model = Plain()
    model.middle = nn.BatchNorm1d(5, track_running_stats=False)
    with pytest.raises(UserError, match=r"layer 'middle' \(BatchNorm1d\) that mixes"):
        check_independence(model, cross_entropies, *batch())
    model.middle = nn.BatchNorm1d(5)
    with pytest.raises(UserError, match="middle"):
        check_independence(model, cross_entropies, *batch())
    check_independence(model.eval(), cross_entropies, *batch())
