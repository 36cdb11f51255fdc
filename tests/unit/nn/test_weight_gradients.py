from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from zetadp.mechanism.factored import Factored
from zetadp.nn import ComplexGroupNorm, weight_gradients
from zetadp.nn.stacked import block_weight
from zetadp.nn.weight_gradients import (
    Geometry,
    by_patient,
    by_patient_in_three,
    by_unfolding,
    convolution_gradients,
)
from zetadp.training.independence import follows_rules
from zetadp.training.round import Phase

DTYPES = {torch.complex128: 1e-10, torch.float64: 1e-10, torch.complex64: 2e-5, torch.float32: 2e-5}
KERNELS = {
    "rule": convolution_gradients,
    "by patient": by_patient,
    "by unfolding": by_unfolding,
    "by patient, in three": lambda *x, is_complex, **more: (
        by_patient_in_three(*x, **more) if is_complex else by_patient(*x, is_complex=False, **more)
    ),
}


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def assert_near(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Compare by norm: the rounding of a sum is relative to its largest terms."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert (found - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40)
@given(
    stride=st.integers(1, 3),
    kernel=st.sampled_from([1, 2, 3, 5]),
    padding=st.integers(0, 5),
    sides=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    patients=st.integers(1, 6),
    images=st.integers(1, 4),
    seed=st.integers(0, 999),
    threads=st.sampled_from([1, 2, 3, 8]),
    most=st.sampled_from([1, 1 << 12, 1 << 30]),
    turned=st.booleans(),
)
def test_every_kernel_gives_what_a_loop_of_ordinary_gradients_gives(
    kernel_name, dtype, stride, kernel, padding, sides, channels, patients, images, seed, threads, most, turned
):
    """With any number of threads that share a call, any memory, and gradients of any layout."""
    assume(min(sides) + 2 * padding >= kernel)
    inputs, outputs = channels
    weight = random(outputs, inputs, kernel, kernel, dtype=dtype, seed=seed).requires_grad_()
    stacked = 2 if dtype.is_complex else 1
    x = random(patients * images, stacked * inputs, *sides, dtype=dtype.to_real(), seed=seed + 1)
    geometry = {"stride": stride, "padding": padding}

    def convolve(x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, block_weight(weight) if dtype.is_complex else weight, **geometry)

    gradient = random(*convolve(x).shape, dtype=x.dtype, seed=seed + 2)
    gradient = gradient.mT.contiguous().mT if turned else gradient
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads)
        patch.setattr(weight_gradients, "UNFOLDED_BYTES", most)
        found = KERNELS[kernel_name](x, gradient, patients, Geometry(kernel, **geometry), is_complex=dtype.is_complex)
    for mine, own, g in zip(found, x.chunk(patients), gradient.chunk(patients), strict=True):
        (expected,) = torch.autograd.grad((convolve(own) * g).sum(), [weight])
        assert_near(mine, expected, DTYPES[dtype])


@pytest.mark.parametrize("channels", [(3, 2), (1, 4)], ids=["by columns", "by windows"])
@pytest.mark.parametrize("is_complex", [False, True])
def test_no_bit_of_an_unfolded_gradient_depends_on_other_patients(channels, is_complex):
    geometry = Geometry(3, 1, 1)
    inputs, outputs = (count * (2 if is_complex else 1) for count in channels)
    x, gradient = (random(6, count, 7, 7, dtype=torch.float32, seed=count) for count in (inputs, outputs))
    expected = by_unfolding(x, gradient, 3, geometry, is_complex=is_complex)
    for t in (x, gradient):
        t[2], t[3] = torch.inf, torch.nan  # the images of the second patient
    found = by_unfolding(x, gradient, 3, geometry, is_complex=is_complex)
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    assert found[1].isnan().all()


class Largest(TorchDispatchMode):
    """Note the bytes of the largest new tensor."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "new_empty" in func.name():
            self.bytes = max(self.bytes, result.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("channels", [(3, 1), (1, 4)], ids=["by columns", "by windows"])
def test_unfolded_input_takes_the_stated_memory_and_all_of_it_is_written(channels, padding, is_complex, monkeypatch):
    inputs, outputs = (count * (2 if is_complex else 1) for count in channels)
    sides = 8 + 2 * padding - 6, 40 + 2 * padding - 6  # a kernel nearly as high as the image
    x, gradient = random(12, inputs, 8, 40, dtype=torch.float32), random(12, outputs, *sides, dtype=torch.float32)
    monkeypatch.setattr(weight_gradients, "UNFOLDED_BYTES", 500_000)
    torch.use_deterministic_algorithms(mode=True)  # fills new memory with NaN
    try:
        with Largest() as largest:
            gradients = by_unfolding(x, gradient, 6, Geometry(7, 1, padding), is_complex=is_complex)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert gradients.isfinite().all()
    assert 100_000 < largest.bytes <= 500_000


# Other layers in one pass: the gradients of a plain loop, or the slower way where a pass cannot have them.

UNITS, ITEMS = 3, 2
COMPLEX = torch.complex64


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


class Modulus(nn.Module):
    def forward(self, x):
        return x.abs()


class Tokens(nn.Module):
    """A layer that is called on tokens, and twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x))).mean(dim=1)


class Swapped(Tokens):
    """Tokens come before items."""

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).mean(dim=0)


class Recurrent(Tokens):
    """A layer that returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(6, 6, batch_first=True)

    def forward(self, x):
        return super().forward(self.cell(x)[0])


class Elsewhere(Tokens):
    """A weight that is used outside its layer too."""

    def forward(self, x):
        return self.layer(x).mean(dim=1) + self.layer.weight.sum(dim=1)


class Gated(nn.Module):
    """A layer with a weight of its own and a mask, which it leaves out of account where there is nothing to mask."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, x, mask=None):
        return self.gain * (x if mask is None else x.masked_fill(mask, 0.0))


class Masked(Tokens):
    """Gives a layer its mask by name; random numbers have nothing to mask."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gated()

    def forward(self, x):
        return super().forward(self.gate(x, mask=x == 0))


class Dead(Tokens):
    """Has gradients of zero for most inputs."""

    def forward(self, x):
        return super().forward(x) * (x.abs().amax() > 1e3)


class Own(Tokens):
    """A weight of the network's own, beside those of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return self.gain * super().forward(x)


def frozen_norm() -> nn.Module:
    norm = nn.BatchNorm2d(4).eval()
    norm.running_mean += 0.3
    return norm


def frozen_first() -> nn.Module:
    model = flat(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3))
    model[0].requires_grad_(requires_grad=False)
    model[2].weight.requires_grad_(requires_grad=False)
    return model


IMAGE, SIGNAL, TOKENS = (2, 8, 7), (2, 12), (5, 6)
NETWORKS = {
    "linear": (lambda: nn.Sequential(nn.Linear(12, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), (12,), torch.float32),
    "large": (lambda: nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 3, bias=False)), (40,), torch.float32),
    "complex linear": (lambda: nn.Sequential(nn.Linear(12, 5, dtype=COMPLEX), Modulus()), (12,), COMPLEX),
    "large complex": (lambda: nn.Sequential(nn.Linear(90, 90, dtype=COMPLEX), Modulus()), (90,), COMPLEX),
    "tokens": (Tokens, TOKENS, torch.float32),
    "convolutions": (
        lambda: flat(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, stride=2, groups=2)),
        IMAGE,
        torch.float32,
    ),
    "odd convolution": (lambda: flat(nn.Conv2d(2, 4, (3, 2), padding=(1, 0), dilation=2)), IMAGE, torch.float32),
    "complex convolutions": (
        lambda: flat(nn.Conv2d(2, 4, 3, padding=1, dtype=COMPLEX), nn.Conv2d(4, 3, (1, 3), dtype=COMPLEX), Modulus()),
        IMAGE,
        COMPLEX,
    ),
    "signals": (lambda: flat(nn.Conv1d(2, 4, 5, padding=2), nn.GroupNorm(2, 4), nn.Tanh()), SIGNAL, torch.float32),
    "norms": (
        lambda: flat(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.LayerNorm((6, 5)), frozen_norm()),
        IMAGE,
        torch.float32,
    ),
    "frozen": (frozen_first, IMAGE, torch.float32),
    "of its own": (Own, TOKENS, torch.float32),
    "volumes": (lambda: flat(nn.Conv3d(1, 2, 2), nn.PReLU(2)), (1, 3, 4, 3), torch.float32),
    "with layers of zetadp": (
        lambda: flat(nn.Conv2d(2, 4, 3, dtype=COMPLEX), ComplexGroupNorm(2, 4), Modulus()),
        IMAGE,
        COMPLEX,
    ),
}


def phase_of(make, shape, kind) -> tuple[Phase, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = make()
    images = torch.randn(UNITS, ITEMS, *shape, dtype=kind)
    labels = torch.randint(3, (UNITS, ITEMS))
    with torch.no_grad():
        model(images.flatten(0, 1))  # fixes lazy layers
    return Phase.of(model, ITEMS), images, labels


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_one_pass_gives_the_gradients_of_a_plain_loop(name):
    phase, images, labels = phase_of(*NETWORKS[name])
    assert follows_rules(phase, images.flatten(0, 1))
    contribution = phase.with_rules().contribution
    weights = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.3, 0.7]])
    trained = [phase.model.get_parameter(name) for name in phase.layout.names]
    before = {name: value.clone() for name, value in phase.model.state_dict().items()}
    for factors in (False, True):
        found = contribution.of_units(images, labels, factors=factors, weights=weights)
        assert not any(row.requires_grad for row in found if isinstance(row, torch.Tensor))
        if factors:
            assert any(isinstance(row, Factored) for row in found) == name.startswith("large")
            found = [
                row.left.mT @ row.right if isinstance(row, Factored) and not row.is_complex else row for row in found
            ]
        for unit in range(UNITS):
            loss = functional.cross_entropy(phase.model(images[unit]), labels[unit], reduction="none") @ weights[unit]
            for row, expected in zip(found, torch.autograd.grad(loss, trained), strict=True):
                if not isinstance(row, Factored):
                    plain = torch.view_as_real(expected) if expected.is_complex() else expected
                    torch.testing.assert_close(row[unit].flatten(), plain.flatten(), rtol=1e-4, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in phase.model.state_dict().items())
    assert not any(module._forward_hooks for module in phase.model.modules())


@pytest.mark.parametrize("make", [Swapped, Elsewhere, Recurrent, Masked, Dead])
def test_where_a_pass_has_other_gradients_units_come_one_after_the_other(make):
    phase, images, _ = phase_of(make, TOKENS, torch.float32)
    assert not follows_rules(phase, images.flatten(0, 1))
