from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from zetadp.base.validation import UserError
from zetadp.mri.kspace import to_image
from zetadp.tasks.reconstruction.settings import Examinations, MaskSettings
from zetadp.tasks.reconstruction.simulated import examination
from zetadp.tasks.reconstruction.volumes import KspaceVolume, nmse, psnr, read_folder, read_volume, ssim

EXAMINATIONS = Examinations(population="procedural", size=32, slices=3, scalp=1.0)


@pytest.fixture(scope="module")
def volume() -> KspaceVolume:
    return examination(EXAMINATIONS, seed=0, number=3)


def test_a_simulated_file_has_the_layout_of_fastmri_and_is_read_back(volume, tmp_path):
    volume.write(tmp_path)
    with h5py.File(tmp_path / "phantom-0003.h5") as file:
        assert set(file) == {"kspace", "reconstruction_esc"}
        assert file["kspace"].dtype == np.complex64
        assert file["kspace"].shape == (3, 64, 32)  # the readout is sampled twice as finely as it is shown
        assert file["reconstruction_esc"].shape == (3, 32, 32)
        assert set(file.attrs) == {"patient_id"}
    found = read_volume(tmp_path / "phantom-0003.h5")
    assert (found.name, found.patient) == (volume.name, volume.patient)
    np.testing.assert_array_equal(found.kspace, volume.kspace)
    np.testing.assert_array_equal(found.target, volume.target)


def compound(kspace: np.ndarray) -> np.ndarray:
    pairs = np.empty(kspace.shape, [("real", "<f4"), ("imag", "<f4")])
    pairs["real"], pairs["imag"] = kspace.real, kspace.imag
    return pairs


WRONG = {
    "other order": lambda k, _: {"kspace": k[::-1]},
    "two slices exchanged": lambda k, _: {"kspace": k[[0, 2, 1]]},
    "next slice": lambda k, _: {"kspace": np.roll(k, 1, axis=0)},
    "real": lambda k, _: {"kspace": np.abs(k)},
    "not centred": lambda k, _: {"kspace": np.fft.fft2(to_image(k), norm="ortho").astype(np.complex64)},
    "an empty slice": lambda k, _: {"kspace": k * (np.arange(3) > 0)[:, None, None]},
    "empty": lambda k, _: {"kspace": 0 * k},
    "other scale": lambda k, _: {"kspace": 2 * k},
    "pairs": lambda k, _: {"kspace": compound(k)},
    "not finite": lambda k, _: {"kspace": np.full_like(k, np.nan)},
    "two coils": lambda k, _: {"kspace": np.stack([k, k], axis=1)},
    "no kspace": lambda _, __: {"kspace": None},
    "no target": lambda _, __: {"reconstruction_esc": None},
    "mirrored target": lambda _, t: {"reconstruction_esc": t[:, ::-1]},
    "no slices": lambda k, t: {"kspace": k[:0], "reconstruction_esc": t[:0]},
    "no patient": lambda _, __: {"patient_id": None},
    "empty patient": lambda _, __: {"patient_id": ""},
    "number as patient": lambda _, __: {"patient_id": 3.5},
    "two patients": lambda _, __: {"patient_id": np.array(["p", "q"], dtype=h5py.string_dtype())},
}


def changed(volume: KspaceVolume, folder: Path, changes: dict[str, object]) -> Path:
    """Write a volume with other arrays or another patient; what is None is left out, or a group."""
    volume.write(folder)
    with h5py.File(folder / f"{volume.name}.h5", "r+") as file:
        for name, value in changes.items():
            where = file.attrs if name == "patient_id" else file
            del where[name]
            if value is not None:
                where[name] = value
            elif name == "kspace":
                file.create_group("kspace")
    return folder / f"{volume.name}.h5"


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_an_examination_that_is_not_what_it_seems_is_refused(volume, tmp_path, change):
    with pytest.raises(UserError, match=rf"{volume.name}\.h5"):
        read_volume(changed(volume, tmp_path, change(volume.kspace, volume.target)))


@pytest.mark.parametrize("patient", [np.bytes_("p"), np.array(["p"], dtype=h5py.string_dtype())])
def test_a_patient_is_the_same_however_the_file_holds_the_name(volume, tmp_path, patient):
    assert read_volume(changed(volume, tmp_path, {"patient_id": patient})).patient == "p"


def test_complete_kspace_of_the_field_of_view_gives_the_target(volume):
    for size in (32, 24):
        kspace, target = volume.slices(size)
        assert kspace.shape == target.shape == (3, size, size)
        np.testing.assert_allclose(np.abs(to_image(kspace)), target, atol=1e-5)
    assert volume.slices(32)[1].max() == 1
    with pytest.raises(UserError, match=r"at least 64 x 64 pixels .* found 32 x 32"):
        volume.slices(64)


def test_a_folder_has_both_parts_of_fastmri(volume, tmp_path):
    with pytest.raises(UserError, match="singlecoil_train, found none"):
        list(read_folder(tmp_path))
    for part in ("singlecoil_train", "singlecoil_val"):
        (tmp_path / part).mkdir()
    volume.write(tmp_path / "singlecoil_train")
    replace(volume, name="b").write(tmp_path / "singlecoil_val")
    assert [(part, each.name) for part, each in read_folder(tmp_path)] == [("train", "phantom-0003"), ("test", "b")]


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
