"""Reconstruction without training: zero-filled images, and compressed sensing."""

from __future__ import annotations

import numpy as np

from papers.complex_dp.baselines import compressed_sensing, zero_filled
from papers.complex_dp.reconstruction.settings import Examinations, MaskSettings
from papers.complex_dp.reconstruction.simulated import examination
from zetadp.mri.kspace import to_kspace
from zetadp.mri.similarity import nmse

RANDOM = np.random.default_rng(0)


def test_compressed_sensing_improves_on_zero_filling():
    volume = examination(Examinations("procedural", size=48, slices=1, noise=0.02), seed=0, number=0)
    kspace, target = volume.slices(48)
    measured = kspace * MaskSettings().of_volume(volume.name, 48)
    zero, sparse = zero_filled(measured), compressed_sensing(measured, 0.03, iterations=40)
    assert sparse.shape == target.shape
    assert nmse(target, sparse) < 0.95 * nmse(target, zero)
    np.testing.assert_array_equal(compressed_sensing(measured, 0.03, iterations=40), sparse)
    # Both keep the scale of what was measured.
    np.testing.assert_allclose(
        compressed_sensing(10 * measured, 0.03, iterations=40), 10 * sparse, rtol=1e-3, atol=1e-3
    )


def test_zero_filling_of_complete_kspace_is_the_image():
    image = np.exp(1j * RANDOM.random((2, 16, 16)))
    np.testing.assert_allclose(zero_filled(to_kspace(image)), 1, atol=1e-6)
