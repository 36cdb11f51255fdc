from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call
from training_builder import NETWORKS, network, patients, plain_gradient

from zetadp.base.parameters import Layout
from zetadp.nn.activations import ACTIVATIONS
from zetadp.nn.layers import Conv2d, Linear, per_image
from zetadp.nn.models import NetworkSettings
from zetadp.privacy.contributions import patient_gradients

# Largest error of a patient's gradient relative to its norm. Float32 keeps 6e-8 of each number; the normalisation of a
# few values of nearly equal size loses two to three digits of that.
EXACT, ROUNDED = 1e-10, 2e-5


def worst_error(settings: NetworkSettings, count: int, images: int, seed: int, dtype: torch.dtype) -> float:
    model = network(settings, seed, dtype)
    values, labels = patients(count, images, seed, domain=settings.domain, dtype=dtype)
    found = torch.cat(patient_gradients(model, Layout.of(model), values, labels), dim=1)
    assert found.shape[0] == count
    errors = []
    for patient in range(count):
        expected = plain_gradient(model, values[patient], labels[patient])
        errors.append(float((found[patient] - expected).norm() / expected.norm()))
    return max(errors)


@pytest.mark.parametrize("family", NETWORKS)
@settings(max_examples=12)
@given(count=st.integers(1, 5), images=st.integers(1, 4), seed=st.integers(0, 999))
def test_gradients_of_patients_are_those_of_a_loop(family, count, images, seed):
    assert worst_error(NETWORKS[family], count, images, seed, torch.float64) < EXACT


@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize(("count", "images"), [(1, 1), (5, 4)])
def test_gradients_of_patients_in_single_precision(family, count, images):
    assert worst_error(NETWORKS[family], count, images, 3, torch.float32) < ROUNDED


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_of_patients_with_every_activation(name):
    net = NetworkSettings(widths=(2, 4), convolutions=1, hidden=3, groups=2, activation=name)
    assert worst_error(net, 3, 2, 1, torch.float64) < EXACT


@settings(max_examples=30)
@given(
    stride=st.integers(1, 3),
    kernel=st.sampled_from([1, 3, 5]),
    rows=st.integers(1, 7),
    columns=st.integers(1, 7),
    count=st.integers(1, 5),
    images=st.integers(1, 4),
    dtype=st.sampled_from([torch.complex128, torch.float64]),
)
def test_convolutions_of_any_geometry(stride, kernel, rows, columns, count, images, dtype):
    layer = Conv2d(2, 3, kernel, stride=stride, dtype=dtype)
    layer.weight.data = torch.randn(layer.weight.shape, dtype=dtype, generator=torch.Generator().manual_seed(kernel))
    check_layer(layer, (2 * (2 if dtype.is_complex else 1), rows, columns), count, images)


def check_layer(layer: torch.nn.Module, features: tuple[int, ...], count: int, images: int) -> None:
    """Compare outputs and gradients, of parameters and of input, with those of the plain layer."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count * images, *features, dtype=torch.float64, generator=generator).requires_grad_()
    own = dict(layer.named_parameters())
    leaves = {name: p.detach().unsqueeze(0).expand(count, *p.shape).requires_grad_() for name, p in own.items()}
    found, plain = functional_call(layer, leaves, (x,)), layer(x)
    torch.testing.assert_close(found, plain, atol=1e-12, rtol=1e-12)
    direction = torch.randn(found.shape, dtype=torch.float64, generator=generator)
    *by_patient, input_gradient = torch.autograd.grad((found * direction).sum(), [*leaves.values(), x])
    expected_input, *_ = torch.autograd.grad((plain * direction).sum(), [x], retain_graph=True)
    torch.testing.assert_close(input_gradient, expected_input, atol=1e-12, rtol=1e-12)
    for patient in range(count):
        mine = slice(patient * images, (patient + 1) * images)
        expected = torch.autograd.grad((layer(x[mine]) * direction[mine]).sum(), list(own.values()))
        for name, (gradient, wanted) in zip(own, zip(by_patient, expected, strict=True), strict=True):
            torch.testing.assert_close(gradient[patient], wanted, atol=1e-10, rtol=1e-10, msg=name)


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


def test_small_parameters_are_spread_over_the_images_of_their_patient():
    bias = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert per_image(bias, 6, 1).tolist() == [[1, 2]] * 3 + [[3, 4]] * 3
    assert per_image(bias[0], 6, 1).tolist() == [[1, 2]]


def test_images_of_weight_zero_stand_for_absent_ones():
    model = network(NETWORKS["complex pooled"], dtype=torch.float64)
    images, labels = patients(3, 3, dtype=torch.float64)
    weights = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    found = torch.cat(patient_gradients(model, Layout.of(model), images, labels, weights), dim=1)
    torch.testing.assert_close(found[0], plain_gradient(model, images[0], labels[0]), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(found[1], plain_gradient(model, images[1, :2], labels[1, :2]), atol=1e-10, rtol=1e-10)
    assert not found[2].any()
