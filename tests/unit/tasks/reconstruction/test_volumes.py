from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest

from zetadp.base.validation import UserError
from zetadp.mri.kspace import to_image
from zetadp.tasks.reconstruction.settings import Examinations
from zetadp.tasks.reconstruction.simulated import examination
from zetadp.tasks.reconstruction.volumes import KspaceVolume, cut, read_folder, read_volume, sizes

EXAMINATIONS = Examinations(population="procedural", size=32, slices=2, scalp=1.0)
OFFICIAL = """<?xml version="1.0"?><ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD"><encoding>
  <encodedSpace><matrixSize><x>640</x><y>372</y><z>1</z></matrixSize><fieldOfView_mm><x>280</x></fieldOfView_mm>
  </encodedSpace><reconSpace><matrixSize> <x>320</x> <y>320</y><z>1</z></matrixSize></reconSpace></encoding>
</ismrmrdHeader>"""


@pytest.fixture(scope="module")
def volume() -> KspaceVolume:
    return examination(EXAMINATIONS, seed=0, number=3)


def test_a_simulated_file_has_the_layout_of_fastmri_and_is_read_back(volume, tmp_path):
    volume.write(tmp_path)
    with h5py.File(tmp_path / "phantom-0003.h5") as file:
        assert set(file) == {"kspace", "reconstruction_esc", "ismrmrd_header"}
        assert file["kspace"].dtype == np.complex64
        assert file["kspace"].shape == (2, 64, 32)  # the readout is sampled twice as finely as it is shown
        assert file["reconstruction_esc"].shape == (2, 32, 32)
        assert set(file.attrs) == {"patient_id", "acquisition", "max", "norm"}
        assert file.attrs["max"] == file["reconstruction_esc"][()].max()
        assert sizes(file["ismrmrd_header"][()].decode()) == {"encodedSpace": (64, 32), "reconSpace": (32, 32)}
    found = read_volume(tmp_path / "phantom-0003.h5")
    assert (found.name, found.patient, found.acquisition) == (volume.name, volume.patient, volume.acquisition)
    np.testing.assert_array_equal(found.kspace, volume.kspace)
    np.testing.assert_array_equal(found.target, volume.target)


def test_the_header_of_a_scanner_is_understood():
    assert sizes(OFFICIAL) == {"encodedSpace": (640, 372), "reconSpace": (320, 320)}
    assert sizes("") == {}


def test_complete_kspace_of_the_field_of_view_gives_the_target(volume):
    for size in (32, 24):
        kspace, target = volume.slices(size)
        assert kspace.shape == target.shape == (2, size, size)
        np.testing.assert_allclose(np.abs(to_image(kspace)), target, atol=1e-5)
    assert volume.slices(32)[1].max() == 1
    with pytest.raises(UserError, match=r"at least 64 x 64 pixels .* found 32 x 32"):
        volume.slices(64)


def test_patients_differ_and_have_phase_and_noise(volume):
    again, other = (examination(EXAMINATIONS, seed=0, number=n) for n in (3, 4))
    np.testing.assert_array_equal(again.kspace, volume.kspace)
    assert np.abs(other.target - volume.target).max() > 0.1 * volume.maximum
    image = cut(to_image(volume.kspace), 32, 32)
    head = volume.target > 0.3 * volume.maximum
    phases = np.angle(image[head])
    assert np.std(np.exp(1j * phases)) > 0.1  # no phase that a constant would remove
    # The corners hold noise alone, as much in the imaginary as in the real part.
    quiet = examination(replace(EXAMINATIONS, noise=0.0), seed=0, number=3)
    noise = (to_image(volume.kspace) / volume.maximum - to_image(quiet.kspace) / quiet.maximum)[:, :16]
    assert noise.real.std() == pytest.approx(noise.imag.std(), rel=0.15)
    assert 0.005 < noise.real.std() < 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.pop("reconstruction_esc"), "reconstruction_esc"),
        (lambda file: file.attrs.pop("patient_id"), "patient_id"),
        (lambda file: file["kspace"].write_direct(np.full((2, 64, 32), np.nan, np.complex64)), "finite"),
        (lambda file: file["ismrmrd_header"].__setitem__((), OFFICIAL), r"\(320, 320\) pixels"),
    ],
)
def test_a_file_that_is_not_one_is_refused_by_name(volume, tmp_path, change, message):
    volume.write(tmp_path)
    with h5py.File(tmp_path / "phantom-0003.h5", "r+") as file:
        change(file)
    with pytest.raises(UserError, match=rf"phantom-0003\.h5.*{message}"):
        read_volume(tmp_path / "phantom-0003.h5")


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


@pytest.mark.parametrize("change", [{"population": "martian"}, {"sequences": ["T3w"]}])
def test_names_that_the_simulation_does_not_know_are_refused(change):
    with pytest.raises(UserError, match=r"martian|T3w"):
        examination(replace(EXAMINATIONS, **change), seed=0, number=0)
