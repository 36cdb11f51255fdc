from __future__ import annotations

import numpy as np
import pytest

from zetadp.phantom.procedural import capsule, covered, ellipsoid, inside, superellipsoid, tube, zeros_of_waves


def test_shares_of_a_voxel_are_averages_over_it():
    fine = np.linspace(-2, 2, 4001)
    for depth in (-3.0, -1.3, 0.0, 0.4, 5.0):
        assert inside(np.array(depth), 4.0) == pytest.approx((fine + depth > 0).mean(), abs=1e-3)
        for half in (0.3, 1.5, 4.0):
            share = covered(np.array(depth), half, 4.0)
            assert share == pytest.approx((np.abs(fine + depth) < half).mean(), abs=1e-3)


def test_sphere_has_its_exact_depth():
    rng = np.random.default_rng(0)
    place = rng.uniform(-20, 20, (3, 200))
    depth = ellipsoid(place, (1.0, 2.0, 3.0), (12.0, 12.0, 12.0))
    distance = np.linalg.norm(place - np.array([[1.0], [2.0], [3.0]]), axis=0)
    np.testing.assert_allclose(depth, 12 - distance, atol=1e-9)


def test_superellipsoid_passes_through_its_half_axes():
    for axis in range(3):
        reduced = tuple(np.array([1.0 if axis == other else 0.0]) for other in range(3))
        assert superellipsoid(reduced, (5.0, 6.0, 7.0), 2.4) == pytest.approx(0, abs=1e-12)
    # Larger powers fill the corners.
    corner = (np.array([0.6]),) * 3
    depths = [superellipsoid(corner, (5.0, 6.0, 7.0), power)[0] for power in (2.0, 4.0)]
    assert depths[0] < 0 < depths[1]


def test_capsule_tapers_between_its_ends():
    start, end = np.array([0.0, 0.0, 0.0]), np.array([10.0, 0.0, 0.0])
    place = np.array([[-5.0, 0, 0], [0, 4, 0], [5, 4, 0], [10, 4, 0], [16, 0, 0]]).T
    np.testing.assert_allclose(capsule(place, start, end, 1.0, 3.0), [4, 3, 2, 1, 3])


def test_tube_is_the_union_of_its_rods():
    points = ((0.0, 0.0, 0.0, 1.0), (10.0, 0.0, 0.0, 1.0), (10.0, 10.0, 0.0, 1.0))
    place = np.array([[5.0, 3.0, 0.0], [13.0, 7.0, 0.0]]).T
    np.testing.assert_allclose(tube(place, points, 1.0), [2, 2])
    np.testing.assert_allclose(tube(place, points, np.array([1.0, 2.0])), [2, 1])


def test_zeros_of_one_wave_lie_where_the_cosine_vanishes():
    frequencies, phases = np.array([[0.5], [0.0], [0.0]]), np.array([0.0])
    near = np.pi + np.linspace(-0.3, 0.3, 7)  # cos(0.5 x) vanishes at x = pi
    place = np.stack([near, np.zeros(7), np.ones(7)])
    np.testing.assert_allclose(np.abs(zeros_of_waves(place, frequencies, phases)), np.abs(near - np.pi), atol=3e-3)
