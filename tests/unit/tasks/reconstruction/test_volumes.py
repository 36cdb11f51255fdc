from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from zetadp.base.validation import UserError
from zetadp.mri.kspace import to_image
from zetadp.tasks.reconstruction.settings import Examinations, MaskSettings
from zetadp.tasks.reconstruction.simulated import examination
from zetadp.tasks.reconstruction.volumes import KspaceVolume, nmse, psnr, read_folder, read_volume, ssim

EXAMINATIONS = Examinations(population="procedural", size=32, slices=2, scalp=1.0)


@pytest.fixture(scope="module")
def volume() -> KspaceVolume:
    return examination(EXAMINATIONS, seed=0, number=3)


def test_a_simulated_file_has_the_layout_of_fastmri_and_is_read_back(volume, tmp_path):
    volume.write(tmp_path)
    with h5py.File(tmp_path / "phantom-0003.h5") as file:
        assert set(file) == {"kspace", "reconstruction_esc"}
        assert file["kspace"].dtype == np.complex64
        assert file["kspace"].shape == (2, 64, 32)  # the readout is sampled twice as finely as it is shown
        assert file["reconstruction_esc"].shape == (2, 32, 32)
        assert set(file.attrs) == {"patient_id"}
    found = read_volume(tmp_path / "phantom-0003.h5")
    assert (found.name, found.patient) == (volume.name, volume.patient)
    np.testing.assert_array_equal(found.kspace, volume.kspace)
    np.testing.assert_array_equal(found.target, volume.target)


def test_complete_kspace_of_the_field_of_view_gives_the_target(volume):
    for size in (32, 24):
        kspace, target = volume.slices(size)
        assert kspace.shape == target.shape == (2, size, size)
        np.testing.assert_allclose(np.abs(to_image(kspace)), target, atol=1e-5)
    assert volume.slices(32)[1].max() == 1
    with pytest.raises(UserError, match=r"at least 64 x 64 pixels .* found 32 x 32"):
        volume.slices(64)


def test_multi_coil_files_and_empty_folders_are_refused(volume, tmp_path):
    with pytest.raises(UserError, match="singlecoil_train, found none"):
        list(read_folder(tmp_path))
    for part in ("singlecoil_train", "singlecoil_val"):
        (tmp_path / part).mkdir()
    volume.write(tmp_path / "singlecoil_train")
    replace(volume, name="b").write(tmp_path / "singlecoil_val")
    assert [(part, each.name) for part, each in read_folder(tmp_path)] == [("train", "phantom-0003"), ("test", "b")]
    with h5py.File(tmp_path / "singlecoil_val/b.h5", "r+") as file:
        del file["kspace"]
        file["kspace"] = np.zeros((2, 8, 64, 32), np.complex64)
    with pytest.raises(UserError, match="one coil"):
        list(read_folder(tmp_path))


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
