from __future__ import annotations

import gzip
from pathlib import Path, PurePosixPath

import nibabel as nib
import numpy as np
import pytest
from decathlon_builder import volume, write_dataset_json, write_tiny_task, write_volume

from zetadp.base.validation import UserError
from zetadp.mri.decathlon import (
    read_task,
    readings,
)
from zetadp.mri.volumes import read_volume


def test_task_keeps_the_channel_order_of_the_file_under_canonical_names(tmp_path):
    root = write_tiny_task(tmp_path, 2, 1, channels=("T2", "t1ce", "flair", "T1"))
    task = read_task(root)
    assert task.sequences == ("T2w", "T1gd", "FLAIR", "T1w")
    assert task.training == (PurePosixPath("imagesTr/BRATS_001.nii.gz"), PurePosixPath("imagesTr/BRATS_002.nii.gz"))
    assert task.test == (PurePosixPath("imagesTs/BRATS_003.nii.gz"),)


def test_modality_is_ordered_by_number_not_by_place_in_the_file(tmp_path):
    modality = {"3": "FLAIR", "1": "T1w", "0": "t1gd", "2": "T2w"}
    write_dataset_json(tmp_path, [], [], modality=modality)
    assert read_task(tmp_path).sequences == ("T1gd", "T1w", "T2w", "FLAIR")


CHANNEL_FAULTS = {
    "T2w is missing": ("FLAIR", "T1w", "t1gd"),
    "FLAIR appears 2 times": ("FLAIR", "T1w", "t1gd", "T2w", "flair"),
    "T1gd is missing; T1w appears 2 times": ("FLAIR", "T1w", "T1", "T2w"),
    "'ADC' is unknown": ("FLAIR", "T1w", "t1gd", "T2w", "ADC"),
}
FAULTS = [
    *[({"modality": dict(zip("01234", names, strict=False))}, said) for said, names in CHANNEL_FAULTS.items()],
    ({"modality": None}, "modality"),
    ({"modality": ["FLAIR", "T1w", "t1gd", "T2w"]}, "modality"),
    ({"modality": {"0": "FLAIR", "2": "T1w", "3": "t1gd", "4": "T2w"}}, "modality"),
    ({"training": "imagesTr"}, "training"),
    ({"test": None}, "test"),
    ({"test": ["/etc/passwd"]}, "/etc/passwd"),
    ({"test": ["../elsewhere/BRATS_001.nii.gz"]}, r"\.\./elsewhere"),
    ({"test": [".\\imagesTs\\BRATS_001.nii.gz"]}, "imagesTs"),
    ({"training": [{"label": "./labelsTr/BRATS_001.nii.gz"}]}, "labelsTr"),
]


@pytest.mark.parametrize(("changes", "said"), FAULTS)
def test_a_malformed_dataset_json_is_one_error_that_names_the_file(tmp_path, changes, said):
    path = write_dataset_json(tmp_path, [], [], **changes)
    with pytest.raises(UserError, match=said) as error:
        read_task(tmp_path)
    assert str(path) in str(error.value)


def test_volume_tells_what_the_header_holds(tmp_path):
    array = volume((6, 7, 8), 4, np.random.default_rng(0))
    found = read_volume(write_volume(tmp_path / "a.nii.gz", array, "SPL", slope=0.5, inter=-3.0))
    assert found.shape == (8, 7, 6, 4)
    assert found.axial_slices == 8
    assert (found.slope, found.intercept) == (0.5, -3.0)
    assert found.dtype == np.int16
    with found.open() as stream:
        stream.read(found.offset)
        assert stream.read() == nib.load(found.path).dataobj.get_unscaled().tobytes(order="F")


def _good(path: Path) -> bytes:
    return write_volume(path, volume((6, 7, 8), 4, np.random.default_rng(0))).read_bytes()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "found no such file"),
        (lambda path: path.write_bytes(b""), "Cannot read the NIfTI header"),
        (lambda path: path.write_bytes(gzip.decompress(_good(path))), "not a gzip file"),
        (lambda path: path.write_bytes(_good(path)[:100]), "Cannot read the NIfTI header"),
        (lambda path: path.write_bytes(gzip.compress(b"no image" * 100)), "Cannot read the NIfTI header"),
        (lambda path: write_volume(path, np.ones((6, 7, 8), np.int16)), "Expected 4 channels"),
        (lambda path: write_volume(path, np.ones((6, 7, 8, 1, 4), np.int16)), "found 5-D"),
        (lambda path: write_volume(path, np.ones((6, 7, 8, 3), np.int16)), "Expected 4 channels"),
        (lambda path: write_volume(path, np.ones((6, 7, 8, 5), np.int16)), "Expected 4 channels"),
        (lambda path: write_volume(path, np.ones((9, 9, 4, 4), np.int16), "SAR"), "Expected at least 5 axial slices"),
        (lambda path: write_volume(path, np.ones((6, 7, 8, 4), np.complex64)), "Expected real voxels"),
    ],
)
def test_unusable_volumes_are_one_error_that_names_the_file(tmp_path, make, message):
    path = tmp_path / "BRATS_001.nii.gz"
    make(path)
    with pytest.raises(UserError, match=message) as error:
        read_volume(path, channels=4, slices=5)
    assert str(path) in str(error.value)
    assert str(error.value).rstrip().endswith(".")


BOTH = ("T1w", "T1gd")


@pytest.mark.parametrize(
    ("name", "sequences"),
    [
        ("P7_flair", ("FLAIR",)),
        ("P7_T2_tra_FLAIR", ("FLAIR",)),
        ("P7_T2-FLAIR_post_gd", ("FLAIR",)),
        ("P7-t2w", ("T2w",)),
        ("P7_T1", ("T1w",)),
        ("P7_T1w_pre", ("T1w",)),
        ("P7_T1_native", ("T1w",)),
        ("BraTS-GLI-00001-000-t1n", ("T1w",)),
        ("BraTS-GLI-00001-000-t1c", ("T1gd",)),
        ("P7_T1_axial_post_gd", ("T1gd",)),
        ("P7_T1_tra_Gd_MPRAGE", ("T1gd",)),
        ("P7_T1_KM", ("T1gd",)),
        ("P7_T1_post_contrast", ("T1gd",)),
        ("P7_T1postGd", ("T1gd",)),
        ("P7_ce-gd_T1w", ("T1gd",)),
        ("P7_T1_post", BOTH),
        ("P7_T1_pre_gd", BOTH),
        ("P7_T1_without_contrast", BOTH),
        ("P7_T1_FLAIR", ("FLAIR", "T1w")),
        ("P7_T1_to_T2", ("T1w", "T2w")),
        ("P7_T1_mask", ()),
        ("P7_seg", ()),
        ("P7_DWI", ()),
        ("P7_T2star", ()),
    ],
)
def test_names_are_read_by_their_words(name, sequences):
    assert readings(name) == sequences
