"""Dropout by unit: the right masks, and none that depends on other units."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zetadp.base.tensors import Layout
from zetadp.mechanism.contributions import Gradient
from zetadp.mechanism.dropout import UnitDropout

SHAPE = (20, 30, 40)


def dropped(key: int, layer: nn.Module, x: torch.Tensor | None = None) -> torch.Tensor:
    with UnitDropout(torch.tensor([key])):
        return layer(torch.ones(SHAPE) if x is None else x)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_asked_and_the_mean_stays(p):
    found = dropped(3, nn.Dropout(p))
    assert found.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
    trials = found.numel()
    assert abs((found == 0).sum() - trials * p) < 5 * (trials * p * (1 - p)) ** 0.5


def test_masks_differ_between_keys_calls_and_places_and_follow_from_the_key():
    twice = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    one, other = dropped(0, nn.Dropout(0.5)), dropped(1, nn.Dropout(0.5))
    assert torch.equal(one, dropped(0, nn.Dropout(0.5)))
    for mask in (other, one.flip(0), one.flip(2), dropped(0, twice)):
        both = ((one > 0) & (mask > 0)).double().mean()
        assert abs(both - 0.25) < 0.02
    assert torch.equal(dropped(0, nn.Dropout(1.0)), torch.zeros(SHAPE))
    x = torch.ones(SHAPE)
    assert torch.equal(dropped(0, nn.Dropout(0.5, inplace=True), x), x)
    assert torch.equal(x, one)


def test_a_units_gradient_is_that_of_the_unit_alone_with_its_key():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3))
    contribution = Gradient(model, Layout.of(model), rules=True)
    images, labels, keys = torch.randn(5, 2, 6), torch.randint(3, (5, 2)), torch.tensor([7, 8, 9, 10, 7])

    def rows(units: list[int]) -> torch.Tensor:
        return torch.cat(contribution.of_units(images[units], labels[units], factors=False, keys=keys[units]), dim=1)

    together = rows([0, 1, 2, 3, 4])
    for unit in range(5):
        torch.testing.assert_close(rows([unit])[0], together[unit])
        with UnitDropout(keys[[unit]]):
            loss = nn.functional.cross_entropy(model(images[unit]), labels[unit])
        plain = torch.cat([each.flatten() for each in torch.autograd.grad(loss, [*model.parameters()])])
        torch.testing.assert_close(plain, together[unit])
    images[4], labels[4] = images[0], labels[0]  # the same items with the same key
    assert torch.equal(rows([0, 4])[0], rows([0, 4])[1])
