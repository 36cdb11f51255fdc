from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from decathlon_builder import write_dataset_json, write_tiny_task

from zetadp.base.validation import UserError
from zetadp.mri.decathlon import read_task, write_task


def test_task_keeps_the_channel_order_of_the_file_under_canonical_names(tmp_path):
    root = write_tiny_task(tmp_path, 2, 1, channels=("T2", "t1ce", "flair", "T1"))
    task = read_task(root)
    assert task.sequences == ("T2w", "T1gd", "FLAIR", "T1w")
    assert task.training == (PurePosixPath("imagesTr/BRATS_001.nii.gz"), PurePosixPath("imagesTr/BRATS_002.nii.gz"))
    assert task.test == (PurePosixPath("imagesTs/BRATS_003.nii.gz"),)
    assert task.sequences_of("imagesTr/BRATS_001.nii.gz") == task.sequences
    # By number, not by place in the file.
    write_dataset_json(tmp_path, [], [], modality={"3": "FLAIR", "1": "T1w", "0": "t1gd", "2": "T2w"})
    assert read_task(tmp_path).sequences == ("T1gd", "T1w", "T2w", "FLAIR")


def test_files_may_hold_other_sequences_than_most_of_the_cohort(tmp_path):
    training, test = ([PurePosixPath(f"{part}/{name}.nii.gz") for name in "ab"] for part in ("imagesTr", "imagesTs"))
    exceptions = {training[1]: ("T2w", "FLAIR"), test[0]: ("T1w", "T2w", "T1gd", "FLAIR")}
    about = {"name": "mixed", "description": "made by a test"}
    sequences = ("FLAIR", "T1w", "T2w")
    write_task(tmp_path, about, sequences=sequences, training=training, test=test, exceptions=exceptions)
    task = read_task(tmp_path)
    assert (task.training, task.test, task.sequences) == (tuple(training), tuple(test), sequences)
    for file in training + test:
        assert task.sequences_of(str(file)) == exceptions.get(file, sequences)


FAULTS = [
    ({"modality": {"0": "FLAIR"}}, "at least 2 of FLAIR"),
    ({"modality": {"0": "FLAIR", "1": "T2-FLAIR"}}, "FLAIR, T2-FLAIR"),
    ({"training": [{"image": "a.nii.gz", "modality": {"0": "T1w", "1": "ADC"}}]}, "for a.nii.gz, found T1w, ADC"),
    ({"training": [{"image": "a.nii.gz", "modality": ["T1w", "T2w"]}]}, "for a.nii.gz"),
    ({"modality": {"0": "FLAIR", "1": "T1w", "2": "T1", "3": "T2w"}}, "T1w, T1, T2w"),
    ({"modality": {"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w", "4": "ADC"}}, "ADC"),
    ({"modality": {"0": "FLAIR", "2": "T1w", "3": "t1gd", "4": "T2w"}}, "modality"),
    ({"modality": ["FLAIR", "T1w", "t1gd", "T2w"]}, "modality"),
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
