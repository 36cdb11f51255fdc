from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zetadp.phantom.acquisition import acquire
from zetadp.phantom.grid import VoxelGrid
from zetadp.phantom.protocols import Protocol
from zetadp.phantom.scanners import Scanner

GRID = VoxelGrid((64, 64, 12))
INSIDE = np.zeros(GRID.shape, dtype=bool)
INSIDE[16:48, 16:48] = True
SIMPLE = Scanner(1.5, (Protocol(500, 10),) * 4, bias=0.0, noise=0.0)


def image(scanner, volume, channel=0, noise=0.05):
    """Return the volume as a scanner shows it, with a mean of one."""
    shown = np.zeros(GRID.shape)
    values = acquire(volume[INSIDE], INSIDE, GRID, scanner, channel, noise, np.random.default_rng(0))
    shown[INSIDE] = values / values.mean()
    return shown


def test_thick_slices_are_averages():
    volume = np.ones(GRID.shape, dtype=np.float32)
    volume[:, :, 6] = 4
    thick = replace(SIMPLE, thickness=(1.0, 3.0, 1.0, 1.0))
    profile = image(thick, volume, channel=1)[30, 30]
    np.testing.assert_allclose(profile[5:8] / profile[0], 2, rtol=0.01)
    np.testing.assert_allclose(profile[[0, 4, 8, 11]] / profile[0], 1, rtol=0.01)
    sharp = image(thick, volume, channel=0)[30, 30]
    np.testing.assert_allclose(sharp[5:8] / sharp[0], [1, 4, 1], rtol=0.01)


def test_signs_cancel_in_thick_slices_before_the_magnitude_is_taken():
    volume = np.where(np.arange(12) % 2, -1, 1).astype(np.float32) * np.ones(GRID.shape, dtype=np.float32)
    volume[16:20] = 5
    shown = image(replace(SIMPLE, thickness=(2.0,) * 4), volume)
    assert shown[30, 30, 2:10].max() < 0.01 * shown[17, 30, 5]


def test_coil_array_brightens_the_surface_by_its_strength():
    flat = np.ones(GRID.shape, dtype=np.float32)
    shown = image(replace(SIMPLE, array=0.8), flat)
    x, y, _ = GRID.axes()
    squared = np.square(x[16] - x.mean()) + np.square(y[31] - y.mean())
    middle = np.square(x[31] - x.mean()) + np.square(y[31] - y.mean())
    expected = np.exp(0.8 * (squared - middle) / 80**2)
    assert shown[16, 31, 5] / shown[31, 31, 5] == pytest.approx(expected, rel=0.01)
    assert expected > 1.3


def test_parallel_imaging_makes_the_middle_noisy_and_leaves_the_signal():
    flat = np.ones(GRID.shape, dtype=np.float32)
    noisy = replace(SIMPLE, noise=1.0)
    even, uneven = image(noisy, flat), image(replace(noisy, acceleration=1.0), flat)
    middle, rim = np.s_[28:36, 28:36], np.s_[16:19, 16:48]
    assert uneven[middle].std() == pytest.approx(2 * even[middle].std(), rel=0.12)
    # At 56 mm from the middle and farther: one plus a half or less.
    assert 1.0 < uneven[rim].std() / even[rim].std() < 1.5
    assert uneven[middle].mean() == pytest.approx(even[middle].mean(), rel=0.02)
