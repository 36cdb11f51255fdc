from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

from zetadp.nn.activations import (
    ACTIVATIONS,
    NEAREST_POLE,
    Cardioid,
    ConjMish,
    ModReLU,
    Pointwise,
    activation,
    complex_tanh,
    igaussian,
    mish,
    siglog,
    zrelu,
)
from zetadp.nn.stacked import stack, unstack


def apply(module: torch.nn.Module, z: complex, bias: float | None = None) -> complex:
    if bias is not None:
        module.bias.data = torch.tensor([bias], dtype=torch.float64)
    return complex(unstack(module(stack(torch.tensor([[z]], dtype=torch.complex128)))).detach()[0, 0])


@pytest.mark.parametrize(
    ("module", "bias", "z", "printed", "digits"),
    [
        (nn.Sigmoid(), None, 1 - 2j, 0.731059 + 0.119203j, 1e-6),
        (Pointwise(zrelu), None, 1 - 2j, 0, 1e-12),
        (Pointwise(zrelu), None, 1 + 2j, 1 + 2j, 1e-12),
        (nn.ReLU(), None, 1 - 2j, 1 + 0j, 1e-12),
        (Cardioid(), None, 1 - 2j, 0.723607 - 1.447214j, 1e-6),
        (Cardioid(1), 0.5, 1 - 2j, 0.910639 - 1.821278j, 1e-6),
        (Pointwise(siglog), None, 1 - 2j, 0.309017 - 0.618034j, 1e-6),
        (ModReLU(), -1.0, 1 - 2j, 0.552786 - 1.105573j, 1e-6),
        (Pointwise(partial(igaussian, width=1.0)), None, 1 - 2j, 0.410504 - 0.821008j, 1e-6),
        (Pointwise(partial(igaussian, width=0.4)), None, 1 - 2j, 0.447214 - 0.894427j, 1e-6),
        (Pointwise(igaussian), None, 1 - 2j, 0.447214 - 0.894427j, 1e-6),
        (Pointwise(partial(igaussian, width=1.0)), None, 0.1 + 0.1j, 0.00703583 + 0.00703583j, 1e-8),
        # tanh(1 - 2i) and tanh(0.3 + 1.5i), of Python's cmath
        (Pointwise(complex_tanh), None, 1 - 2j, 1.16673625724092 + 0.24345820118572534j, 1e-13),
        (Pointwise(complex_tanh), None, 0.3 + 1.5j, 3.2569945146352657 + 0.7219422069461481j, 1e-13),
        (Pointwise(complex_tanh), None, 0, 0, 1e-15),
        (ConjMish(), None, 1 + 2j, -1.0788605712666843 + 2.809057347801305j, 1e-14),
        (ConjMish(), None, -1 + 0.5j, -0.678646672679004 + 0.07184374993078613j, 1e-14),
        (ConjMish(), None, 0.3 - 0.7j, 0.475871607143616 - 0.059868862447385957j, 1e-14),
    ],
)
def test_values_of_the_specification(module, bias, z, printed, digits):
    assert apply(module, z, bias) == pytest.approx(printed, abs=digits)


ORIGIN = [0, 1e-30, -1e-9j, 1e-5 + 1e-5j, -1, 1j, -2j]
OFFSETS = [0, 1e-9, 1e-5j, 0.004 - 0.003j, -0.01, 0.01j, 0.02 + 0.02j]
POLES = [1j * math.pi * pole + offset for pole in (-1.5, -0.5, 0.5, 3.5) for offset in OFFSETS]
FAR = [1e4 + 1j, -1e4, 1e4j, 90 - 90j]


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [0.0, 0.3, -0.3])
def test_values_and_gradients_are_finite_at_the_origin_around_poles_and_far_out(name, dtype, bias):
    module = activation(name, 1)
    for parameter in module.parameters():
        parameter.data = torch.full_like(parameter, bias, dtype=dtype)
    points = torch.tensor([*ORIGIN, *POLES, *FAR], dtype=torch.complex128)
    x = stack(points.view(-1, 1)).to(dtype).requires_grad_()
    out = module(x)
    gradients = torch.autograd.grad(out.sum(), [x, *module.parameters()])
    assert all(t.isfinite().all() for t in (out, *gradients))
    assert name != "complex_tanh" or unstack(out).abs().max() <= 1.01 / NEAREST_POLE


@pytest.mark.parametrize(
    ("name", "biases"), [("cardioid", 0), ("cardioid_single", 1), ("modrelu", 1), ("conj_mish", 0)]
)
def test_trained_biases_are_as_many_as_the_name_says(name, biases):
    assert sum(p.numel() for p in activation(name, 5).parameters()) == biases


@pytest.mark.parametrize("name", ["cardioid_per_channel", "modrelu_per_channel"])
def test_a_bias_is_real_and_acts_on_its_own_channel(name):
    module, z = activation(name, 2), torch.tensor([[1 - 2j, 0.5 + 1j]], dtype=torch.complex64)
    before = module(z)
    assert (module.bias.dtype, module.bias.shape) == (torch.float32, (2,))
    module.bias.data = torch.tensor([0.0, -0.5])
    after = module(z)
    assert after[0, 0] == before[0, 0]
    assert abs(after[0, 1] - before[0, 1]) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_values_of_mish_far_to_the_left_keep_their_digits(dtype):
    """There Mish is nearly x exp(x); a difference of numbers near one would keep none of its digits."""
    x = torch.linspace(-60, -10, 101, dtype=dtype).view(1, -1).requires_grad_()
    value = mish(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    exact = x.detach().double()
    torch.testing.assert_close(value.double(), exact * exact.exp(), rtol=1e-4, atol=0)
    torch.testing.assert_close(gradient.double(), (1 + exact) * exact.exp(), rtol=1e-4, atol=0)
