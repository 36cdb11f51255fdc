from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from training_builder import CLASSES, NETWORKS, SIZE, TINY, network, of_record, plain_gradient, records

import zetadp.core.round
from zetadp.base.randomness import Purpose, stream
from zetadp.base.tensors import Layout
from zetadp.base.validation import UserError
from zetadp.core.outbox import Outbox
from zetadp.core.records import LabelledItems, Node, items_of
from zetadp.core.round import Phase, do_round
from zetadp.nn.layers import Linear
from zetadp.nn.stacked import stack
from zetadp.privacy.events import Event
from zetadp.privacy.grid import Grid
from zetadp.privacy.ledger import Ledger, read_ledger
from zetadp.privacy.mechanism import ExactSampledGaussian, SampledGaussian

SEED, CLIP = 11, 2.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def ledger(path):
    with Ledger(path) as opened:
        opened.start({})
        yield opened


def node(
    ledger: Ledger, own: list[list[int]], place: int = 0, *, expected: float, sigma: float = 0.0, each: int = CLASSES
) -> Node:
    event = Event.poisson(f"node-{place}", population=len(own), expected=expected, noise_multiplier=sigma, clip=CLIP)
    return Node(SampledGaussian(event, place, seed=SEED, ledger=ledger), items_of(own, each))


def one_round(
    nodes: list[Node], ledger: Ledger, data: LabelledItems, model: nn.Module, number: int = 0, images: int = CLASSES
) -> tuple[Tensor, int]:
    return do_round(replace(Phase.of(model, images), chunk=8), nodes, data, Outbox(ledger), number)


def clipped(gradient: Tensor) -> Tensor:
    return gradient * min(1.0, CLIP / float(gradient.norm()))


def test_each_node_sends_the_clipped_mean_of_its_own_patients(ledger):
    data, model = records(7), network(TINY)
    own = [[[0], [4]], [[1], [2], [6]], [[3], [5]]]
    nodes = [node(ledger, patients, place, expected=len(patients)) for place, patients in enumerate(own)]
    messages, not_finite = one_round(nodes, ledger, data, model)
    assert not_finite == 0
    for message, patients in zip(messages, own, strict=True):
        expected = sum(clipped(plain_gradient(model, *of_record(data, p))) for (p,) in patients)
        torch.testing.assert_close(message, expected / len(patients), rtol=1e-4, atol=1e-5)


def test_only_those_drawn_contribute_and_the_divisor_stays(ledger):
    data, model = records(6), network(TINY)
    holder = node(ledger, [[i] for i in range(6)], expected=2)
    realised = set()
    for number in range(6):
        members = holder.mechanism.draw(number).members
        realised.add(len(members))
        message = one_round([holder], ledger, data, model, number)[0][0]
        gradients = [clipped(plain_gradient(model, *of_record(data, m))) for m in members]
        expected = sum(gradients, torch.zeros_like(message)) / 2
        torch.testing.assert_close(message, expected, rtol=1e-4, atol=1e-5)
    assert len(realised) > 1


class ComplexAffine(nn.Module):
    """The modulus of a complex affine map, the smallest complex network."""

    def __init__(self) -> None:
        super().__init__()
        self.affine = Linear(SIZE * SIZE, CLASSES, dtype=torch.complex64)

    def forward(self, images: Tensor) -> Tensor:
        real, imaginary = self.affine(stack(images.flatten(1))).chunk(2, dim=1)
        return (real.square() + imaginary.square()).sqrt()


def test_the_complex_step_is_a_real_step_on_stacked_parts_with_the_same_noise(ledger):
    """Real DP-SGD on (Re, Im), written without complex numbers, moves the same weights to the same place."""
    sigma, expected, rate, population = 1.3, 3, 0.1, 5
    data, model = records(population), ComplexAffine()
    generator = torch.Generator().manual_seed(0)
    model.affine.weight.data = torch.randn(CLASSES, SIZE * SIZE, dtype=torch.complex64, generator=generator) / SIZE
    model.affine.bias.data = torch.randn(CLASSES, dtype=torch.complex64, generator=generator)
    layout = Layout.of(model)
    holder = node(ledger, [[i] for i in range(population)], expected=expected, sigma=sigma)
    members = holder.mechanism.draw(0).members
    assert len(members) > 1
    message = layout.unflatten(one_round([holder], ledger, data, model)[0][0])
    step = {name: p.detach() - rate * message[name] for name, p in model.named_parameters()}

    weight, bias = model.affine.weight.detach(), model.affine.bias.detach()
    start = torch.cat([weight.real.flatten(), bias.real, weight.imag.flatten(), bias.imag]).double().requires_grad_()
    half, size = len(start) // 2, weight.numel()

    def loss(vector: Tensor, patient: int) -> Tensor:
        x, y = (
            part.double().flatten(1) for part in (of_record(data, patient)[0].real, of_record(data, patient)[0].imag)
        )
        a, b = vector[:size].view(weight.shape), vector[half : half + size].view(weight.shape)
        real = x @ a.T - y @ b.T + vector[size:half]
        imaginary = x @ b.T + y @ a.T + vector[half + size :]
        return functional.cross_entropy((real.square() + imaginary.square()).sqrt(), of_record(data, patient)[1])

    total = torch.zeros_like(start)
    for patient in members:
        (gradient,) = torch.autograd.grad(loss(start, int(patient)), [start])
        total += clipped(gradient)
    pairs = stream(SEED, Purpose.NOISE, 0, 0, 0).standard_normal(2 * half, dtype=np.float32).reshape(half, 2)
    noise = torch.from_numpy(np.concatenate([pairs[:, 0], pairs[:, 1]])).double()
    moved = start.detach() - rate * (total + sigma * CLIP * noise) / expected
    expected_weight = torch.complex(moved[:size], moved[half : half + size]).view(weight.shape)
    expected_bias = torch.complex(moved[size:half], moved[half + size :])
    torch.testing.assert_close(step["affine.weight"].to(torch.complex128), expected_weight, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(step["affine.bias"].to(torch.complex128), expected_bias, rtol=1e-5, atol=1e-5)


def pair(ledger: Ledger, sigma: float = 1.0) -> list[Node]:
    """Return two nodes of one patient each, as a process has them that begins or goes on."""
    return [node(ledger, [[place]], place, expected=1, sigma=sigma) for place in range(2)]


def test_a_repeated_round_with_the_same_bytes_is_one_release(ledger, path):
    data, model = records(2), network(TINY)
    first, again = (one_round(pair(ledger), ledger, data, model)[0] for _ in range(2))
    assert torch.equal(first, again)
    assert len(read_ledger(path)[0].releases()) == 2


def exact(ledger: Ledger, sigma: float = 1.0) -> list[Node]:
    """Return two nodes of two patients each, all taking part, with noise that cannot be drawn again."""
    grid = Grid.choose(CLIP, noise_multiplier=sigma, population=2, dimension=Layout.of(network(TINY)).dimension)
    own = [[[0], [1]], [[2], [3]]]
    events = [
        Event.poisson(f"node-{place}", population=2, expected=2, noise_multiplier=sigma, clip=CLIP)
        for place in range(len(own))
    ]
    return [
        Node(ExactSampledGaussian(event, grid=grid, ledger=ledger), items_of(patients, CLASSES))
        for event, patients in zip(events, own, strict=True)
    ]


def exact_round(outbox: Outbox, model: nn.Module, data: LabelledItems | None = None) -> Tensor:
    data = records(4) if data is None else data
    phase = replace(Phase.of(model, CLASSES), chunk=8)
    return do_round(phase, exact(outbox.ledger), data, outbox, 0)[0]


@pytest.fixture
def store(tmp_path, ledger):
    return Outbox(ledger, tmp_path / "messages")


def test_noise_that_cannot_be_drawn_again_needs_a_store(ledger):
    with pytest.raises(ValueError, match="store of messages"):
        exact_round(Outbox(ledger), network(TINY))


def test_a_second_request_with_other_weights_is_refused_and_releases_nothing(ledger, path, store):
    exact_round(store, network(TINY))
    with pytest.raises(UserError, match="answered already, for other weights"):
        exact_round(store, network(TINY, seed=1))
    assert len(read_ledger(path)[0].releases()) == 2


def test_what_an_earlier_attempt_kept_is_not_sent(ledger, path, store):
    model = network(TINY)
    first = exact_round(store, model)
    ledger.start({})
    second = exact_round(Outbox(ledger, store.folder), model)
    assert not torch.equal(first, second)
    assert [len(attempt.releases()) for attempt in read_ledger(path)] == [2, 2]


def test_a_ledger_that_lost_the_record_of_a_kept_message_is_refused(ledger, path, store):
    """As when it is restored from a backup: answering anew would release more than it would then say."""
    backup = path.read_bytes()
    exact_round(store, network(TINY))
    ledger.close()
    path.write_bytes(backup)
    with pytest.raises(UserError, match="has lost lines"):
        Ledger(path)
    register = path.with_name("register")  # of the same day: now only the kept message knows
    register.write_text("".join(register.read_text().splitlines(keepends=True)[:2]))
    with Ledger(path) as restored, pytest.raises(UserError, match="has lost lines"):
        exact_round(Outbox(restored, store.folder), network(TINY))


def test_a_kept_message_that_was_changed_is_refused(ledger, store):
    model = network(TINY)
    messages = exact_round(store, model)
    store.keep(0, Layout.of(model).flatten(dict(model.named_parameters())), messages + 1)
    with pytest.raises(UserError, match="not the one that was sent"):
        exact_round(store, model)


@pytest.mark.parametrize("cheap", [1, 10**9], ids=["all in passes", "one a pass"])
def test_with_exact_noise_a_patients_contribution_is_its_own(tmp_path, monkeypatch, cheap):
    """The integers that a patient adds are the same whoever else takes part."""
    model, sums = network(NETWORKS["complex hidden"]), []
    original = zetadp.core.round.clipped_sums

    def remember(*args, **options):
        result = original(*args, **options)
        sums.append(result.sums)
        return result

    monkeypatch.setattr(zetadp.core.round, "clipped_sums", remember)
    monkeypatch.setattr(zetadp.core.round, "CHEAP", cheap)
    data, population = records(12), 12
    grid = Grid.choose(CLIP, noise_multiplier=1.0, population=population, dimension=Layout.of(model).dimension)

    def summed(members: list[int]) -> Tensor:
        constants = {"population": population, "expected": population / 2, "noise_multiplier": 1.0, "clip": CLIP}
        name = "-".join(map(str, members))
        with Ledger(tmp_path / f"{name}.jsonl") as ledger:
            ledger.start({})
            mechanism = ExactSampledGaussian(Event.poisson("node", **constants), grid=grid, ledger=ledger)
            monkeypatch.setattr(mechanism, "_drawn", lambda *_: np.array(members, dtype=np.int64))
            holder = Node(mechanism, items_of([[i] for i in range(population)], CLASSES))
            phase = replace(Phase.of(model, CLASSES), chunk=64)
            do_round(phase, [holder], data, Outbox(ledger, tmp_path / name), 0)
        return sums.pop()[0]

    everybody = summed(list(range(population)))
    for gone in (0, 5, 11):
        others = summed([i for i in range(population) if i != gone])
        assert torch.equal(everybody - others, summed([gone]))


def test_a_round_looks_up_the_images_of_one_pass_at_a_time(ledger):
    held = []

    class Watched(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.index.Tensor and found.shape[2:] == (1, SIZE, SIZE):
                held.append(len(found))
            return found

    holder = node(ledger, [[i] for i in range(20)], expected=20)
    with Watched():
        one_round([holder], ledger, records(20), network(TINY))
    assert held == [2] * 10
