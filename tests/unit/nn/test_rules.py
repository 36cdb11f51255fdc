"""Layers of PyTorch by rules: the gradients of a plain loop, or the slower way where rules do not hold."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from zetadp.core.independence import follows_rules
from zetadp.core.round import Phase
from zetadp.nn import ComplexGroupNorm
from zetadp.privacy.factored import Factored

UNITS, ITEMS = 3, 2
COMPLEX = torch.complex64


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


class Modulus(nn.Module):
    def forward(self, x):
        return x.abs()


class Tokens(nn.Module):
    """A layer that is called on tokens, and twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x))).mean(dim=1)


class Swapped(Tokens):
    """Tokens come before items."""

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).mean(dim=0)


class Elsewhere(Tokens):
    """A weight that is used outside its layer too."""

    def forward(self, x):
        return self.layer(x).mean(dim=1) + self.layer.weight.sum(dim=1)


class Own(Tokens):
    """A weight of the network's own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return self.gain * super().forward(x)


def frozen_norm() -> nn.Module:
    norm = nn.BatchNorm2d(4).eval()
    norm.running_mean += 0.3
    return norm


def frozen_first() -> nn.Module:
    model = flat(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3))
    model[0].requires_grad_(requires_grad=False)
    model[2].weight.requires_grad_(requires_grad=False)
    return model


IMAGE, SIGNAL, TOKENS = (2, 8, 7), (2, 12), (5, 6)
NETWORKS = {
    "linear": (lambda: nn.Sequential(nn.Linear(12, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), (12,), torch.float32),
    "large": (lambda: nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 3, bias=False)), (40,), torch.float32),
    "complex linear": (lambda: nn.Sequential(nn.Linear(12, 5, dtype=COMPLEX), Modulus()), (12,), COMPLEX),
    "large complex": (lambda: nn.Sequential(nn.Linear(90, 90, dtype=COMPLEX), Modulus()), (90,), COMPLEX),
    "tokens": (Tokens, TOKENS, torch.float32),
    "convolutions": (
        lambda: flat(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, stride=2, groups=2)),
        IMAGE,
        torch.float32,
    ),
    "odd convolution": (lambda: flat(nn.Conv2d(2, 4, (3, 2), padding=(1, 0), dilation=2)), IMAGE, torch.float32),
    "complex convolutions": (
        lambda: flat(nn.Conv2d(2, 4, 3, padding=1, dtype=COMPLEX), nn.Conv2d(4, 3, (1, 3), dtype=COMPLEX), Modulus()),
        IMAGE,
        COMPLEX,
    ),
    "signals": (lambda: flat(nn.Conv1d(2, 4, 5, padding=2), nn.GroupNorm(2, 4), nn.Tanh()), SIGNAL, torch.float32),
    "norms": (
        lambda: flat(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.LayerNorm((6, 5)), frozen_norm()),
        IMAGE,
        torch.float32,
    ),
    "frozen": (frozen_first, IMAGE, torch.float32),
    "with layers of zetadp": (
        lambda: flat(nn.Conv2d(2, 4, 3, dtype=COMPLEX), ComplexGroupNorm(2, 4), Modulus()),
        IMAGE,
        COMPLEX,
    ),
}


def phase_of(make, shape, kind) -> tuple[Phase, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = make()
    images = torch.randn(UNITS, ITEMS, *shape, dtype=kind)
    labels = torch.randint(3, (UNITS, ITEMS))
    with torch.no_grad():
        model(images.flatten(0, 1))  # fixes lazy layers
    return Phase.of(model, ITEMS), images, labels


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_rules_give_the_gradients_of_a_plain_loop(name):
    phase, images, labels = phase_of(*NETWORKS[name])
    assert follows_rules(phase, images.flatten(0, 1))
    contribution = phase.with_rules().contribution
    weights = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.3, 0.7]])
    trained = [phase.model.get_parameter(name) for name in phase.layout.names]
    before = {name: value.clone() for name, value in phase.model.state_dict().items()}
    for factors in (False, True):
        found = contribution.of_units(images, labels, factors=factors, weights=weights)
        if factors:
            assert any(isinstance(row, Factored) for row in found) == name.startswith("large")
            found = [
                row.left.mT @ row.right if isinstance(row, Factored) and not row.is_complex else row for row in found
            ]
        for unit in range(UNITS):
            loss = functional.cross_entropy(phase.model(images[unit]), labels[unit], reduction="none") @ weights[unit]
            for row, expected in zip(found, torch.autograd.grad(loss, trained), strict=True):
                if not isinstance(row, Factored):
                    plain = torch.view_as_real(expected) if expected.is_complex() else expected
                    torch.testing.assert_close(row[unit].flatten(), plain.flatten(), rtol=1e-4, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in phase.model.state_dict().items())
    assert not any(module._forward_hooks for module in phase.model.modules())


@pytest.mark.parametrize("make", [Swapped, Elsewhere, Own])
def test_where_rules_do_not_hold_gradients_are_computed_unit_by_unit(make):
    phase, images, _ = phase_of(make, TOKENS, torch.float32)
    assert not follows_rules(phase, images.flatten(0, 1))
