from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zetadp.mri.kspace import to_image, to_kspace

sizes = st.integers(1, 33)


def complex_image(seed: int, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


@given(rows=sizes, columns=sizes, seed=st.integers(0, 99))
def test_unitary(rows, columns, seed):
    image = complex_image(seed, 3, rows, columns)
    kspace = to_kspace(image)
    np.testing.assert_allclose((np.abs(kspace) ** 2).sum((1, 2)), (np.abs(image) ** 2).sum((1, 2)))
    np.testing.assert_allclose(to_image(kspace), image, atol=1e-12)
    np.testing.assert_allclose(to_kspace(to_image(image)), image, atol=1e-12)


@given(rows=sizes, columns=sizes, seed=st.integers(0, 99))
def test_to_image_is_the_adjoint(rows, columns, seed):
    x, y = complex_image(seed, rows, columns), complex_image(seed + 100, rows, columns)
    np.testing.assert_allclose(np.vdot(to_kspace(x), y), np.vdot(x, to_image(y)), atol=1e-10)


@given(rows=sizes, columns=sizes, seed=st.integers(0, 99))
def test_equals_the_defining_sum_about_the_centre(rows, columns, seed):
    image = complex_image(seed, rows, columns)

    def matrix(n: int) -> np.ndarray:
        index = np.arange(n) - n // 2
        return np.exp(-2j * np.pi * np.outer(index, index) / n) / np.sqrt(n)

    np.testing.assert_allclose(to_kspace(image), matrix(rows) @ image @ matrix(columns).T, atol=1e-10)


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (65, 64), (64, 63)])
def test_centred_against_the_analytic_transform_of_a_gaussian(rows, columns):
    # A Gaussian about the origin has a real, positive Gaussian transform about the origin; one that is shifted by d
    # carries the phase exp(-2 pi i k d / n). A missing or doubled shift would flip signs.
    def along(n: int, spread: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        x = np.arange(n) - n // 2
        image = np.exp(-((x - shift) ** 2) / (2 * spread**2))
        frequency = x / n
        transform = np.sqrt(2 * np.pi) * spread * np.exp(-2 * (np.pi * spread * frequency) ** 2) / np.sqrt(n)
        return image, transform * np.exp(-2j * np.pi * frequency * shift)

    vertical, vertical_transform = along(rows, 3.0, 2.0)
    horizontal, horizontal_transform = along(columns, 4.0, -5.0)
    kspace = to_kspace(np.outer(vertical, horizontal))
    np.testing.assert_allclose(kspace, np.outer(vertical_transform, horizontal_transform), atol=1e-10)


@given(rows=sizes, columns=sizes, seed=st.integers(0, 99))
def test_all_components_of_a_real_image_are_kept_with_their_symmetry(rows, columns, seed):
    kspace = to_kspace(np.random.default_rng(seed).standard_normal((rows, columns)))
    assert kspace.shape == (rows, columns)
    down, across = (2 * (n // 2) - np.arange(n) for n in (rows, columns))
    mirrored = kspace[np.ix_(down % rows, across % columns)]
    np.testing.assert_allclose(mirrored, kspace.conj(), atol=1e-12)


@pytest.mark.parametrize(
    ("given_type", "expected"),
    [
        (np.float32, np.complex64),
        (np.complex64, np.complex64),
        (np.float64, np.complex128),
        (np.complex128, np.complex128),
    ],
)
def test_precision_follows_the_input(given_type, expected):
    image = np.ones((2, 8, 8), dtype=given_type)
    assert to_kspace(image).dtype == to_image(image).dtype == expected
