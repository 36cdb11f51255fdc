from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch
from contributing import clipped_sums
from training_builder import NETWORKS, TINY, network, patients

from zetadp.base.tensors import Layout
from zetadp.mechanism import clipping
from zetadp.mechanism.clipping import clip_factors
from zetadp.mechanism.contributions import Gradient
from zetadp.mechanism.factored import Factored
from zetadp.mechanism.grid import Grid
from zetadp.nn.mixture import Labelled
from zetadp.nn.models import NetworkSettings


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


@pytest.mark.parametrize("size", [1, 127, 128, 300, 100_001])
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-21, 1e-13, 1.0, 1e13, 1e17, 1e21])
def test_norms_on_a_gpu_are_never_too_small(size, scale):
    values = torch.randn(3, size, generator=torch.Generator().manual_seed(size)) * scale
    values[1] = scale
    bounds = clipping._bounds_of_norms([values, values[:, :5]])
    expected = torch.cat((values, values[:, :5]), dim=1).double().norm(dim=1)
    assert (bounds >= expected).all()
    if 1e-9 < scale < 1e18:  # elsewhere float32 cannot hold the squares
        assert (bounds <= expected * (1 + 1e-5)).all()


@pytest.mark.parametrize("nodes", [[0, 0, 1, 1, 1, 3], [3, 1, 3, 2, 1, 2], [2] * 6])
@pytest.mark.parametrize("out", [[], [1], [0, 2, 5], [*range(6)]], ids=len)
def test_bags_have_the_sums_of_the_processor_without_gradients_that_are_not_finite(nodes, out):
    random = torch.Generator().manual_seed(0)
    sizes, factors = (6, 16, 1), torch.rand(6, generator=random)
    left, right = (torch.randn(6, 2, 4, generator=random) for _ in range(2))
    rows = [torch.randn(6, sizes[0], generator=random), Factored(left, right), torch.randn(6, 1, generator=random)]
    finite = torch.ones(6, dtype=torch.bool)
    finite[out], factors[out] = False, 0.0
    found, expected = torch.zeros(2, 5, sum(sizes))
    cleaned = [row.cleaned(finite) if isinstance(row, Factored) else row * finite[:, None] for row in rows]
    clipping._add_clipped(expected, sizes, cleaned, factors, nodes)
    rows[0][out], left[out], rows[2][out] = torch.inf, torch.nan, torch.nan
    for _ in range(2):  # sums of an earlier pass remain
        clipping._add_in_bags(found, sizes, rows, factors, finite, nodes, torch.tensor(nodes))
    torch.testing.assert_close(found, 2 * expected)
    left_out = [number not in {node for patient, node in enumerate(nodes) if patient not in out} for number in range(5)]
    assert not found[left_out].any()
    assert found[~torch.tensor(left_out)].any(dim=1).all()


@pytest.fixture
def passes(monkeypatch):
    """Sizes of the passes, the most patients for which there is memory, and how many tensors earlier passes left."""
    honest, seen = Gradient.of_units, SimpleNamespace(sizes=[], most=100, left=0)
    earlier = []

    def look() -> None:
        seen.left += sum(tensor() is not None for tensor in earlier)

    def watched(self, images, labels, **more):
        look()
        if len(images) > seen.most:
            activations = torch.zeros(1)
            earlier.append(weakref.ref(activations))
            raise torch.OutOfMemoryError
        seen.sizes.append(len(images))
        rows = honest(self, images, labels, **more)
        earlier.extend(map(weakref.ref, rows))
        return rows

    monkeypatch.setattr(Gradient, "of_units", watched)
    monkeypatch.setattr(torch.cuda, "empty_cache", look)
    return seen


@pytest.mark.parametrize("grid", [None, Grid(0.1, 20)])
def test_out_of_memory_halves_the_pass_and_changes_nothing(passes, grid):
    """No tensor of an earlier pass, or of the failed one, is left when memory is needed."""
    model = network(TINY)
    images, labels = patients(5, 2, domain=TINY.domain)
    groups = torch.tensor([0, 1, 0, 1, 1])

    def sums() -> torch.Tensor:
        how = {"count": 2, "bound": 0.1, "chunk": 10, "grid": grid}
        return clipped_sums(model, Layout.of(model), images, labels, groups, **how).sums

    expected, passes.most = sums(), 2
    torch.testing.assert_close(sums(), expected, rtol=1e-5, atol=1e-7 if grid is None else 10)
    assert passes.sizes == [5, 2, 2, 1]
    assert not passes.left


@pytest.mark.parametrize(
    ("count", "chunk", "expected"),
    [(5, 16, [3, 2]), (8, 16, [4, 4]), (9, 16, [3, 3, 3]), (3, 1, [1, 1, 1]), (3, 100, [3]), (1, 4, [1])],
)
def test_passes_hold_nearly_equal_numbers_of_patients_and_no_more_than_the_chunk(count, chunk, expected, passes):
    model = network(TINY)
    images, labels = patients(count, 4)
    groups = torch.zeros(count, dtype=torch.long)
    clipped_sums(model, Layout.of(model), images, labels, groups, count=1, bound=1.0, chunk=chunk)
    assert passes.sizes == expected


class Foreign(torch.nn.Module):
    """A layer that knows nothing of patients."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = torch.nn.Parameter(torch.tensor([0.3 + 0.8j]))
        self.gain = torch.nn.Parameter(torch.tensor([1.2]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images * self.turn * self.gain


class Plain(torch.nn.Linear):
    """A layer of PyTorch's own, whose rule is followed."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.flatten(1)).abs()


OTHERS = {
    "foreign": lambda: torch.nn.Sequential(Foreign(), network(NETWORKS["linear"])),
    "factors": lambda: network(NetworkSettings("dense", "complex", widths=(64, 64))),
    "rules": lambda: torch.nn.Sequential(Plain(64, 4, dtype=torch.complex64)),
}


@pytest.mark.parametrize("family", [*NETWORKS, *OTHERS, "statistic"])
def test_a_patient_with_fewer_images_has_their_mean_and_moves_no_bit_of_others(family):
    if family == "statistic":
        images, labels = patients(4, 3)
        contribution = Labelled(2, 4, 3, 0.5, 1.0, True, 0.2, False)
    else:
        model = OTHERS[family]() if family in OTHERS else network(NETWORKS[family])
        images, labels = patients(4, 3, domain=NETWORKS[family].domain if family in NETWORKS else "kspace")
        contribution = Gradient(model, Layout.of(model), rules=family == "rules")
    weights = torch.full((4, 3), 1 / 3)
    weights[1] = torch.tensor([0.5, 0.5, 0])

    def rows(**more: torch.Tensor) -> list[torch.Tensor]:
        found = contribution.of_units(images, labels, factors=True, **more)
        return [each.left if isinstance(each, Factored) else each for each in found]

    others, weighted = [0, 2, 3], rows(weights=weights)
    assert all(torch.equal(plain[others], own[others]) for plain, own in zip(rows(), weighted, strict=True))
    images[1, 2] = 9  # an image that does not count
    assert all(torch.equal(own, again) for own, again in zip(weighted, rows(weights=weights), strict=True))
    if family == "statistic":
        return
    two = contribution.of_units(images[[1], :2], labels[[1], :2], factors=False)
    found = contribution.of_units(images, labels, factors=True, weights=weights)
    assert any(isinstance(own, Factored) for own in found) == (family == "factors")
    for own, mean in zip(found, two, strict=True):
        written = own.smallest(factors=False) if isinstance(own, Factored) else own
        assert (written[[1]] - mean).norm() < 1e-4 * mean.norm() + 1e-6


@pytest.mark.parametrize("bound", [1e-3, 1.0, 0.37, 1e3])
def test_integer_sums_are_the_clipped_sums_and_never_longer_than_the_bound(bound):
    model = network(TINY)
    layout = Layout.of(model)
    images, labels = patients(5, 4, domain=TINY.domain)
    images[2] = float("nan")
    groups = torch.arange(5)
    grid = Grid.choose(bound, noise_multiplier=1.0, population=5, dimension=layout.dimension)

    def sums(**more):
        return clipped_sums(model, layout, images, labels, groups, count=5, bound=bound, **more)

    plain, exact = sums(chunk=8), sums(chunk=8, grid=grid)
    assert exact.sums.dtype == torch.int64
    assert exact.not_finite == plain.not_finite == 1
    for row, expected in zip(exact.sums, plain.sums.double(), strict=True):
        assert sum(int(value) ** 2 for value in row) <= 4**grid.bits
        torch.testing.assert_close(row.double() * grid.step, expected, rtol=1e-4, atol=grid.step)
    assert (exact.sums[2] == 0).all()


@pytest.mark.parametrize("bound", [0.5, 0.37])
@pytest.mark.parametrize("images_in_a_pass", [4, 20])
def test_sums_are_the_same_integers_in_either_type(bound, images_in_a_pass, monkeypatch):
    """In float64 while they surely fit, in int64 otherwise."""
    model = network(TINY)
    images, labels = patients(5, 4, domain=TINY.domain)
    images[2] = float("inf")
    grid = Grid(bound, 31)

    def sums() -> torch.Tensor:
        how = {"count": 2, "bound": bound, "chunk": images_in_a_pass, "grid": grid}
        return clipped_sums(model, Layout.of(model), images, labels, torch.tensor([0, 1, 0, 1, 1]), **how).sums

    kinds = []
    honest = clipping._kind_of_sums
    monkeypatch.setattr(clipping, "_kind_of_sums", lambda *given: kinds.append(honest(*given)) or kinds[-1])
    in_floats = sums()
    monkeypatch.setattr(clipping, "EXACT_SUM", 5 * 2**31 - 1)
    in_integers = sums()
    assert kinds == [torch.float64, torch.int64]
    assert in_floats.dtype == in_integers.dtype == torch.int64
    assert in_floats.abs().max() > 2**24
    assert torch.equal(in_floats, in_integers)


@pytest.mark.parametrize("bound", [0.5, 0.37])
@pytest.mark.parametrize(("at_once", "together"), [(1, 1), (1, 3), (2, 1), (100, 1)])
def test_exact_sums_of_single_passes_are_those_of_patients_alone(bound, at_once, together, monkeypatch):
    """However many of them are clipped together."""
    model = network(TINY)
    layout, grid = Layout.of(model), Grid(bound, 31)
    images, labels = patients(5, 4, domain=TINY.domain)
    images[2] = float("inf")
    groups = torch.tensor([0, 1, 0, 1, 1])
    monkeypatch.setattr(clipping, "BLOCK", at_once * layout.dimension)
    monkeypatch.setattr(clipping, "TOGETHER", together)

    def clipped(drawn: list[int]) -> clipping.ClippedSums:
        how = {"count": 2, "bound": bound, "chunk": 4, "grid": grid}
        return clipped_sums(model, layout, images[drawn], labels[drawn], groups[drawn], **how)

    everybody, alone = clipped([0, 1, 2, 3, 4]), [clipped([patient]) for patient in range(5)]
    assert everybody.sums.abs().max() > 2**24
    assert torch.equal(everybody.sums, torch.stack([one.sums for one in alone]).sum(dim=0))
    assert everybody.not_finite == sum(one.not_finite for one in alone) == 1


@pytest.mark.parametrize("rules", [True, False])
def test_gradients_are_those_of_weights_that_were_set_after_the_first_pass(rules):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    random = torch.Generator().manual_seed(0)
    images, labels = torch.randn(2, 4, 3, generator=random), torch.zeros(2, 4, dtype=torch.long)
    contribution = Gradient(model, Layout.of(model), rules=rules)

    def gradients(of: Gradient) -> torch.Tensor:
        return torch.cat(of.of_units(images, labels, factors=False), dim=1)

    before = gradients(contribution)
    model[0].weight = torch.nn.Parameter(-model[0].weight.detach())
    after = gradients(contribution)
    assert not torch.equal(after, before)
    assert torch.equal(after, gradients(Gradient(model, Layout.of(model), rules=rules)))


@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize("other", [0.0, 1e-30, 3.0, 1e25, float("nan")])
def test_no_bit_of_a_contribution_depends_on_who_shares_its_pass(family, other):
    settings = NETWORKS[family]
    model = network(settings)
    images, labels = patients(5, 4, domain=settings.domain)
    changed = images.clone()
    changed[1] *= other
    grid = Grid.choose(0.5, noise_multiplier=1.0, population=5, dimension=Layout.of(model).dimension)

    def each(images):
        how = {"count": 5, "bound": 0.5, "chunk": 20, "grid": grid}
        return clipped_sums(model, Layout.of(model), images, labels, torch.arange(5), **how).sums

    others = [0, 2, 3, 4]
    assert torch.equal(each(images)[others], each(changed)[others])
