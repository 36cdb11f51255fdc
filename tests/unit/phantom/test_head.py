from __future__ import annotations

import numpy as np
import pytest

from zetadp.phantom.head import Layer, distance_from, draw_head, draw_head_tissues, suppress_fat
from zetadp.phantom.public import GRID, simulate_public_patient
from zetadp.phantom.public_brains import SHARES, draw_anatomy, draw_shapes
from zetadp.phantom.scanners import Protocol

T1_WEIGHTED = Protocol(tr=500, te=12)


def generator(number):
    return np.random.Generator(np.random.PCG64([11, number]))


@pytest.fixture(scope="module")
def brain():
    return draw_anatomy(generator(0), GRID)[0]


def test_layers_lie_outside_of_the_brain_and_never_exceed_a_voxel(brain):
    for number in range(5):
        fractions = draw_head(generator(number), GRID, brain).fractions
        assert fractions.min() >= 0
        assert fractions.sum(axis=0).max() <= 1 + 1e-5
        assert not fractions[:, brain].any()
        assert all(fractions[layer].any() for layer in Layer)


def test_distances_are_negative_in_the_brain_and_grow_outward(brain):
    distance = distance_from(brain, GRID)
    assert (distance[brain] < 3).all()
    assert (distance[0] > 20).all()
    middle = distance[:, 32, 12]
    outside = np.flatnonzero(~brain[:, 32, 12] & (np.arange(64) > 32))
    assert (np.diff(middle[outside]) > 0).mean() > 0.9


def test_crude_masks_cut_the_brain_in_some_heads_and_leave_scalp_in_others(brain):
    head = draw_head(generator(0), GRID, brain)
    masks = [head.visible(generator(number)) for number in range(20)]
    assert any(not mask[brain].all() for mask in masks)
    assert any((head.fractions[Layer.FAT] * mask).sum() > 100 for mask in masks)


def test_fat_is_bright_in_t1_weighted_images_unless_it_is_suppressed_and_bone_is_dark():
    signal = T1_WEIGHTED.signal(draw_head_tissues(generator(0), 4.0))
    assert signal[Layer.FAT] > 2 * signal[Layer.MUSCLE] > 20 * signal[Layer.OUTER_BONE]
    fat = [suppress_fat(generator(number), signal, "T2w")[Layer.FAT] for number in range(40)]
    assert 0 < sum(value < signal[Layer.FAT] / 2 for value in fat) < 20


@pytest.mark.parametrize("anatomy", [draw_anatomy, draw_shapes])
def test_brains_of_all_sizes_are_equally_likely(anatomy):
    filled = np.array([anatomy(generator(number), GRID)[0][..., 12].mean() for number in range(60)])
    low, high = SHARES
    assert np.quantile(filled, 0.1) < low + 0.06
    assert np.quantile(filled, 0.9) > high - 0.08
    assert 0.28 < np.median(filled) < 0.4


def test_some_patients_show_the_whole_head():
    """The share of the image that is not air, in patients with the same brains, has two groups."""
    filled = [(simulate_public_patient(4, number, 1, 32)[1] > 0.1).mean() for number in range(24)]
    assert max(filled) > 0.5
    assert min(filled) < 0.35
