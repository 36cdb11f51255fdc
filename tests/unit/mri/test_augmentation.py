from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zetadp.mri.kspace import AugmentationSettings, augment, to_kspace

NOTHING = AugmentationSettings(flip=0, shift=0, blurred=0, undersampled=0, noisy=0)


@pytest.fixture
def images():
    rows, columns = np.mgrid[:32, :32]
    discs = [np.hypot(rows - 15 - x, columns - 16) < 6 + x for x in range(8)]
    return np.stack(discs).astype(np.float32) * 5 + 0.1


def draw(images, settings, seed=0):
    return augment(images, settings, np.random.default_rng(seed))


def test_nothing_changes_nothing(images):
    found = draw(images, NOTHING)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, images, atol=1e-5)


def test_a_flip_exchanges_left_and_right(images):
    np.testing.assert_allclose(draw(images, replace(NOTHING, flip=1)), images[..., ::-1], atol=1e-5)
    found = draw(np.repeat(images[:1], 400, axis=0) * np.arange(32), replace(NOTHING, flip=0.25))
    flipped = (found[:, 16, 25] < found[:, 16, 6]).mean()
    assert 0.15 < flipped < 0.35


def test_a_shift_is_a_phase_ramp_that_moves_the_centre_of_mass_and_keeps_the_energy(images):
    moved = draw(images, replace(NOTHING, shift=2.0))
    rows, columns = np.mgrid[:32, :32]

    def centre(x):
        x = x - 0.1
        return np.array([(x * rows).sum((1, 2)), (x * columns).sum((1, 2))]) / x.sum((1, 2))

    distance = centre(moved) - centre(images)
    assert np.abs(distance).max() < 2.1
    assert np.abs(distance).max() > 0.5
    assert distance.std() > 0.3
    np.testing.assert_allclose((moved**2).sum((1, 2)), (images**2).sum((1, 2)), rtol=1e-4)


def test_lower_resolution_takes_high_frequencies_alone(images):
    blurred = draw(images, replace(NOTHING, blurred=1, blur=1.0))
    before, after = np.abs(to_kspace(images)), np.abs(to_kspace(blurred))
    np.testing.assert_allclose(after[:, 16, 16], before[:, 16, 16], rtol=1e-3)
    edge = (slice(None), slice(0, 4), slice(None))
    assert (after[edge].sum(axis=(1, 2)) < before[edge].sum(axis=(1, 2))).all()


def test_lines_that_are_left_out_spare_the_centre():
    """Of a real image of even symmetry the magnitude is not needed to see which lines are gone."""
    settings = replace(NOTHING, undersampled=1, lines=1.0)
    noise = np.random.default_rng(3).random((200, 32, 32)).astype(np.float32) + 10
    change = np.abs(to_kspace(draw(noise, settings) - noise)).mean(axis=(0, 2))
    centre = np.abs(np.arange(32) - 16) / 32 <= 1 / 8
    assert change[centre].max() < 0.2 * change[~centre].min()


def test_noise_has_the_stated_standard_deviation():
    flat = np.full((4000, 16, 16), 100.0, dtype=np.float32)
    found = draw(flat, replace(NOTHING, noisy=1, noise=0.05))
    # Far above the noise the magnitude sees its real part alone. The level is uniform up to 5 % of the mean.
    deviations = found.std(axis=(1, 2))
    assert deviations.mean() == pytest.approx(2.5, rel=0.03)
    assert deviations.max() == pytest.approx(5, rel=0.15)
    assert draw(flat, replace(NOTHING, noisy=0.3, noise=0.05)).std(axis=(1, 2)).astype(bool).mean() > 0.2


def test_images_are_varied_each_by_itself_from_the_generator_alone(images):
    settings = AugmentationSettings()
    assert np.array_equal(draw(images, settings), draw(images, settings))
    assert not np.array_equal(draw(images, settings), draw(images, settings, 1))
    twins = draw(np.repeat(images[:1], 2, axis=0), settings)
    assert not np.allclose(twins[0], twins[1])


@pytest.mark.parametrize("wrong", [{"flip": 2}, {"noise": -1}, {"lines": 1.5}])
def test_settings_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AugmentationSettings(**wrong)
