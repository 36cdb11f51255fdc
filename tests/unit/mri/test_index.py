from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import pytest
from decathlon_builder import real_sample, write_tiny_task, write_volume
from scipy.ndimage import gaussian_filter, shift

from zetadp.base.validation import UserError
from zetadp.mri.decathlon import PATIENT_KEY, read_task
from zetadp.mri.duplicates import THRESHOLD, check_different, near_duplicates
from zetadp.mri.index import COLUMNS, PARTICIPANTS, index_cohort, listed_files
from zetadp.mri.slicing import centre_slices, resize_area
from zetadp.mri.volumes import read_centre_slices
from zetadp.phantom.cohort import simulate_patient
from zetadp.phantom.settings import Simulated


@pytest.fixture
def task(tmp_path):
    return write_tiny_task(tmp_path / "Task01_BrainTumour", 3, 2)


def index(root, train=3, test=2, slices=5, **options):
    return index_cohort(root, train_patients=train, test_patients=test, slices=slices, **options)


def problems(root, *args, **options) -> list[str]:
    """Return the numbered problems of a cohort, without their numbers."""
    with pytest.raises(UserError) as error:
        index(root, *args, **options)
    head, *lines = str(error.value).splitlines()
    assert head.startswith(f"Found {len(lines)} problem")
    assert str(root) in head
    assert [line.split(". ", 1)[0] for line in lines] == [str(number + 1) for number in range(len(lines))]
    return [line.split(". ", 1)[1] for line in lines]


def test_listed_files_are_all_that_the_table_is_made_of(task):
    """Found before anything runs, also of a folder in which something is missing or wrong."""
    volumes = [task / file for file in index(task)["file"]]
    assert listed_files(task) == [*volumes, task / PATIENT_KEY, task / PARTICIPANTS]
    volumes[0].unlink()
    assert listed_files(task)[:-2] == volumes
    (task / "dataset.json").write_text("{}")
    assert listed_files(task) == listed_files(task / "nowhere") == []


def test_table_describes_every_file(task):
    table = index(task)
    assert tuple(table.columns) == COLUMNS
    assert table["patient"].tolist() == table["record"].tolist() == [f"BRATS_{n:03d}" for n in range(1, 6)]
    assert table["part"].tolist() == ["train"] * 3 + ["test"] * 2
    for row in table.itertuples():
        content = (task / row.file).read_bytes()
        assert row.sha256 == hashlib.sha256(content).hexdigest()
        assert row.bytes == len(content)
    assert table["scanner"].tolist() == [""] * 5


def test_scanners_come_from_participants_with_or_without_the_bids_prefix(task):
    rows = "participant_id\tage\tscanner\nBRATS_001\t60\tA\nsub-BRATS_004\t70\tB\n"
    (task / "participants.tsv").write_text(rows)
    assert index(task)["scanner"].tolist() == ["A", "", "", "B", ""]
    (task / "participants.tsv").write_text("participant_id\nBRATS_001\n")
    assert index(task)["scanner"].tolist() == [""] * 5
    (task / "participants.tsv").write_text("name,scanner\nBRATS_001,A\n")
    (found,) = problems(task)
    assert "Expected the columns participant_id" in found


def test_all_problems_are_in_one_message(task):
    (task / "imagesTr/BRATS_001.nii.gz").unlink()
    write_volume(task / "imagesTr/BRATS_002.nii.gz", np.ones((12, 14, 9), np.int16))
    write_volume(task / "imagesTr/BRATS_003.nii.gz", np.ones((12, 14, 9, 3), np.int16))
    write_volume(task / "imagesTs/BRATS_004.nii.gz", np.ones((12, 14, 4, 4), np.int16))
    cut = task / "imagesTs/BRATS_005.nii.gz"
    cut.write_bytes(cut.read_bytes()[:-500])
    (task / "participants.tsv").write_text("nothing\n")
    found = problems(task, test=7)
    expected = [
        ("BRATS_001.nii.gz", "no such file"),
        ("BRATS_002.nii.gz", "4-D"),
        ("BRATS_003.nii.gz", "Expected 4 channels"),
        ("BRATS_004.nii.gz", "at least 5 axial slices"),
        ("BRATS_005.nii.gz", "truncated"),
        ("participants.tsv", "Expected the columns"),
        ("dataset.json", "Expected 7 patients in the part test"),
    ]
    assert len(found) == len(expected)
    for problem, words in zip(found, expected, strict=True):
        assert all(word in problem for word in words)


def write_key(path, patients):
    files = [f"imagesTr/BRATS_00{n}.nii.gz" for n in (1, 2, 3)] + [f"imagesTs/BRATS_00{n}.nii.gz" for n in (4, 5)]
    lines = "".join(f"{file}\t{patient}\n" for file, patient in zip(files, patients, strict=True) if patient)
    path.write_text(f"file\tpatient\n{lines}")
    return path


def test_a_key_beside_the_cohort_is_never_overlooked(task, tmp_path):
    write_key(task / "patient_key.tsv", ["ann", "bob", "ann", "cyd", "cyd"])
    assert index(task, train=2, test=1)["patient"].nunique() == 3
    other = write_key(tmp_path / "other.tsv", ["a", "b", "c", "d", "e"])
    assert index(task, patient_key=other)["patient"].nunique() == 5


def test_a_person_in_both_parts_is_an_error(task, tmp_path):
    key = write_key(tmp_path / "key.tsv", ["ann", "bob", "cyd", "dan", "ann"])
    (found,) = problems(task, patient_key=key)
    assert "patient ann in one part" in found
    assert "train BRATS_001; test BRATS_005" in found


def test_a_key_must_know_every_file_and_no_other(task, tmp_path):
    key = write_key(tmp_path / "key.tsv", ["ann", None, "cyd", "dan", "eve"])
    key.write_text(key.read_text() + "imagesTr/BRATS_009.nii.gz\tzoe\nimagesTr/BRATS_001.nii.gz\tbob\n")
    (found,) = problems(task, patient_key=key)
    assert str(key) in found
    assert "1 given twice (imagesTr/BRATS_001.nii.gz)" in found
    assert "1 missing (imagesTr/BRATS_002.nii.gz)" in found
    assert "1 unknown (imagesTr/BRATS_009.nii.gz)" in found
    write_key(key, ["pat-a", "PAT-A", "cyd", "dan", "eve"])
    (found,) = problems(task, patient_key=key)
    assert "'PAT-A' and 'pat-a'" in found
    (found,) = problems(task, patient_key=tmp_path / "absent.tsv")
    assert "absent.tsv" in found


@cache
def cohort(number: int) -> np.ndarray:
    """Return small images of simulated patients in one space, shape (patient, sequence, slice, row, column)."""
    settings = Simulated(population="standard", seed=5, grid=(64, 64, 24), scanners=3)
    volumes = [simulate_patient(settings, patient) for patient in range(1, number + 1)]
    pictures = [np.transpose(volume[:, ::-1, centre_slices(24, 20)], (3, 2, 1, 0)) for volume in volumes]
    return np.stack([resize_area(picture, 32) for picture in pictures])


def names(number: int) -> list[str]:
    return [f"p{index:02d}" for index in range(number)]


def pairs(stack: np.ndarray) -> list[list[str]]:
    found = near_duplicates(stack, names(len(stack)))
    assert found["correlation"].between(THRESHOLD, 1 + 1e-5).all()
    return found[["patient_a", "patient_b"]].to_numpy().tolist()


CHANGES = {
    "each sequence rescaled": lambda images, rng: images * np.array([0.1, 1, 5, 20])[:, None, None, None] + 7,
    "noise": lambda images, rng: images + 0.3 * images.std() * rng.standard_normal(images.shape),
    "shifted by a quarter of a pixel": lambda images, rng: shift(images, (0, 0, 0.25, -0.25), mode="nearest"),
    "shifted by a slice": lambda images, rng: np.roll(images, 1, axis=1),
    "blurred": lambda images, rng: gaussian_filter(images, (0, 0, 0.7, 0.7)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_are_found_and_nobody_else(change):
    stack = cohort(24)
    copy = CHANGES[change](stack[5].astype(float), np.random.default_rng(1))
    assert pairs(np.concatenate([stack, copy[None]])) == [["p05", "p24"]]


@pytest.mark.parametrize("lacking", [((0, 1), ()), ((0,), (3,)), ((), (1, 2))])
def test_copies_are_found_in_the_sequences_that_both_have(lacking):
    stack = cohort(30)
    stack[22] = 2 * stack[5]
    for row, missing in zip((5, 22), lacking, strict=True):
        stack[row, list(missing)] = np.nan
    found = near_duplicates(stack, names(30))
    assert found[["patient_a", "patient_b"]].to_numpy().tolist() == [["p05", "p22"]]


def test_real_patients_are_told_apart_and_a_rescaled_copy_is_found():
    task = read_task(real_sample())
    real = np.stack([read_centre_slices(task.root / file, task.sequences) for file in task.training + task.test])
    copy = np.round(0.3 * real[:1] + 5)
    assert pairs(real) == []
    assert pairs(np.concatenate([real, copy])) == [["p00", "p03"]]
    # Among simulated patients, those of one scanner resemble each other.
    assert pairs(np.concatenate([cohort(24), real])) == []
    assert pairs(np.concatenate([cohort(24), real, copy])) == [["p24", "p27"]]


def test_records_with_equal_images_of_one_sequence_are_refused():
    stack = np.random.default_rng(0).random((4, 4, 2, 8, 8)).astype(np.float32)
    stack[1:3, 3] = np.nan  # two records lack the same sequence
    check_different(stack, ["a", "b", "c", "d"])
    stack[3, :2] = stack[0, :2]
    with pytest.raises(UserError, match=r"Found 1 problem in the cohort:\n1\. .* the same in a and d\."):
        check_different(stack, ["a", "b", "c", "d"])
