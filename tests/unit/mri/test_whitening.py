from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zetadp.base.validation import UserError
from zetadp.mri.kspace import to_kspace, whiten


def correlated(seed: int, *shape: int) -> np.ndarray:
    """Return complex values with unequal, correlated parts and a mean."""
    rng = np.random.default_rng(seed)
    mix = rng.uniform(-2, 2, size=(2, 2)) + np.eye(2)
    real, imaginary = np.einsum("ij,j...->i...", mix, rng.standard_normal((2, *shape)))
    return real + 1j * imaginary + complex(*rng.uniform(-3, 3, size=2))


def covariance(image: np.ndarray) -> np.ndarray:
    return np.cov(image.real.ravel(), image.imag.ravel())


@given(seed=st.integers(0, 9999))
def test_whitened_covariance_is_the_identity(seed):
    values = correlated(seed, 3, 8, 9)
    whitened = whiten(values, epsilon=0)
    assert whitened.dtype == np.complex64
    np.testing.assert_allclose(whitened.mean(axis=(1, 2)), 0, atol=1e-5)
    for image in whitened:
        np.testing.assert_allclose(covariance(image), np.eye(2), atol=1e-4)


def test_spec_test_vector():
    values = np.array([[1 + 1j, 2 - 1j, -1 + 0.5j, -2j]])
    printed = np.array([[0.463669 + 1.032663j, 1.137460 - 0.377194j, -1.124116 + 0.560098j, -0.477013 - 1.215568j]])
    # The specification adds 1e-5 to both variances; here the ridge is a fraction of their mean.
    mean_variance = (1.666667 + 1.895833) / 2
    np.testing.assert_allclose(whiten(values, epsilon=1e-5 / mean_variance), printed, atol=1e-6)


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


@given(seed=st.integers(0, 999), scale=st.floats(1e-6, 1e6))
def test_scale_and_offset_of_intensities_do_not_matter(seed, scale):
    values = correlated(seed, 6, 6)
    np.testing.assert_allclose(whiten(scale * values + (2 - 3j) * scale), whiten(values), atol=1e-4)


@given(seed=st.integers(0, 999))
def test_no_statistic_crosses_images(seed):
    values = correlated(seed, 2, 3, 6, 6)
    together = whiten(values)
    for index in np.ndindex(2, 3):
        np.testing.assert_array_equal(together[index], whiten(values[index]))
    values[0, 0] *= 100
    np.testing.assert_array_equal(whiten(values).reshape(6, 6, 6)[1:], together.reshape(6, 6, 6)[1:])


def test_a_real_image_on_an_even_grid_scales_each_part_alone():
    rng = np.random.default_rng(0)
    kspace = to_kspace(rng.standard_normal((16, 16)))
    sigma = covariance(kspace)
    assert abs(sigma[0, 1]) < 1e-12
    centred = kspace - kspace.mean()
    expected = centred.real / np.sqrt(sigma[0, 0]) + 1j * centred.imag / np.sqrt(sigma[1, 1])
    np.testing.assert_allclose(whiten(kspace, epsilon=0), expected, atol=1e-5)


def test_a_part_without_variance_stays_finite():
    real = np.random.default_rng(0).standard_normal((8, 8)) + 0j
    whitened = whiten(real)
    assert np.isfinite(whitened).all()
    np.testing.assert_allclose(whitened.real.var(ddof=1), 1, atol=1e-4)
    np.testing.assert_array_equal(whitened.imag, 0)


@pytest.mark.parametrize("bad", [0.0, 3 + 1j, np.nan, np.inf])
def test_images_without_variance_or_not_finite_are_named(bad):
    values = correlated(0, 2, 3, 4, 4)
    values[1, 2] = bad
    with np.errstate(invalid="ignore"), pytest.raises(UserError, match=r"1 image\(s\) .* index \[1, 2\]"):
        whiten(values)
