from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from zetadp.nn import weight_gradients
from zetadp.nn.stacked import block_weight
from zetadp.nn.weight_gradients import (
    Geometry,
    by_patient,
    by_patient_in_three,
    by_unfolding,
    convolution_gradients,
)

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
@settings(max_examples=25)
@given(
    stride=st.integers(1, 3),
    kernel=st.sampled_from([1, 3, 5]),
    sides=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    patients=st.integers(1, 5),
    images=st.integers(1, 4),
    seed=st.integers(0, 999),
)
def test_every_kernel_gives_what_a_loop_of_ordinary_gradients_gives(
    kernel_name, dtype, stride, kernel, sides, channels, patients, images, seed
):
    inputs, outputs = channels
    weight = random(outputs, inputs, kernel, kernel, dtype=dtype, seed=seed).requires_grad_()
    stacked = 2 if dtype.is_complex else 1
    x = random(patients * images, stacked * inputs, *sides, dtype=dtype.to_real(), seed=seed + 1)
    geometry = {"stride": stride, "padding": kernel // 2}

    def convolve(x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, block_weight(weight) if dtype.is_complex else weight, **geometry)

    gradient = random(*convolve(x).shape, dtype=x.dtype, seed=seed + 2)
    found = KERNELS[kernel_name](x, gradient, patients, Geometry(kernel, **geometry), is_complex=dtype.is_complex)
    for mine, own, g in zip(found, x.chunk(patients), gradient.chunk(patients), strict=True):
        (expected,) = torch.autograd.grad((convolve(own) * g).sum(), [weight])
        assert_near(mine, expected, DTYPES[dtype])


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("patients", [1, 2, 3, 5, 6])
def test_patients_that_share_a_call_keep_their_own_gradients(threads, patients, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    images = 2
    x = random(patients * images, 4, 5, 6, dtype=torch.float64, seed=1)
    gradient = random(patients * images, 6, 3, 3, dtype=torch.float64, seed=2)
    geometry = {"stride": 2, "padding": 1}
    found = by_patient_in_three(x, gradient, patients, Geometry(3, **geometry))
    expected = by_patient(x, gradient, patients, Geometry(3, **geometry), is_complex=True)
    assert_near(found, expected, 1e-10)


@pytest.mark.parametrize("most", [1, 1 << 12, 1 << 30])
def test_unfolding_takes_gradients_of_any_layout_and_no_more_memory_than_it_may(most, monkeypatch):
    monkeypatch.setattr(weight_gradients, "UNFOLDED_BYTES", most)
    x = random(6, 4, 7, 5, dtype=torch.float64, seed=1)
    gradient = random(6, 6, 5, 7, dtype=torch.float64, seed=2).transpose(2, 3)
    sizes = []
    unfold = torch.Tensor.unfold

    def counted(tensor, *arguments):
        sizes.append(len(tensor))
        return unfold(tensor, *arguments)

    monkeypatch.setattr(torch.Tensor, "unfold", counted)
    found = by_unfolding(x, gradient, 3, Geometry(3, 1, 1), is_complex=True)
    assert_near(found, by_patient(x, gradient, 3, Geometry(3, 1, 1), is_complex=True), 1e-10)
    of_an_image = 9 * 4 * 35 * x.element_size()
    assert all(images * of_an_image <= most for images in sizes)
