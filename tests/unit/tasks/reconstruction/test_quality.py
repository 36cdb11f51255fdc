from __future__ import annotations

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from zetadp.mri.fourier import to_kspace
from zetadp.tasks.reconstruction.baselines import compressed_sensing, zero_filled
from zetadp.tasks.reconstruction.examinations import Examinations
from zetadp.tasks.reconstruction.masks import MaskSettings
from zetadp.tasks.reconstruction.quality import nmse, psnr, ssim
from zetadp.tasks.reconstruction.simulated import examination

RANDOM = np.random.default_rng(0)
TARGET = RANDOM.random((3, 32, 40)).cumsum(axis=1).astype(np.float32)
FOUND = TARGET + RANDOM.normal(0, 0.5, TARGET.shape).astype(np.float32)


def test_metrics_are_those_of_scikit_image_scaled_by_the_volume():
    peak = float(TARGET.max())
    assert psnr(TARGET, FOUND) == pytest.approx(peak_signal_noise_ratio(TARGET, FOUND, data_range=peak), rel=1e-6)
    wanted = [structural_similarity(a, b, data_range=peak) for a, b in zip(TARGET, FOUND, strict=True)]
    np.testing.assert_allclose(ssim(TARGET, FOUND), wanted, rtol=1e-5)
    assert nmse(TARGET, FOUND) == pytest.approx(np.linalg.norm(TARGET - FOUND) ** 2 / np.linalg.norm(TARGET) ** 2)
    assert nmse(TARGET, TARGET) == 0
    np.testing.assert_allclose(ssim(TARGET, TARGET), 1)


@pytest.mark.parametrize("kind", ["random", "equispaced"])
def test_masks_have_their_centre_and_their_acceleration(kind):
    masks = MaskSettings(kind)
    drawn = np.array([masks.draw(368, np.random.default_rng(n)) for n in range(200)])
    middle = slice(184 - 14, 184 + 15)  # 8 % of 368 lines, as many on either side of the zero frequency
    assert drawn[:, middle].all()
    assert not drawn[:, 184 + 15].all()
    assert drawn.mean() == pytest.approx(1 / 4, rel=0.02)
    rest = drawn.mean(axis=0)[np.r_[:170, 199:368]]
    if kind == "random":
        assert rest.std() < 0.05  # no line is preferred
    else:
        outside = np.flatnonzero(drawn[0, :170])
        assert np.ptp(np.diff(outside)) <= 1


def test_the_mask_of_a_volume_follows_from_its_name():
    masks = MaskSettings()
    np.testing.assert_array_equal(masks.of_volume("file1", 96), masks.of_volume("file1", 96))
    assert (masks.of_volume("file1", 96) != masks.of_volume("file2", 96)).any()


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
