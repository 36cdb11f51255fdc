from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from ledger_builder import DECLARATION, poisson
from torch import Tensor, nn
from training_builder import CLASSES, SIZE, TINY, network, records

import zetadp.training.round as rounds
from zetadp.account.attempts import read_ledger
from zetadp.account.ledger import Ledger
from zetadp.accounting import seeded_noise
from zetadp.base.tensors import Layout, keep_until_read, same_stream, side_stream
from zetadp.base.validation import UserError
from zetadp.mechanism import release as mechanism_release
from zetadp.mechanism.grid import Grid
from zetadp.mechanism.release import NodeMechanism
from zetadp.training.outbox import Outbox
from zetadp.training.records import LabelledItems, Node, items_of
from zetadp.training.round import Phase, do_round

CLIP = 2.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def ledger(path):
    with Ledger(path) as opened:
        opened.start(DECLARATION)
        yield opened


def exact(ledger: Ledger, sigma: float = 1.0) -> list[Node]:
    """Return two nodes of two patients each, all taking part, with noise that cannot be drawn again."""
    grid = Grid.choose(CLIP, noise_multiplier=sigma, population=2, dimension=Layout.of(network(TINY)).dimension)
    own = [[[0], [1]], [[2], [3]]]
    events = [
        poisson(f"node-{place}", population=2, expected=2, noise_multiplier=sigma, clip=CLIP)
        for place in range(len(own))
    ]
    return [
        Node(NodeMechanism(event, grid=grid, ledger=ledger), items_of(patients, CLASSES))
        for event, patients in zip(events, own, strict=True)
    ]


def exact_round(outbox: Outbox, model: nn.Module, data: LabelledItems | None = None) -> Tensor:
    data = records(4) if data is None else data
    phase = replace(Phase.of(model, CLASSES), chunk=8)
    return do_round(phase, exact(outbox.ledger), data, outbox, 0)[0]


@pytest.fixture
def store(tmp_path, ledger):
    return Outbox(ledger, tmp_path / "messages")


def ahead_of_sums(monkeypatch) -> None:
    """Draw noise as rounds on a GPU do, in other threads."""
    meanwhile = rounds.noise_meanwhile

    def elsewhere(mechanisms, number, size, device, *, again=0):
        assert device.type == "cpu"
        return meanwhile(mechanisms, number, size, torch.device("meta"), again=again)

    monkeypatch.setattr(rounds, "noise_meanwhile", elsewhere)


@pytest.mark.parametrize("nodes_ahead", [0, 1, 2])
def test_noise_drawn_while_sums_are_computed_has_the_same_bits(tmp_path, monkeypatch, nodes_ahead):
    """Also where a round is computed twice, and where some nodes draw theirs later."""
    phase = replace(Phase.of(network(TINY), CLASSES), chunk=8)
    found, drawn_late, kept = [], [], []
    noisy_mean = seeded_noise.noisy_mean
    monkeypatch.setattr(mechanism_release, "keep_until_read", lambda noise: kept.append(0) or noise)
    for name in ("later", "ahead"):
        if name == "ahead":
            monkeypatch.setattr(rounds, "AHEAD_BYTES", nodes_ahead * 8 * phase.message)
            ahead_of_sums(monkeypatch)
            monkeypatch.setattr(seeded_noise, "noisy_mean", lambda *given: drawn_late.append(0) or noisy_mean(*given))
        with Ledger(tmp_path / name / "ledger.jsonl") as ledger:
            ledger.start(DECLARATION)
            events = [poisson(f"node-{n}", population=2, expected=1, noise_multiplier=1.0, clip=CLIP) for n in range(2)]
            nodes = [
                Node(
                    NodeMechanism(event, seed=3, node_index=n, ledger=ledger), items_of([[2 * n], [2 * n + 1]], CLASSES)
                )
                for n, event in enumerate(events)
            ]
            outbox = Outbox(ledger)
            messages = [do_round(phase, nodes, records(4), outbox, number)[0] for number in range(3)]
            # A round that was sent with other bytes before an interruption is drawn again.
            ledger.record([replace(event, round=3) for event in events])
            ledger.note_sent(3, 0, "others")
            messages.append(do_round(phase, nodes, records(4), outbox, 3)[0])
        found.append(torch.stack(messages))
    assert torch.equal(*found)
    assert len(drawn_late) == 5 * (2 - nodes_ahead)
    assert len(kept) == 5 * nodes_ahead
    assert len(found[0].flatten(0, 1).unique(dim=0)) == 8


def test_no_work_of_a_gpu_overtakes_what_it_needs(monkeypatch):
    """Copies in another stream, after an error too, their memory, and work of other threads; without a GPU."""
    done, made, device = [], [], torch.device("cuda", 63)

    class Stream:
        def __init__(self, name: object) -> None:
            self.name, self.device = name, device

        def wait_stream(self, other: Stream) -> None:
            done.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def working_in(stream: Stream) -> Iterator[None]:
        done.append(f"works in {stream.name}")
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream("main"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: made.append("side") or Stream("side"))
    monkeypatch.setattr(torch.cuda, "stream", working_in)
    for one in (device, torch.device("cuda")):  # the current device has two names
        with side_stream(one) as copying, copying():
            pass
    with pytest.raises(InterruptedError), side_stream(device):
        raise InterruptedError
    assert done == [*2 * ["works in side", "main waits for side"], "main waits for side"]
    assert made == ["side"]
    with same_stream(device)():
        assert done[-1] == "works in main"
    copied = SimpleNamespace(device=device, record_stream=lambda stream: done.append(f"is read in {stream.name}"))
    assert keep_until_read(copied) is copied
    assert done[-1] == "is read in main"


def test_releases_in_other_threads_come_after_the_sums(monkeypatch, path):
    """On a GPU, where each thread begins with a stream of its own."""
    streams, seen, release = threading.local(), [], NodeMechanism.release

    @contextmanager
    def that_of_the_sums() -> Iterator[None]:
        streams.entered = True
        yield
        streams.entered = False

    def watched(*given: object, **more: object) -> Tensor:
        seen.append(getattr(streams, "entered", False))
        return release(*given, **more)

    monkeypatch.setattr(rounds, "same_stream", lambda _: that_of_the_sums)
    monkeypatch.setattr(NodeMechanism, "release", watched)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with Ledger(path) as ledger:
        ledger.start(DECLARATION)
        exact_round(Outbox(ledger, path.parent / "messages"), network(TINY))
    assert seen == [True, True]


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
    ledger.start(DECLARATION)
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


def test_a_round_looks_up_the_images_of_one_pass_at_a_time(ledger):
    held = []

    class Watched(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.index.Tensor and found.shape[2:] == (1, SIZE, SIZE):
                held.append(len(found))
            return found

    event = poisson("node-0", population=20, expected=20, noise_multiplier=0.0, clip=CLIP)
    holder = Node(NodeMechanism(event, seed=11, ledger=ledger), items_of([[i] for i in range(20)], CLASSES))
    with Watched():
        do_round(replace(Phase.of(network(TINY), CLASSES), chunk=8), [holder], records(20), Outbox(ledger), 0)
    assert held == [2] * 10
