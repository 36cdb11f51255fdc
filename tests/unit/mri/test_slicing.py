from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zetadp.mri.slicing import area_weights, as_magnitudes, centre_slices, resize_area


def test_twenty_centre_slices_of_a_decathlon_volume():
    assert list(range(155))[centre_slices(155, 20)] == list(range(67, 87))


@given(depth=st.integers(1, 300), data=st.data())
def test_centre_slices_lie_in_the_middle(depth, data):
    count = data.draw(st.integers(1, depth))
    kept = range(depth)[centre_slices(depth, count)]
    below, above = kept.start, depth - kept.stop
    assert len(kept) == count
    assert 0 <= above - below <= 1


def test_more_slices_than_there_are():
    with pytest.raises(ValueError, match="at least 21 axial slices, found 20"):
        centre_slices(20, 21)


sizes = st.integers(1, 50)


@given(size=sizes, target=sizes)
def test_weights_are_the_shares_of_equal_intervals(size, target):
    weights = area_weights(size, target)
    assert weights.shape == (target, size)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=0), target / size, rtol=1e-4)  # every sample counts the same
    np.testing.assert_allclose(weights, weights[::-1, ::-1], atol=1e-6)  # no side is preferred


@given(rows=sizes, columns=sizes, target=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_resize_keeps_the_mean_and_the_range(rows, columns, target, seed):
    images = np.random.default_rng(seed).uniform(-1, 3, size=(2, 3, rows, columns))
    small = resize_area(images, target)
    assert small.shape == (2, 3, target, target)
    assert small.dtype == np.float32
    np.testing.assert_allclose(small.mean(axis=(2, 3), dtype=float), images.mean(axis=(2, 3)), atol=1e-6)
    assert small.min() >= images.min() - 1e-5
    assert small.max() <= images.max() + 1e-5


@given(rows=sizes, columns=sizes, target=st.integers(1, 40), value=st.floats(-1000, 1000, width=32))
def test_constant_stays_constant(rows, columns, target, value):
    small = resize_area(np.full((rows, columns), value, dtype=np.float32), target)
    np.testing.assert_allclose(small, value, rtol=1e-5, atol=1e-37)  # smaller numbers are subnormal


@given(target=st.integers(1, 12), by_rows=st.integers(1, 6), by_columns=st.integers(1, 6), seed=st.integers(0, 99))
def test_integer_ratios_give_block_means(target, by_rows, by_columns, seed):
    images = np.random.default_rng(seed).standard_normal((3, target * by_rows, target * by_columns))
    blocks = images.reshape(3, target, by_rows, target, by_columns).mean(axis=(2, 4))
    np.testing.assert_allclose(resize_area(images, target), blocks, atol=1e-5)


@given(size=st.integers(1, 30), target=st.integers(1, 30), factor=st.integers(1, 6))
def test_fractional_ratios_agree_with_fine_block_means(size, target, factor):
    # Repeating every sample makes the ratio an integer and changes nothing of what is averaged.
    line = np.random.default_rng(size).standard_normal(size)
    fine = np.repeat(line, target).reshape(target, size).mean(axis=1)
    np.testing.assert_allclose(area_weights(size, target) @ line, fine, atol=1e-5)
    np.testing.assert_allclose(area_weights(size * factor, target) @ np.repeat(line, factor), fine, atol=1e-5)


def test_stored_integers_are_averaged_without_overflow():
    images = np.full((1, 8, 8), 32767, dtype=np.int16)
    np.testing.assert_allclose(resize_area(images, 2), 32767, rtol=1e-6)


@pytest.fixture
def magnitudes():
    """Two slices of a brain whose darkest voxels are black, over an empty background."""
    slices = np.zeros((2, 8, 8), np.float32)
    slices[:, 1:6, 2:7] = np.random.default_rng(0).uniform(100, 900, (2, 5, 5))
    slices[0, 1, 2] = 1e-3
    return slices


def scored(slices, background):
    """Standardise the brain alone; the background gets a value of its own."""
    brain = slices > 0
    return np.where(brain, (slices - slices[brain].mean()) / slices[brain].std(), background).astype(np.float32)


@pytest.mark.parametrize("background", [0.0, -10.0, 10.0, None])
def test_scores_become_magnitudes_again_up_to_their_scale(magnitudes, background):
    stored = (magnitudes - 400) / 200 if background is None else scored(magnitudes, background)
    found = as_magnitudes(stored)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found * magnitudes.max() / found.max(), magnitudes, atol=0.01)


def test_magnitudes_stay_as_they_are(magnitudes):
    assert as_magnitudes(magnitudes) is magnitudes


def test_what_is_constant_or_not_finite_is_left_to_later_checks():
    assert as_magnitudes(np.full((2, 3, 3), -4.0)).max() == 0
    assert np.isnan(as_magnitudes(np.array([[[-1.0, np.nan]]]))).any()
