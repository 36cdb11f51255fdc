"""What every layer keeps: complex tensors in and out, a gradient per patient, two derivatives, no device, no mixing."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

import zetadp.nn
from zetadp.base.tensors import Layout
from zetadp.mechanism.contributions import knows_units
from zetadp.nn import stacked as stacking
from zetadp.nn.activations import ACTIVATIONS, activation
from zetadp.nn.layers import Conv2d, Linear
from zetadp.nn.normalisation import ComplexGroupNorm, GroupNorm
from zetadp.nn.spectral import MagnitudeMaxPool2d
from zetadp.nn.stacked import ordinary_operations, stack, unstack
from zetadp.training.independence import first_mixture

COMPLEX, REAL = torch.complex64, torch.float32
CHANNELS, SIDE = 4, 6
IMAGES = (CHANNELS, SIDE, SIDE)
PATIENTS, EACH = 5, 3
LAYERS = {
    "convolution": lambda: Conv2d(CHANNELS, 3, dtype=COMPLEX),
    "convolution with bias": lambda: Conv2d(CHANNELS, 3, 5, stride=2, bias=True, dtype=COMPLEX),
    "wide convolution": lambda: Conv2d(CHANNELS, 300, dtype=COMPLEX),
    "linear": lambda: nn.Sequential(nn.Flatten(), Linear(CHANNELS * SIDE**2, 3, dtype=COMPLEX)),
    "linear without bias": lambda: nn.Sequential(nn.Flatten(), Linear(CHANNELS * SIDE**2, 3, bias=False)),
    "normalisation": lambda: ComplexGroupNorm(2, CHANNELS),
    "pooling by modulus": MagnitudeMaxPool2d,
    **{name: lambda name=name: activation(name, CHANNELS) for name in ACTIVATIONS},
    "pooled conj_mish": lambda: zetadp.nn.ConjMish(pooled=True),
}
REAL_LAYERS = {
    "real convolution": lambda: Conv2d(CHANNELS, 3, bias=True, dtype=REAL),
    "real linear": lambda: nn.Sequential(nn.Flatten(), Linear(CHANNELS * SIDE**2, 3, dtype=REAL)),
    "real normalisation": lambda: GroupNorm(2, CHANNELS),
    "real mish": zetadp.nn.Mish,
    "pooled real mish": lambda: zetadp.nn.Mish(pooled=True),
}
ALL = {**LAYERS, **REAL_LAYERS}


def made(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a layer whose every parameter is away from its starting value."""
    torch.manual_seed(0)
    layer = ALL[name]()
    for parameter in layer.parameters():
        kind = dtype.to_complex() if parameter.is_complex() else dtype
        parameter.data = (parameter + 0.1 * torch.randn_like(parameter)).detach().to(kind)
    return layer


def inputs(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return real or complex images, as the layer takes them."""
    random = torch.Generator().manual_seed(1)
    kind = dtype.to_complex() if name in LAYERS else dtype
    return torch.randn(PATIENTS * EACH, *IMAGES, dtype=kind, generator=random)


def stacked(z: torch.Tensor) -> torch.Tensor:
    return stack(z) if z.is_complex() else z


@pytest.mark.parametrize("name", ALL)
def test_it_takes_complex_tensors_as_stacked_ones_and_clipping_sees_every_real_component_once(name):
    layer, z = made(name), inputs(name)
    layout = Layout.of(layer)
    assert knows_units(layer)
    assert layout.dimension == sum(p.numel() * (2 if p.is_complex() else 1) for p in layer.parameters())
    if layout.names:
        vector = torch.arange(float(layout.dimension))
        assert torch.equal(layout.flatten(layout.unflatten(vector)), vector)
    found = layer(z)
    assert found.dtype == z.dtype
    if z.is_complex() and not isinstance(layer, nn.Sequential):
        assert torch.equal(found, unstack(layer(stack(z))))


def output(layer: nn.Module, x: torch.Tensor, own: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
    """Return the output for images, stacked if it is complex, with other parameters if they are given."""
    return stacked(functional_call(layer, own or {}, (x,)))


def loss_of(out: torch.Tensor) -> torch.Tensor:
    """Return a loss whose slope is another one for every number of the output."""
    weights = torch.linspace(-1, 1, out[0].numel(), dtype=out.dtype, device=out.device).view(out.shape[1:])
    return (out * weights + out.square() / 3).sum()


def of_patients(layer: nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the outputs, and the gradients of patients with respect to inputs and parameters."""
    leaves = {
        name: p.detach().unsqueeze(0).expand(PATIENTS, *p.shape).requires_grad_()
        for name, p in layer.named_parameters()
    }
    x = x.clone().requires_grad_()
    out = output(layer, x, leaves)
    return torch.autograd.grad(loss_of(out), [x, *leaves.values()]), out


@pytest.mark.parametrize("name", ALL)
def test_gradients_of_patients_are_those_of_a_loop(name):
    layer, x = made(name, torch.float64), inputs(name, torch.float64)
    found, _ = of_patients(layer, x)
    rows = []
    for own in x.chunk(PATIENTS):
        own = own.clone().requires_grad_()
        rows.append(torch.autograd.grad(loss_of(output(layer, own)), [own, *layer.parameters()]))
    first, *others = zip(*rows, strict=True)
    for one, other in zip(found, [torch.cat(first), *map(torch.stack, others)], strict=True):
        assert (one - other).norm() <= 1e-9 * other.norm()


@pytest.mark.parametrize("name", [name for name in ALL if name != "wide convolution"])
def test_gradients_are_those_of_differences_and_ordinary_ones_can_be_differentiated_again(name):
    layer, x = made(name, torch.float64), inputs(name, torch.float64)[:2, :, :4, :4]
    if isinstance(layer, nn.Sequential):
        layer, x = layer[1], inputs(name, torch.float64)[:1].flatten(1)
    names = [key for key, _ in layer.named_parameters()]

    def computed(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return output(layer, x, dict(zip(names, values, strict=True)))

    given = (x.requires_grad_(), *(p.detach().requires_grad_() for p in layer.parameters()))
    assert torch.autograd.gradcheck(computed, given, fast_mode=True)
    with ordinary_operations():
        assert torch.autograd.gradgradcheck(computed, given, fast_mode=True)


@pytest.mark.parametrize("name", ALL)
def test_a_second_derivative_is_right_or_refused(name):
    def second() -> torch.Tensor:
        layer, x = made(name, torch.float64), inputs(name, torch.float64)[:2].requires_grad_()
        (first,) = torch.autograd.grad(loss_of(output(layer, x)), [x], create_graph=True)
        stacked(first).pow(3).sum().backward()
        return x.grad

    with ordinary_operations():
        expected = second()
    try:
        found = second()
    except RuntimeError as error:
        assert "once_differentiable" in str(error)  # noqa: PT017  (not every layer raises)
    else:
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ALL)
def test_mapped_by_vmap_it_is_a_loop(name):
    """As for networks with layers of other kinds, and in Opacus."""
    layer, x = made(name, torch.float64), inputs(name, torch.float64)[:6].unflatten(0, (3, 2))
    own = dict(layer.named_parameters())
    found = vmap(grad(lambda own, x: loss_of(output(layer, x, own))), (None, 0))(own, x)
    for index in range(3):
        expected = torch.autograd.grad(loss_of(output(layer, x[index])), [*own.values()]) if own else ()
        for mine, other in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(mine[index], other)


def results(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    loss = loss_of(output(layer, x))
    return [loss.detach(), *torch.autograd.grad(loss, [x, *layer.parameters()])]


LAST_BITS = {"real mish": 1e-6, "pooled real mish": 1e-6}
"""Where PyTorch computes what fills no vector by other code, whose last bit differs (seen with AVX-512)."""


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("block", [1, 50, 10_000])
def test_the_size_of_a_block_changes_no_bit(name, block, monkeypatch):
    layer, x = made(name), inputs(name)
    expected = results(layer, x)
    monkeypatch.setattr(stacking, "BLOCK", block)
    off = LAST_BITS.get(name, 0.0)
    torch.testing.assert_close(results(layer, x), expected, rtol=off, atol=off)


@pytest.mark.parametrize("name", ALL)
def test_memory_layout_of_the_input_does_not_matter(name):
    layer, x = made(name, torch.float64), inputs(name, torch.float64)
    turned = x.to(memory_format=torch.channels_last)
    assert turned.stride() != x.stride()
    torch.testing.assert_close(results(layer, turned), results(layer, x))


@pytest.mark.parametrize("name", ALL)
def test_no_layer_asks_a_device_for_numbers(name):
    layer = made(name).to("meta")
    x = torch.empty(PATIENTS * EACH, *IMAGES, dtype=COMPLEX if name in LAYERS else REAL, device="meta")
    gradients, out = of_patients(layer, x)
    assert out.device.type == "meta"
    assert [g.shape for g in gradients[1:]] == [(PATIENTS, *p.shape) for p in layer.parameters()]


@pytest.mark.parametrize("name", ALL)
def test_a_patient_changes_no_bit_of_another(name):
    layer = made(name)

    def compute(given: list[torch.Tensor]) -> list[torch.Tensor]:
        (of_x, *of_parameters), out = of_patients(layer, given[0].flatten(0, 1))
        return [of_x.unflatten(0, (PATIENTS, EACH)), *of_parameters, out.unflatten(0, (PATIENTS, EACH))]

    batch = [inputs(name).unflatten(0, (PATIENTS, EACH))]
    assert first_mixture(compute, batch) is None


PRECISIONS = [(torch.complex64, 1e-5), (torch.complex128, 1e-12)]
SHAPES = [*product((1, 3, 5), (1, 2, 3)), None]
"""Kernels and strides of convolutions, and none for an affine map."""


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_linear_map_is_the_complex_one_of_pytorch(dtype, tolerance, shape):
    z = torch.randn(2, 3, 7, 6, dtype=dtype, generator=torch.Generator().manual_seed(0))
    if shape is None:
        z = z.flatten(1)
        layer = Linear(126, 3, dtype=dtype)
        expected = z @ layer.weight.mT + layer.bias
    else:
        kernel, stride = shape
        layer = Conv2d(3, 4, kernel, stride=stride, dtype=dtype)
        expected = functional.conv2d(z, layer.weight, stride=stride, padding=kernel // 2)
    torch.testing.assert_close(layer(z), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", [COMPLEX, REAL])
def test_new_layers_in_a_row_learn(kind):
    """Weights begin as PyTorch's do; layers that began at zero would stay there."""
    torch.manual_seed(0)
    ours = nn.Sequential(Linear(400, 300, dtype=kind), Linear(300, 2, dtype=kind))
    theirs = nn.Linear(400, 300, dtype=kind)
    out = ours(torch.randn(7, 400, dtype=kind))
    gradients = torch.autograd.grad(out.abs().square().sum(), list(ours.parameters()))
    assert all(g.abs().max() > 0 for g in gradients)
    for name, own in ours[0].named_parameters():
        expected = float(theirs.get_parameter(name).detach().square().mean()) if kind == REAL else 1 / 1200
        assert float(own.detach().abs().square().mean()) == pytest.approx(expected, rel=0.2)


def test_every_public_name_is_there():
    for name in zetadp.nn.__all__:
        assert getattr(zetadp.nn, name).__name__ == name
    with pytest.raises(AttributeError, match="unheard_of"):
        zetadp.nn.unheard_of  # noqa: B018
