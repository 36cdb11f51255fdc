from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_builder import NETWORKS, TINY, network, patients

from zetadp.nn.parameters import Layout
from zetadp.privacy import fixed_passes
from zetadp.privacy.clipping import ClippedSums, clipped_sums, patient_gradients
from zetadp.privacy.fixed_passes import FixedPasses, patients_a_pass
from zetadp.privacy.grid import Grid

MODEL = network(TINY)
LAYOUT = Layout.of(MODEL)


def sums(passes: FixedPasses | None, images, labels, groups, model=MODEL, **options) -> ClippedSums:
    """Return clipped sums in passes of fixed shape, or in the usual ones."""
    options = {"count": 4, "bound": 0.3, "chunk": 100} | options
    return clipped_sums(model, Layout.of(model), images, labels, groups, passes=passes, **options)


@settings(max_examples=60)
@given(
    drawn=st.integers(0, 9),
    size=st.integers(1, 5),
    count=st.integers(1, 6),
    bound=st.sampled_from([0.05, 0.3, 1e3, None]),
    bad=st.sets(st.integers(0, 8), max_size=3),
    seed=st.integers(0, 999),
)
def test_padded_passes_give_the_sums_of_unpadded_ones(drawn, size, count, bound, bad, seed):
    images, labels = patients(9, 2, seed)
    images, labels = images[:drawn], labels[:drawn]
    bad = [patient for patient in bad if patient < drawn]
    images[bad, 1, 0, 2, 3] = torch.nan
    groups = torch.from_numpy(np.random.default_rng(seed).integers(0, count, drawn))
    options = {"count": count, "bound": bound}
    found = sums(FixedPasses(size), images, labels, groups, **options)
    expected = sums(None, images, labels, groups, **options)
    assert found.sums.isfinite().all()
    assert found.not_finite == expected.not_finite == len(bad)
    assert found.padding == -drawn % size
    torch.testing.assert_close(found.sums, expected.sums, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", NETWORKS)
def test_all_networks_go_in_passes_of_fixed_shape(family):
    model = network(NETWORKS[family])
    images, labels = patients(5, 3, domain=NETWORKS[family].domain)
    groups = torch.tensor([0, 0, 1, 3, 3])
    found, expected = (sums(passes, images, labels, groups, model).sums for passes in (FixedPasses(3), None))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_padding_contributes_nothing_whatever_it_holds(value):
    images, labels = patients(3, 2)
    groups = torch.tensor([0, 2, 2])
    expected = sums(FixedPasses(5), images, labels, groups)
    passes = FixedPasses(5)
    # The pass is filled up with what an earlier round left.
    worse = torch.full((5, *images.shape[1:]), value, dtype=images.dtype)
    sums(passes, worse, labels[[0, 1, 2, 0, 1]], groups[[0, 1, 2, 0, 1]])
    found = sums(passes, images, labels, groups)
    assert torch.equal(found.sums, expected.sums)
    assert found.not_finite == expected.not_finite == 0
    assert found.padding == 2


def test_a_draw_of_nobody_gives_zeros_after_one_of_many():
    passes = FixedPasses(3)
    images, labels = patients(5, 2)
    groups = torch.zeros(5, dtype=torch.long)
    before = sums(passes, images, labels, groups).sums
    kept = before.clone()
    found = sums(passes, images[:0], labels[:0], groups[:0])
    assert torch.equal(found.sums, torch.zeros(4, LAYOUT.dimension))
    assert (found.not_finite, found.padding) == (0, 0)
    assert torch.equal(before, kept), "a later round changed what an earlier one returned"


def test_nobody_is_left_out_of_a_draw_of_any_size():
    images, labels = patients(40, 1)
    groups = torch.arange(40)
    found = sums(FixedPasses(3), images, labels, groups, count=40, bound=0.1).sums
    plain = sums(None, images, labels, groups, count=40, bound=None).sums
    assert plain.norm(dim=1).min() > 0.1
    torch.testing.assert_close(found.norm(dim=1), torch.full((40,), 0.1), rtol=1e-5, atol=0)


def test_a_pass_adds_to_every_node_by_one_row_at_most():
    """Else the order in which a GPU adds rows would show in the last bits, and a round could not be repeated."""
    images, labels = patients(7, 2)
    passes = FixedPasses(3)
    groups = torch.tensor([5, 0, 5, 5, 1, 1, 2])
    sums(passes, images, labels, groups, count=6)
    places = passes._pass._places(groups.numpy())
    assert places.shape == (3, 3 + 3 + 3)
    nodes = places[:, 6:]
    assert all(len(set(own.tolist())) == 3 for own in nodes)
    assert places[:, :3].flatten()[:7].tolist() == [1] * 7
    assert nodes.gather(1, places[:, 3:6]).flatten()[:7].tolist() == groups.tolist()


def test_no_patient_contributes_more_than_the_bound():
    images, labels = patients(7, 2)
    found = sums(FixedPasses(3), images, labels, torch.arange(7), count=7, bound=1e-2).sums
    assert found.double().norm(dim=1).max() <= 1e-2


@pytest.mark.parametrize("bound", [0.25, 0.37])
def test_integer_sums_of_one_patient_a_pass_are_those_of_unpadded_passes(bound):
    images, labels = patients(5, 2)
    images[1, 0, 0, 0, 0] = torch.inf
    groups = torch.tensor([0, 3, 3, 1, 0])
    options = {"bound": bound, "grid": Grid(bound, 20)}
    found = sums(FixedPasses(1), images, labels, groups, **options)
    expected = sums(None, images, labels, groups, chunk=1, **options)
    assert found.sums.dtype == torch.int64
    assert torch.equal(found.sums, expected.sums)
    assert found.not_finite == expected.not_finite == 1
    several = sums(FixedPasses(3), images, labels, groups, **options)
    assert several.not_finite == 1
    assert (several.sums - expected.sums).abs().max() <= 2**20 * 1e-5


class Prepared:
    """What a captured graph does, without a GPU: warm-up on the buffers, and a replay that knows only those."""

    def __init__(self) -> None:
        self.computations = []
        self.replays = 0

    def __call__(self, compute, device):
        self.computations.append(compute)
        for _ in range(2):
            compute()

        def replay():
            self.replays += 1
            compute()

        return replay


def test_one_preparation_serves_all_rounds_of_moving_weights():
    model, prepared = network(TINY), Prepared()
    passes = FixedPasses(3, prepared)
    images, labels = patients(7, 2)
    groups = torch.tensor([0, 0, 0, 1, 3, 3, 3])
    buffers = set()
    for drawn in (7, 4, 0, 7):
        part = slice(drawn)
        found = sums(passes, images[part], labels[part], groups[part], model)
        expected = sums(None, images[part], labels[part], groups[part], model)
        torch.testing.assert_close(found.sums, expected.sums, rtol=1e-4, atol=1e-6)
        own = passes._pass
        buffers.add(tuple(t.data_ptr() for t in (own.images, own.labels, own.places, own.sums, own.not_finite)))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1
    assert len(prepared.computations) == len(buffers) == 1
    assert prepared.replays == 3 + 2 + 0 + 3


@pytest.mark.parametrize("change", ["weights", "model", "images", "count", "bound", "grid", "type"])
def test_another_question_prepares_another_pass(change):
    prepared = Prepared()
    passes = FixedPasses(3, prepared)
    model = network(TINY)
    images, labels = patients(4, 2)
    groups = torch.tensor([0, 0, 0, 1])
    sums(passes, images, labels, groups, model)
    options = {}
    if change == "weights":  # elsewhere in memory: a graph would read where they were
        for parameter in model.parameters():
            parameter.data = parameter.data + 0.1
    elif change == "model":
        model = network(TINY, seed=1)
    elif change == "images":
        images, labels = patients(4, 3)
    elif change == "type":
        model = network(NETWORKS["real image"])
        images, labels = patients(4, 2, domain="image")
    else:
        options = {"count": {"count": 7}, "bound": {"bound": 0.2}, "grid": {"grid": Grid(0.3, 20)}}[change]
    found = sums(passes, images, labels, groups, model, **options)
    assert len(prepared.computations) == 2
    expected = sums(None, images, labels, groups, model, **options)
    torch.testing.assert_close(found.sums.double(), expected.sums.double(), rtol=1e-3, atol=2.0)
    if change != "grid":
        torch.testing.assert_close(found.sums, expected.sums, rtol=1e-4, atol=1e-6)


def test_out_of_memory_halves_the_passes_and_changes_nothing(monkeypatch):
    images, labels = patients(7, 2)
    groups = torch.tensor([0, 1, 0, 1, 1, 3, 2])
    expected = sums(None, images, labels, groups)
    calls = []

    def limited(model, layout, images, labels):
        calls.append(len(images))
        if len(images) > 2 or len(calls) == 3:
            raise torch.OutOfMemoryError
        return patient_gradients(model, layout, images, labels)

    monkeypatch.setattr(fixed_passes, "patient_gradients", limited)
    passes = FixedPasses(4)
    found = sums(passes, images, labels, groups)
    # Four are too many; two fit once, then no more; one fits.
    assert calls == [4, 2, 2] + [1] * 7
    assert passes.patients == 1
    torch.testing.assert_close(found.sums, expected.sums, rtol=1e-5, atol=1e-7)
    calls.clear()
    monkeypatch.setattr(fixed_passes, "patient_gradients", lambda *_: limited(None, None, images, labels))
    with pytest.raises(torch.OutOfMemoryError):
        sums(passes, images, labels, groups)


@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize(("bound", "exact"), [(None, False), (0.37, False), (1.0, True), (0.37, True)])
def test_nothing_waits_for_a_device(family, bound, exact):
    """On a device that holds no numbers, whatever asks for one fails: item, bool, nonzero, a copy to the processor."""
    model = network(NETWORKS[family]).to("meta")
    images, labels = (t.to("meta") for t in patients(5, 2, domain=NETWORKS[family].domain))
    groups = torch.tensor([0, 0, 1, 1, 3])
    options = {"bound": bound, "grid": Grid(bound, 20) if exact else None}
    for passes in (FixedPasses(2), None):
        found = sums(passes, images, labels, groups, model, chunk=4, **options)
        assert found.sums.shape == (4, Layout.of(model).dimension)
        with pytest.raises(RuntimeError, match="meta"):
            int(found.not_finite)


@given(
    nodes=st.lists(st.tuples(st.integers(1, 60), st.floats(0.01, 1)), min_size=1, max_size=12),
    most=st.integers(1, 300),
)
def test_passes_are_as_few_and_as_small_as_hold_nearly_every_draw(nodes, most):
    chances = [(population, share * population) for population, share in nodes]
    size = patients_a_pass(chances, most)
    mean = sum(expected for _, expected in chances)
    variance = sum(population * share * (1 - share) for population, share in nodes)
    usual = min(math.ceil(mean + 3 * math.sqrt(variance)), sum(population for population, _ in nodes))
    assert 1 <= size <= most
    count = math.ceil(usual / most)
    assert count * size >= usual
    assert count * (size - 1) < usual


def test_a_pass_of_everybody_is_no_larger_than_all_patients():
    assert patients_a_pass([(44, 44.0)] * 11, 1000) == 484
    assert patients_a_pass([(44, 24.0)], 1000) == 24 + 10
