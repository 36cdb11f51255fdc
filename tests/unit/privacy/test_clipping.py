from __future__ import annotations

import pytest
import torch
from contributing import clipped_sums
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from training_builder import NETWORKS, TINY, network, patients, plain_gradient

from zetadp.base.tensors import Layout
from zetadp.nn.activations import ACTIVATIONS
from zetadp.nn.mixture import Labelled
from zetadp.nn.models import NetworkSettings
from zetadp.privacy.clipping import clip_factors
from zetadp.privacy.contributions import Gradient, Statistic, knows_units, patient_gradients
from zetadp.privacy.factored import Factored

MIXED = NetworkSettings(widths=(2, 4), convolutions=1, head="pooled", groups=2, activation="modrelu_per_channel")
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


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("family", ["complex", "dense"])
def test_clipped_sums_with_every_activation_are_those_of_each_patient_alone(name, family):
    settings = {
        "complex": NetworkSettings(widths=(2, 4), convolutions=1, hidden=3, groups=2, activation=name),
        "dense": NetworkSettings("dense", "complex", widths=(6, 5), activation=name),
    }[family]
    model = network(settings)
    images, labels = patients(5, 3, domain=settings.domain)
    layout = Layout.of(model)
    plain = torch.stack([plain_gradient(model, images[i], labels[i]) for i in range(5)]).double()
    bound = float(plain.norm(dim=1).median())  # so that some are clipped and some are not
    groups = torch.tensor([0, 1, 0, 1, 1])
    found = clipped_sums(model, layout, images, labels, groups, count=2, bound=bound, chunk=100).sums.double()
    clipped = plain * (bound / plain.norm(dim=1)).clamp_max(1)[:, None]
    expected = torch.stack([clipped[groups == group].sum(dim=0) for group in range(2)])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * bound)


@settings(max_examples=200)
@given(
    bound=st.floats(1e-4, 1e4),
    exponent=st.floats(-6, 30),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=4),
    seed=st.integers(0, 9999),
)
def test_clipped_norm_never_exceeds_the_bound_whatever_the_gradient(bound, exponent, sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    gradients = [torch.randn(3, size, generator=generator) * 10.0**exponent for size in sizes]
    factors, finite = clip_factors(gradients, bound)
    assert finite.all()
    # As the sum is computed: float32 products, here one patient at a time.
    clipped = torch.cat([factors[:, None] * g for g in gradients], dim=1).double()
    assert (clipped.norm(dim=1) <= bound).all()
    whole = torch.cat(gradients, dim=1).double()
    expected = whole * (bound / whole.norm(dim=1).clamp_min(bound))[:, None]
    assert (clipped - expected).norm() <= ROUNDING * expected.norm() + 1e-30


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


def test_one_norm_over_all_parameters_real_ones_included():
    complex_part, real_part = torch.tensor([[3.0, 4.0]]), torch.tensor([[12.0]])
    factors, _ = clip_factors([complex_part, real_part], 1.0)
    assert float(factors) == pytest.approx(1 / 13, rel=ROUNDING)
    layout = Layout.of(network(MIXED))
    assert {True, False} == set(layout.complex)


def test_without_a_bound_nothing_is_clipped():
    factors, _ = clip_factors([torch.full((2, 3), 1e20)], None)
    assert factors.tolist() == [1, 1]
    clipped, plain = contributions(TINY, None)
    torch.testing.assert_close(clipped, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 4, 7, 12, 1000])
def test_the_sums_do_not_depend_on_the_chunk(chunk):
    model = network(TINY)
    images, labels = patients(7, 4)
    groups = torch.tensor([0, 2, 2, 1, 0, 2, 1])
    options = {"count": 3, "bound": 0.3}
    found = clipped_sums(model, Layout.of(model), images, labels, groups, chunk=chunk, **options).sums
    alone = torch.zeros_like(found)
    for patient, group in enumerate(groups):
        one = slice(patient, patient + 1)
        zero = torch.zeros(1, dtype=torch.long)
        alone[group] += clipped_sums(
            model, Layout.of(model), images[one], labels[one], zero, count=1, bound=0.3, chunk=1
        ).sums[0]
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-6)


def test_gradients_that_overflow_count_as_not_finite():
    gradients = torch.tensor([[1.0, 2.0], [torch.inf, 0.0], [torch.nan, 1.0], [3e38, 3e38]])
    factors, finite = clip_factors([gradients], 1.0)
    assert finite.tolist() == [True, False, False, False]
    assert factors[1:].tolist() == [0, 0, 0]


def test_no_patient_at_all_gives_zeros():
    model = network(TINY)
    images, labels = patients(1, 4)
    layout = Layout.of(model)
    found = clipped_sums(model, layout, images[:0], labels[:0], torch.zeros(0).long(), count=3, bound=1.0, chunk=8)
    assert found.not_finite == 0
    assert torch.equal(found.sums, torch.zeros(3, layout.dimension))


def test_out_of_memory_halves_the_pass_and_changes_nothing(monkeypatch):
    model = network(TINY)
    layout = Layout.of(model)
    images, labels = patients(5, 2, domain=TINY.domain)
    groups = torch.tensor([0, 1, 0, 1, 1])
    expected = clipped_sums(model, layout, images, labels, groups, count=2, bound=0.1, chunk=10).sums
    passes = []

    def limited(model, layout, images, labels, **more):
        if len(images) > 2:
            raise torch.OutOfMemoryError
        passes.append(len(images))
        return patient_gradients(model, layout, images, labels, **more)

    monkeypatch.setattr("zetadp.privacy.contributions.patient_gradients", limited)
    found = clipped_sums(model, layout, images, labels, groups, count=2, bound=0.1, chunk=10).sums
    assert sum(passes) == 5
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("count", "chunk", "expected"),
    [(5, 16, [3, 2]), (8, 16, [4, 4]), (9, 16, [3, 3, 3]), (3, 1, [1, 1, 1]), (3, 100, [3]), (1, 4, [1])],
)
def test_passes_hold_nearly_equal_numbers_of_patients_and_no_more_than_the_chunk(count, chunk, expected, monkeypatch):
    passes = []

    def watched(model, layout, images, labels, **more):
        passes.append(len(images))
        return patient_gradients(model, layout, images, labels, **more)

    monkeypatch.setattr("zetadp.privacy.contributions.patient_gradients", watched)
    model = network(TINY)
    images, labels = patients(count, 4)
    groups = torch.zeros(count, dtype=torch.long)
    clipped_sums(model, Layout.of(model), images, labels, groups, count=1, bound=1.0, chunk=chunk)
    assert passes == expected


def test_out_of_memory_for_a_single_patient_is_raised(monkeypatch):
    def never(*_, **more):
        raise torch.OutOfMemoryError

    monkeypatch.setattr("zetadp.privacy.contributions.patient_gradients", never)
    model = network(TINY)
    images, labels = patients(3, 2, domain=TINY.domain)
    with pytest.raises(torch.OutOfMemoryError):
        clipped_sums(model, Layout.of(model), images, labels, torch.zeros(3).long(), count=1, bound=1.0, chunk=10)


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
        contribution = Statistic(Labelled(2, 4, 3, 0.5, 1.0, True, 0.2, False))
    else:
        settings = NETWORKS["linear" if family == "foreign" else family]
        model = network(settings)
        model = torch.nn.Sequential(Foreign(), model) if family == "foreign" else model
        images, labels = patients(4, 3, domain=settings.domain)
        contribution = Gradient(model, Layout.of(model))
    weights = torch.full((4, 3), 1 / 3)
    weights[1] = torch.tensor([0.5, 0.5, 0])

    def rows(**more: torch.Tensor) -> list[torch.Tensor]:
        found = contribution.rows(images, labels, factors=True, **more)
        return [each.left if isinstance(each, Factored) else each for each in found]

    others, weighted = [0, 2, 3], rows(weights=weights)
    assert all(torch.equal(plain[others], own[others]) for plain, own in zip(rows(), weighted, strict=True))
    images[1, 2] = 9  # an image that does not count
    assert all(torch.equal(own, again) for own, again in zip(weighted, rows(weights=weights), strict=True))


def test_a_layer_that_is_not_trained_needs_no_rule():
    model = torch.nn.Sequential(Foreign().requires_grad_(requires_grad=False), network(TINY))
    assert knows_units(model)
    images, labels = patients(2, 3)
    found = torch.cat(patient_gradients(model, Layout.of(model), images, labels), dim=1)
    for mine, own_images, own_labels in zip(found, images, labels, strict=True):
        loss = functional.cross_entropy(model(own_images), own_labels)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        wanted = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))
        torch.testing.assert_close(mine, Layout.of(model).flatten(wanted), atol=1e-5, rtol=1e-4)
