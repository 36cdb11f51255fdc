from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest

from zetadp.phantom.anatomy import VoxelGrid
from zetadp.phantom.cohort import (
    PhantomSettings,
    patient_name,
    scanner_of,
    simulate_patient,
    write_dataset_json,
    write_patients,
)
from zetadp.phantom.scanners import CHANNELS

SETTINGS = PhantomSettings(train_patients=6, test_patients=3, seed=5)


@pytest.fixture(scope="module")
def patients():
    return [simulate_patient(SETTINGS, number) for number in range(1, 10)]


def brain(patient):
    return (patient > 0).all(axis=-1)


def test_volume_is_a_stripped_brain(patients):
    for patient in patients:
        assert patient.shape == (64, 64, 24, 4)
        assert patient.dtype == np.int16
        inside = brain(patient)
        assert np.array_equal(inside, (patient > 0).any(axis=-1))
        # Through its middle an adult brain is near an ellipse of 14 cm by 17 cm: 187 square centimetres.
        area = inside.sum(axis=(0, 1)) * 0.375**2
        assert 130 < area.min() <= area.max() < 260
        assert not inside[:, [0, -1]].any()
        assert not inside[[0, -1]].any()


def test_affine_places_the_first_voxel_left_to_right_front_to_back():
    affine = VoxelGrid((64, 48, 24)).affine
    assert nib.aff2axcodes(affine) == ("L", "P", "S")
    np.testing.assert_allclose(nib.affines.voxel_sizes(affine), (240 / 64, 240 / 48, 1))
    middle = affine @ [31.5, 23.5, 11.5, 1]
    np.testing.assert_allclose(middle, [0, -17, 10, 1])


def test_written_files_are_the_layout_and_do_not_depend_on_shards(tmp_path):
    whole = write_patients(SETTINGS, tmp_path / "a", range(1, 10))
    shards = write_patients(SETTINGS, tmp_path / "b", [9, 3, 1]) | write_patients(SETTINGS, tmp_path / "b", [8, 2])
    shards |= write_patients(SETTINGS, tmp_path / "b", range(4, 8))
    assert whole == shards
    assert len(whole) == 9
    for name, facts in whole.items():
        data = (tmp_path / "a" / name).read_bytes()
        assert data == (tmp_path / "b" / name).read_bytes()
        assert facts == {"sha256": hashlib.sha256(data).hexdigest()}
        image = nib.load(tmp_path / "a" / name)
        assert image.shape[:3] == (64, 64, 24)
        np.testing.assert_allclose(image.header.get_zooms()[:3], (3.75, 3.75, 1))
        np.testing.assert_allclose(image.affine, VoxelGrid((64, 64, 24)).affine)
    image = nib.load(tmp_path / "a" / "imagesTr" / "BRATS_002.nii.gz")
    assert image.get_data_dtype() == np.int16
    assert image.header.get_xyzt_units()[0] == "mm"
    patient = simulate_patient(SETTINGS, 2)
    assert np.array_equal(np.asarray(image.dataobj), patient)


def test_dataset_json_names_every_file_and_participants_every_scanner(tmp_path):
    files = write_patients(SETTINGS, tmp_path, range(1, 10))
    write_dataset_json(SETTINGS, tmp_path)
    content = json.loads((tmp_path / "dataset.json").read_text())
    assert (
        content["modality"]
        == {"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w"}
        == dict(zip("0123", CHANNELS, strict=True))
    )
    assert (content["numTraining"], content["numTest"], content["tensorImageSize"]) == (6, 3, "4D")
    named = [entry["image"] for entry in content["training"]] + content["test"]
    assert sorted(named) == sorted(f"./{name}" for name in files)
    head, *rows = (tmp_path / "participants.tsv").read_text().splitlines()
    assert head == "participant_id\tscanner"
    assert rows == [f"{patient_name(n)}\t{scanner_of(SETTINGS, n) + 1}" for n in range(1, 10)]


def test_scanner_patients_are_honoured():
    settings = PhantomSettings(train_patients=20, test_patients=200, scanners=4, scanner_patients=(9, 0, 10, 1))
    training = [scanner_of(settings, number) for number in range(1, 21)]
    assert training == [0] * 9 + [2] * 10 + [3]
    test = [scanner_of(settings, number) for number in range(21, 221)]
    assert min(np.bincount(test, minlength=4)) > 25


def test_scanner_changes_the_scan_and_not_the_anatomy():
    first = PhantomSettings(train_patients=1, test_patients=0, scanners=2, scanner_patients=(1, 0))
    a, b = simulate_patient(first, 1), simulate_patient(replace(first, scanner_patients=(0, 1)), 1)
    assert np.array_equal(brain(a), brain(b))
    assert not np.array_equal(a, b)
