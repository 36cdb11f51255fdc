from __future__ import annotations

import shutil

import nibabel as nib
import numpy as np
import pytest
from decathlon_builder import oriented_affine, volume

from zetadp.base.validation import UserError
from zetadp.mri.convert import convert_folder
from zetadp.mri.decathlon import SEQUENCES
from zetadp.mri.index import index_cohort
from zetadp.mri.slicing import resize_area
from zetadp.mri.volumes import read_centre_slices

SHAPE = (8, 10, 6)
AFFINE = oriented_affine("LPS", SHAPE)
BRATS = {"FLAIR": "flair", "T1w": "t1", "T1gd": "t1ce", "T2w": "t2"}
BIDS = {"FLAIR": "FLAIR", "T1w": "T1w", "T1gd": "ce-gadolinium_T1w", "T2w": "T2w"}


def write(path, array, affine=AFFINE):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, affine), path)


def arrays(seed: int, dtype=np.int16) -> dict[str, np.ndarray]:
    whole = volume(SHAPE, 4, np.random.default_rng(seed)).astype(dtype)
    return {sequence: whole[..., index] for index, sequence in enumerate(SEQUENCES)}


def write_brats(root, names=("BraTS20_001", "BraTS20_002", "BraTS20_003"), suffixes=BRATS):
    for seed, name in enumerate(names):
        for sequence, array in arrays(seed).items():
            write(root / name / f"{name}_{suffixes[sequence]}.nii.gz", array)
        write(root / name / f"{name}_seg.nii.gz", np.zeros(SHAPE, np.uint8))
    return root


def write_bids(root, sessions=(("01", "pre"), ("01", "post"), ("02", "pre"), ("03", None))):
    for seed, (subject, session) in enumerate(sessions):
        stem = f"sub-{subject}" + (f"_ses-{session}" if session else "")
        folder = root / f"sub-{subject}" / (f"ses-{session}" if session else "") / "anat"
        for sequence, array in arrays(seed).items():
            write(folder / f"{stem}_{BIDS[sequence]}.nii.gz", array)
        (folder / f"{stem}_T1w.json").write_text("{}")
        write(folder / f"{stem}_T2star.nii.gz", np.zeros(SHAPE, np.uint8))
    (root / "derivatives" / "sub-01").mkdir(parents=True)
    return root


def stored(task, record) -> tuple[np.ndarray, object]:
    (file,) = [file for file in task.training + task.test if file.name == f"{record}.nii.gz"]
    image = nib.load(task.root / file)
    return image.get_fdata(), image


def problems(source, target, **options) -> list[str]:
    with pytest.raises(UserError) as error:
        convert_folder(source, target, **options)
    head, *lines = str(error.value).splitlines()
    assert f"Found {len(lines)} problem" in head
    assert not target.exists()
    assert [path.name for path in target.parent.iterdir() if path.name.startswith(".")] == []
    return lines


KINDS = {
    "integers": (lambda array: array, np.int16),
    "floats": (lambda array: (0.37 * array).astype(np.float32), np.float32),
    "large integers": (lambda array: 1000 * array.astype(np.int32), np.float32),
}


@pytest.mark.parametrize("kind", KINDS)
def test_intensities_come_back_as_they_were_in_int16_or_else_in_single_precision(kind, tmp_path):
    change, dtype = KINDS[kind]
    expected = []
    for sequence, array in arrays(0).items():
        expected.append(change(array))
        write(tmp_path / "in" / "a" / f"a_{BRATS[sequence]}.nii.gz", expected[-1])
    values, image = stored(convert_folder(tmp_path / "in", tmp_path / "out", test_fraction=0), "a")
    assert image.get_data_dtype() == dtype
    assert (image.dataobj.slope, image.dataobj.inter) == (1, 0)
    np.testing.assert_array_equal(image.affine, AFFINE)
    np.testing.assert_array_equal(values, np.stack(expected, axis=-1).astype(dtype))


def test_the_task_passes_the_checks_and_reads_as_the_sources_do(tmp_path):
    task = convert_folder(write_bids(tmp_path / "in"), tmp_path / "out", test_fraction=0.0)
    table = index_cohort(task.root, train_patients=3, test_patients=0, slices=6)
    assert table["record"].tolist() == ["sub-01_ses-post", "sub-01_ses-pre", "sub-02_ses-pre", "sub-03"]
    assert table["patient"].tolist() == ["sub-01", "sub-01", "sub-02", "sub-03"]
    for row in table.itertuples():
        seed = ["sub-01_ses-pre", "sub-01_ses-post", "sub-02_ses-pre", "sub-03"].index(row.record)
        images = read_centre_slices(task.root / row.file, task.sequences, count=2, size=4)
        for image, array in zip(images, arrays(seed).values(), strict=True):
            # LPS: rows already run to posterior, columns to the left.
            pictures = np.transpose(array[::-1, :, 2:4], (2, 1, 0))
            np.testing.assert_allclose(image, resize_area(pictures, 4), rtol=1e-6)


def test_sessions_of_one_person_stay_together_whatever_the_split(tmp_path):
    sessions = tuple((f"{number:02d}", session) for number in range(12) for session in ("a", "b"))
    task = convert_folder(write_bids(tmp_path / "in", sessions), tmp_path / "out", test_fraction=0.5)
    train, test = ({file.name.split("_")[0] for file in files} for files in (task.training, task.test))
    assert train
    assert test
    assert not train & test
    assert len(task.training + task.test) == 24


def test_parts_can_be_given(tmp_path):
    source = write_brats(tmp_path / "in", ("a", "b", "c"))
    table = tmp_path / "parts.tsv"
    table.write_text("patient\tpart\na\ttest\nb\ttrain\nc\ttest\n")
    task = convert_folder(source, tmp_path / "out", patients=table)
    assert [file.name for file in task.training] == ["b.nii.gz"]
    assert [file.name for file in task.test] == ["a.nii.gz", "c.nii.gz"]
    table.write_text("patient\tpart\na\tvalidation\nb\ttrain\nb\ttest\nz\ttest\n")
    found = "\n".join(problems(source, tmp_path / "again", patients=table))
    for words in ("'validation'", "one part for b", "a line for c", "a folder for z"):
        assert words in found


def test_other_grids_name_both_files(tmp_path):
    source = write_brats(tmp_path / "in")
    moved = AFFINE.copy()
    moved[0, 3] += 0.5
    write(source / "BraTS20_001/BraTS20_001_t2.nii.gz", arrays(0)["T2w"], moved)
    write(source / "BraTS20_002/BraTS20_002_t1ce.nii.gz", arrays(1)["T1gd"][:-1])
    first, second = problems(source, tmp_path / "out")
    assert "BraTS20_001_flair.nii.gz" in first
    assert "BraTS20_001_t2.nii.gz" in first
    assert "BraTS20_002_flair.nii.gz" in second
    assert "BraTS20_002_t1ce.nii.gz" in second
    assert "(7, 10, 6)" in second
    assert "Co-register" in second


def test_all_problems_are_in_one_message_and_nothing_is_written(tmp_path):
    source = write_brats(tmp_path / "in", tuple("abcdefg"))
    (source / "a/a_t1ce.nii.gz").unlink()
    shutil.copy(source / "b/b_t1.nii.gz", source / "b/b_again_t1.nii.gz")
    cut = source / "c/c_flair.nii.gz"
    cut.write_bytes(cut.read_bytes()[:-300])
    infinite = arrays(0, np.float32)["T2w"]
    infinite[1, 1, 1] = np.inf
    write(source / "d/d_t2.nii.gz", infinite)
    write(source / "e/e_t2.nii.gz", np.zeros((*SHAPE, 2), np.int16))
    (source / "f/f_flair.nii.gz").write_bytes(b"no image")
    found = problems(source, tmp_path / "out")
    expected = [
        "one T1gd volume in",
        "b_again_t1.nii.gz, b_t1.nii.gz",
        "c_flair.nii.gz",
        "d_t2.nii.gz",
        "e_t2.nii.gz",
        "f_flair.nii.gz",
    ]
    assert len(found) == len(expected)
    for line, words in zip(found, expected, strict=True):
        assert words in line


def test_the_sites_of_a_federation_hold_training_patients_alone_or_test_patients_alone(tmp_path):
    source = write_brats(tmp_path / "in")
    for fraction, counts in ((0, (3, 0)), (1, (0, 3))):
        task = convert_folder(source, tmp_path / f"out-{fraction}", test_fraction=fraction)
        assert (len(task.training), len(task.test)) == counts
    parts = tmp_path / "parts.tsv"
    parts.write_text("patient\tpart\n" + "".join(f"BraTS20_00{number}\ttest\n" for number in (1, 2, 3)))
    (found,) = problems(source, tmp_path / "out", patients=parts)
    assert "Change" in found
    assert "parts.tsv" in found
