"""The private step on a GPU against the one on the processor, and a user's training on a GPU."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import pytest
import torch
from contributing import clipped_sums
from ledger_builder import DECLARATION, poisson
from training_builder import NETWORKS, network, patients

import zetadp
from zetadp.account.ledger import Ledger
from zetadp.base.tensors import Layout, pick_device, side_stream
from zetadp.mechanism.grid import Grid
from zetadp.mechanism.release import NodeMechanism
from zetadp.training.round import noise_meanwhile

pytestmark = pytest.mark.cuda
# Float32 rounding of gradients that went through some layers, of the norm: other orders of summation, nothing coarser.
ROUNDING = 1e-5
GROUPS = torch.tensor([0, 0, 1, 1, 1, 3, 3])
COUNT = 4


@pytest.fixture(autouse=True)
def _settings():
    """Begin in float32, as training does, and leave no setting behind."""
    pick_device("cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the mode that refuses to wait is a prototype
        torch.cuda.set_sync_debug_mode("default")
    yield
    torch.cuda.set_sync_debug_mode("default")


def case(family: str, device: str):
    model = network(NETWORKS[family]).to(device)
    images, labels = patients(7, 3, domain=NETWORKS[family].domain)
    images[2, 0, 0, 0, 0] = torch.nan
    return model, Layout.of(model), images.to(device), labels.to(device), GROUPS


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    found, expected = found.double().cpu(), expected.double().cpu()
    assert (found - expected).norm() <= ROUNDING * expected.norm()


@pytest.mark.parametrize("family", NETWORKS)
def test_clipped_sums_are_those_of_the_processor(family):
    options = {"count": COUNT, "bound": 0.3, "chunk": 6}
    expected = clipped_sums(*case(family, "cpu"), **options)
    found = clipped_sums(*case(family, "cuda"), **options)
    assert_near(found.sums, expected.sums)
    assert int(found.not_finite) == int(expected.not_finite) == 1


@pytest.mark.parametrize("exact", [False, True])
def test_nothing_makes_the_processor_wait(exact, tmp_path):
    arguments = case("complex hidden", "cuda")
    grid, size = Grid(0.37, 20) if exact else None, arguments[1].dimension
    options = {"count": COUNT, "bound": 0.37, "grid": grid, "chunk": 6}
    event = poisson("node-0", population=7, expected=7, noise_multiplier=1.0, clip=0.37)
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.start(DECLARATION)
        node = NodeMechanism(event, ledger=ledger, grid=grid, seed=None if exact else 0)
        for number in range(2):  # a first round loads kernels, which may wait
            if number:
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            with noise_meanwhile([node], number, size, torch.device("cuda")):
                sums = clipped_sums(*arguments, **options).sums
            draw = node.draw(number)
            ledger.record([draw.event])
            message = node.release(draw, sums[0])
        torch.cuda.set_sync_debug_mode("default")
    assert message.isfinite().all()


def test_noise_drawn_ahead_is_that_of_the_processor(tmp_path):
    """Also where copies of the next round's noise overtake the sums of a round."""
    event = poisson("node-0", population=7, expected=7, noise_multiplier=1.0, clip=1.0)
    size, rounds = 1 << 20, 4
    messages = {"cpu": [], "cuda": []}
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.start(DECLARATION)
        for number in range(rounds):
            ledger.record([replace(event, round=number)])
        for device in map(torch.device, messages):
            node = NodeMechanism(event, ledger=ledger, seed=0)
            slow = torch.zeros(1 if device.type == "cpu" else 4096, 4096, device=device)
            for number in range(rounds):
                with noise_meanwhile([node], number, size, device):
                    for _ in range(20):
                        slow = slow @ slow.mT @ slow
                    sums = torch.zeros(size, device=device) + slow[0, 0]
                messages[device.type].append(node.release(node.draw(number), sums))
    found, expected = (torch.stack(messages[device]).cpu() for device in ("cuda", "cpu"))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_two_trainings_on_one_gpu_keep_their_noise(tmp_path):
    """Also where a copy of the second training's noise overtakes a release of the first."""
    device, size = torch.device("cuda"), 1 << 20
    event = poisson("node-0", population=7, expected=7, noise_multiplier=1.0, clip=1.0)
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.start(DECLARATION)
        ledger.record([event])

        def node(seed: int) -> NodeMechanism:
            return NodeMechanism(event, ledger=ledger, seed=seed)

        expected = [one.release(one.draw(0), torch.zeros(size)) for one in (node(0), node(1))]
        first, second = node(0), node(1)
        with noise_meanwhile([first], 0, size, device):
            slow = torch.zeros(4096, 4096, device=device)
        with side_stream(device) as copying:
            for _ in range(20):
                slow = slow @ slow.mT @ slow
            messages = [first.release(first.draw(0), torch.zeros(size, device=device) + slow[0, 0])]
            with copying():
                second.draw_ahead(0, size, device)
        messages.append(second.release(second.draw(0), torch.zeros(size, device=device)))
    torch.testing.assert_close(torch.stack(messages).cpu(), torch.stack(expected), rtol=1e-6, atol=0)


class Network(torch.nn.Module):
    """A user's network: complex scores of three classes, as moduli."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 3, dtype=torch.complex64)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.layer(items).abs()


@pytest.mark.parametrize("seed", [None, 0])
def test_a_users_training_takes_place_on_the_gpu_and_continues_there(tmp_path, seed):
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (150,), generator=random)
    items = torch.randn(3, 6, dtype=torch.complex64, generator=random)[labels]
    records = zetadp.Records(items, labels, patients=torch.arange(150) // 3)
    train, test = records.split(test=10)
    model = Network()
    public = zetadp.Public(population=40, per_round=20, rounds=30, items_per_patient=3)
    given = {"public": public, "epsilon": 8, "delta": 1e-3, "folder": tmp_path / "run", "seed": seed}
    given |= {"options": zetadp.Options(device="cuda")}
    run = zetadp.private(copy.deepcopy(model), train, **given)
    run.train()
    assert {weight.device.type for weight in run.model.parameters()} == {"cuda"}
    reached = run.evaluate(test).value
    assert reached > 0.5
    again = zetadp.private(model, train, **given)
    assert again.state == "finished"
    assert again.evaluate(test).value == reached


def test_the_weights_of_a_simulation_are_those_of_the_processor(tmp_path):
    records = zetadp.Records(torch.randn(60, 6, dtype=torch.complex64), torch.arange(60) % 3, patients=range(60))
    given = {"public": zetadp.Public(population=60, per_round=20, rounds=5), "epsilon": 8, "delta": 1e-3, "seed": 0}
    model, weights = Network(), {}
    for device in ("cpu", "cuda"):
        options = zetadp.Options(device=device)
        run = zetadp.private(model, records, folder=tmp_path / device / "run", options=options, **given)
        weights[device] = torch.view_as_real(run.train().model.layer.weight)
    assert_near(weights["cuda"], weights["cpu"])
