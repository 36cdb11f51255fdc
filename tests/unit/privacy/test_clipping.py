from __future__ import annotations

import pytest
import torch
from contributing import clipped_sums
from torch.nn import functional
from training_builder import NETWORKS, TINY, network, patients, plain_gradient

from zetadp.base.tensors import Layout
from zetadp.nn.mixture import Labelled
from zetadp.nn.models import NetworkSettings
from zetadp.privacy.clipping import clip_factors
from zetadp.privacy.contributions import Gradient, knows_units
from zetadp.privacy.factored import Factored

# The factor is rounded down by 2^-20, float32 adds 2^-24 a number.
ROUNDING = 2e-6


def contributions(settings: NetworkSettings, bound: float | None, count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each patient's clipped gradient and, by ordinary automatic differentiation, its unclipped one."""
    model = network(settings)
    images, labels = patients(count, 4, domain=settings.domain)
    layout = Layout.of(model)
    sums = clipped_sums(model, layout, images, labels, torch.arange(count), count=count, bound=bound, chunk=100).sums
    plain = torch.stack([plain_gradient(model, images[i], labels[i]) for i in range(count)])
    return sums.double(), plain.double()


@pytest.mark.parametrize("size", [1, 15, 16, 17, 48, 100_001])
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-21, 1e-13, 1.0, 1e13, 3e18, 1e21, 1e30])
def test_norms_hold_their_digits_wherever_float32_squares_leave_its_range(size, scale):
    values = torch.randn(3, size, generator=torch.Generator().manual_seed(size)) * scale
    values[1] = scale  # equal numbers: all roundings go the same way
    expected = values.double().norm(dim=1)
    bound = float(expected.min()) / 2
    factors, finite = clip_factors([values], bound)
    assert finite.all()
    lengths = factors.double() * expected
    assert (lengths <= bound).all()
    # Rounded down by 2^-20, and by what float32 errs in a short sum and in the factor, which is less than that.
    assert (lengths >= bound * (1 - 2 * 2.0**-20)).all()


def test_norms_of_exactly_the_bound_stay_within_it():
    # In float32, factors computed to the nearest would push some of these over.
    gradients = torch.randn(20_000, 7, generator=torch.Generator().manual_seed(0))
    factors, _ = clip_factors([gradients], 1.0)
    clipped = (factors[:, None] * gradients).double().norm(dim=1)
    assert clipped.max() <= 1
    assert clipped[gradients.double().norm(dim=1) > 1.01].min() > 1 - ROUNDING


def test_without_a_bound_nothing_is_clipped():
    factors, _ = clip_factors([torch.full((2, 3), 1e20)], None)
    assert factors.tolist() == [1, 1]
    clipped, plain = contributions(TINY, None)
    torch.testing.assert_close(clipped, plain, rtol=1e-4, atol=1e-5)


def test_out_of_memory_halves_the_pass_and_changes_nothing(monkeypatch):
    model = network(TINY)
    layout = Layout.of(model)
    images, labels = patients(5, 2, domain=TINY.domain)
    groups = torch.tensor([0, 1, 0, 1, 1])
    expected = clipped_sums(model, layout, images, labels, groups, count=2, bound=0.1, chunk=10).sums
    passes = []

    def limited(self, images, labels, **more):
        if len(images) > 2:
            raise torch.OutOfMemoryError
        passes.append(len(images))
        return honest(self, images, labels, **more)

    honest = Gradient.of_units
    monkeypatch.setattr(Gradient, "of_units", limited)
    found = clipped_sums(model, layout, images, labels, groups, count=2, bound=0.1, chunk=10).sums
    assert sum(passes) == 5
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("count", "chunk", "expected"),
    [(5, 16, [3, 2]), (8, 16, [4, 4]), (9, 16, [3, 3, 3]), (3, 1, [1, 1, 1]), (3, 100, [3]), (1, 4, [1])],
)
def test_passes_hold_nearly_equal_numbers_of_patients_and_no_more_than_the_chunk(count, chunk, expected, monkeypatch):
    passes = []

    def watched(self, images, labels, **more):
        passes.append(len(images))
        return honest(self, images, labels, **more)

    honest = Gradient.of_units
    monkeypatch.setattr(Gradient, "of_units", watched)
    model = network(TINY)
    images, labels = patients(count, 4)
    groups = torch.zeros(count, dtype=torch.long)
    clipped_sums(model, Layout.of(model), images, labels, groups, count=1, bound=1.0, chunk=chunk)
    assert passes == expected


class Foreign(torch.nn.Module):
    """A layer that knows nothing of patients."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = torch.nn.Parameter(torch.tensor([0.3 + 0.8j]))
        self.gain = torch.nn.Parameter(torch.tensor([1.2]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images * self.turn * self.gain


@pytest.mark.parametrize("family", [*NETWORKS, "foreign", "statistic"])
def test_a_patient_with_fewer_images_moves_no_bit_of_others(family):
    if family == "statistic":
        images, labels = patients(4, 3)
        contribution = Labelled(2, 4, 3, 0.5, 1.0, True, 0.2, False)
    else:
        settings = NETWORKS["linear" if family == "foreign" else family]
        model = network(settings)
        model = torch.nn.Sequential(Foreign(), model) if family == "foreign" else model
        images, labels = patients(4, 3, domain=settings.domain)
        contribution = Gradient(model, Layout.of(model))
    weights = torch.full((4, 3), 1 / 3)
    weights[1] = torch.tensor([0.5, 0.5, 0])

    def rows(**more: torch.Tensor) -> list[torch.Tensor]:
        found = contribution.of_units(images, labels, factors=True, **more)
        return [each.left if isinstance(each, Factored) else each for each in found]

    others, weighted = [0, 2, 3], rows(weights=weights)
    assert all(torch.equal(plain[others], own[others]) for plain, own in zip(rows(), weighted, strict=True))
    images[1, 2] = 9  # an image that does not count
    assert all(torch.equal(own, again) for own, again in zip(weighted, rows(weights=weights), strict=True))


def test_a_layer_that_is_not_trained_needs_no_rule():
    model = torch.nn.Sequential(Foreign().requires_grad_(requires_grad=False), network(TINY))
    assert knows_units(model)
    images, labels = patients(2, 3)
    found = torch.cat(Gradient(model, Layout.of(model)).of_units(images, labels, factors=False), dim=1)
    for mine, own_images, own_labels in zip(found, images, labels, strict=True):
        loss = functional.cross_entropy(model(own_images), own_labels)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        wanted = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))
        torch.testing.assert_close(mine, Layout.of(model).flatten(wanted), atol=1e-5, rtol=1e-4)
