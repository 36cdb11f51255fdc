from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from training_builder import network, patients

import zetadp.training.round
from zetadp.base.tensors import Layout
from zetadp.mechanism.contributions import Gradient
from zetadp.nn.models import NetworkSettings
from zetadp.training.round import Phase, items_in_a_pass

NETWORKS = {
    "complex": NetworkSettings(widths=(8, 16), groups=4, hidden=16),
    "complex, pooled": NetworkSettings(widths=(8, 16), convolutions=1, head="pooled", groups=4),
    "real": NetworkSettings(family="real", widths=(8, 16), convolutions=1, head="pooled", groups=4),
    "linear": NetworkSettings(family="linear"),
}
BYTES = 1 << 24


@pytest.fixture(autouse=True)
def _small_passes(monkeypatch):
    monkeypatch.setattr(zetadp.training.round, "PASS_BYTES", BYTES)


@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("images_per_patient", [1, 4])
def test_a_pass_holds_about_what_it_may(settings, images_per_patient):
    model = network(settings)
    layout = Layout.of(model)
    images, labels = patients(1, images_per_patient, domain=settings.domain)
    found = items_in_a_pass(Phase.of(model, images_per_patient), images[0]) // images_per_patient
    held: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    several = images.expand(found, *images.shape[1:]).clone(), labels.expand(found, -1)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        gradients = Gradient(model, layout).of_units(*several, factors=False)
    total = sum(storage.nbytes() for storage in held.values()) + sum(g.nbytes for g in gradients)
    assert 0.8 * BYTES < total < 1.2 * BYTES


def test_networks_of_other_layers_have_passes_too():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    found = items_in_a_pass(Phase.of(model, 4), torch.zeros(1, 8, 8))
    # An image is kept for the gradient of the weight, whose 260 numbers four images share.
    assert found == BYTES // (64 * 4 + 260 * 4 // 4)
