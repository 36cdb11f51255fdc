"""The private step on a GPU against the one on the processor. None of these has been run yet: there was no GPU."""

from __future__ import annotations

import pytest
import torch
from contributing import clipped_sums
from training_builder import NETWORKS, network, patients

from zetadp.base.device import pick_device, to_device
from zetadp.base.tensors import Layout
from zetadp.privacy.grid import Grid

pytestmark = pytest.mark.cuda
# Float32 rounding of gradients that went through some layers, of the norm: other orders of summation, nothing coarser.
ROUNDING = 1e-5
GROUPS = torch.tensor([0, 0, 1, 1, 1, 3, 3])
COUNT = 4


@pytest.fixture(autouse=True)
def _settings():
    """Begin in float32, as training does, and leave no setting behind."""
    pick_device("cuda")
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
def test_nothing_makes_the_processor_wait(exact):
    arguments = case("complex hidden", "cuda")
    options = {"count": COUNT, "bound": 0.37, "grid": Grid(0.37, 20) if exact else None, "chunk": 6}
    clipped_sums(*arguments, **options)  # a first call loads kernels, which may wait
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    clipped_sums(*arguments, **options)


def test_copies_arrive_and_nobody_waits_for_them():
    values = torch.arange(1000.0)
    torch.cuda.set_sync_debug_mode("error")
    found = to_device(values, torch.device("cuda"))
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found.cpu(), values)
