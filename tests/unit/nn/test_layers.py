from __future__ import annotations

import pytest
import torch
from torch.func import functional_call
from training_builder import NETWORKS, network, patients, plain_gradient

from zetadp.base.tensors import Layout
from zetadp.nn.layers import Conv2d, Linear
from zetadp.privacy.contributions import patient_gradients


@pytest.mark.parametrize("patient_axis", [False, True])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_gradients_follow_the_convention_of_descent(kind, patient_axis):
    """The gradient of |z|^2 at z = 1 + 2i is 2 + 4i: dL/dx + i dL/dy, not its half and not its conjugate."""
    layer = Linear(1, 1, dtype=torch.complex128) if kind == "linear" else Conv2d(1, 1, 1, dtype=torch.complex128)
    own = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
    own["weight"] = torch.full_like(layer.weight, 1 + 2j).detach()
    if patient_axis:
        own = {name: p.unsqueeze(0) for name, p in own.items()}
    weight = own["weight"].requires_grad_()
    one = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    output = functional_call(layer, own, (one if kind == "linear" else one[..., None, None],))
    (gradient,) = torch.autograd.grad(output.square().sum(), [weight])
    torch.testing.assert_close(gradient.flatten(), torch.tensor([2 + 4j], dtype=torch.complex128))


def test_images_of_weight_zero_stand_for_absent_ones():
    model = network(NETWORKS["complex pooled"], dtype=torch.float64)
    images, labels = patients(3, 3, dtype=torch.float64)
    weights = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    found = torch.cat(patient_gradients(model, Layout.of(model), images, labels, weights), dim=1)
    torch.testing.assert_close(found[0], plain_gradient(model, images[0], labels[0]), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(found[1], plain_gradient(model, images[1, :2], labels[1, :2]), atol=1e-10, rtol=1e-10)
    assert not found[2].any()
