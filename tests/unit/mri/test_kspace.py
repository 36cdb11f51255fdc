from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zetadp.base.validation import UserError
from zetadp.mri import kspace
from zetadp.mri.kspace import augment, to_image, to_kspace, whiten

sizes = st.integers(1, 33)


def complex_image(seed: int, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


@given(rows=sizes, columns=sizes, seed=st.integers(0, 99))
def test_equals_the_defining_sum_about_the_centre_which_is_unitary(rows, columns, seed):
    image = complex_image(seed, rows, columns)

    def matrix(n: int) -> np.ndarray:
        index = np.arange(n) - n // 2
        return np.exp(-2j * np.pi * np.outer(index, index) / n) / np.sqrt(n)

    np.testing.assert_allclose(to_kspace(image), matrix(rows) @ image @ matrix(columns).T, atol=1e-10)
    np.testing.assert_allclose(to_image(to_kspace(image)), image, atol=1e-12)


def correlated(seed: int, *shape: int) -> np.ndarray:
    """Return complex values with unequal, correlated parts and a mean."""
    rng = np.random.default_rng(seed)
    mix = rng.uniform(-2, 2, size=(2, 2)) + np.eye(2)
    real, imaginary = np.einsum("ij,j...->i...", mix, rng.standard_normal((2, *shape)))
    return real + 1j * imaginary + complex(*rng.uniform(-3, 3, size=2))


def covariance(image: np.ndarray) -> np.ndarray:
    return np.cov(image.real.ravel(), image.imag.ravel())


@given(seed=st.integers(0, 999), epsilon=st.floats(1e-6, 1.0))
def test_matches_the_inverse_square_root_by_eigenvectors(seed, epsilon):
    values = correlated(seed, 7, 6)
    sigma = covariance(values)
    sigma = sigma + epsilon * np.trace(sigma) / 2 * np.eye(2)
    eigenvalues, vectors = np.linalg.eigh(sigma)
    root = vectors @ np.diag(eigenvalues**-0.5) @ vectors.T
    centred = values - values.mean()
    real, imaginary = root @ np.stack([centred.real.ravel(), centred.imag.ravel()])
    np.testing.assert_allclose(whiten(values, epsilon).ravel(), real + 1j * imaginary, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [0.0, 3 + 1j, np.nan, np.inf])
def test_images_without_variance_or_not_finite_are_named(bad):
    values = correlated(0, 2, 3, 4, 4)
    values[1, 2] = bad
    with np.errstate(invalid="ignore"), pytest.raises(UserError, match=r"1 image that is .* index \[1, 2\]"):
        whiten(values)


@pytest.fixture
def images():
    rows, columns = np.mgrid[:32, :32]
    discs = [np.hypot(rows - 15 - x, columns - 16) < 6 + x for x in range(8)]
    return np.stack(discs).astype(np.float32) * 5 + 0.1


def draw(images, seed=0):
    return augment(images, np.random.default_rng(seed))


def test_a_shift_is_a_phase_ramp_that_moves_the_centre_of_mass_and_keeps_the_energy(images, monkeypatch):
    for name in ("FLIP", "BLURRED", "UNDERSAMPLED", "NOISY"):
        monkeypatch.setattr(kspace, name, 0)
    moved = draw(images)
    rows, columns = np.mgrid[:32, :32]

    def centre(x):
        x = x - 0.1
        return np.array([(x * rows).sum((1, 2)), (x * columns).sum((1, 2))]) / x.sum((1, 2))

    distance = np.abs(centre(moved) - centre(images))
    assert 1 < distance.max() < 3.1
    np.testing.assert_allclose((moved**2).sum((1, 2)), (images**2).sum((1, 2)), rtol=1e-4)


def test_images_are_varied_each_by_itself_from_the_generator_alone(images):
    assert np.array_equal(draw(images), draw(images))
    assert not np.array_equal(draw(images), draw(images, 1))
    twins = draw(np.repeat(images[:1], 2, axis=0))
    assert not np.allclose(twins[0], twins[1])
