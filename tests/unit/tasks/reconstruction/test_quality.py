from __future__ import annotations

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from zetadp.tasks.reconstruction.quality import nmse, psnr, ssim
from zetadp.tasks.reconstruction.settings import MaskSettings

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
