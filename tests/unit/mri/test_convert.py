from __future__ import annotations

import json
import shutil

import nibabel as nib
import numpy as np
import pytest
from decathlon_builder import oriented_affine, volume

from zetadp.base.validation import UserError
from zetadp.mri.convert import convert_folder, part_of
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


def test_integers_come_back_as_they_were(tmp_path):
    task = convert_folder(write_brats(tmp_path / "in"), tmp_path / "out" / "Task", test_fraction=0.5)
    assert task.sequences == SEQUENCES
    assert len(task.training + task.test) == 3
    for seed in range(3):
        values, image = stored(task, f"BraTS20_00{seed + 1}")
        assert image.get_data_dtype() == np.int16
        assert (image.dataobj.slope, image.dataobj.inter) == (1, 0)
        np.testing.assert_array_equal(image.affine, AFFINE)
        for index, array in enumerate(arrays(seed).values()):
            np.testing.assert_array_equal(values[..., index], array)


@pytest.mark.parametrize("scale", [1e-3, 0.37, 2000.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_floats_come_back_to_half_a_step_and_zero_stays_zero(tmp_path, scale, sign):
    expected = []
    for sequence, array in arrays(0).items():
        floats = (sign * scale * (array + np.random.default_rng(1).random(SHAPE))).astype(np.float32)
        floats[:2] = 0
        write(tmp_path / "in" / "a" / f"a_{BRATS[sequence]}.nii.gz", floats)
        expected.append(floats)
    expected = np.stack(expected, axis=-1)
    values, image = stored(convert_folder(tmp_path / "in", tmp_path / "out"), "a")
    assert image.get_data_dtype() == np.int16
    np.testing.assert_allclose(image.dataobj.slope, np.abs(expected).max() / 32767, rtol=1e-6)
    assert np.abs(values - expected).max() <= image.dataobj.slope * 0.501
    assert not values[:2].any()


def test_integers_beyond_int16_are_scaled_not_wrapped(tmp_path):
    for sequence, array in arrays(0).items():
        write(tmp_path / "in" / "a" / f"a_{BRATS[sequence]}.nii.gz", array.astype(np.int32) * 100)
    values, image = stored(convert_folder(tmp_path / "in", tmp_path / "out"), "a")
    expected = np.stack(list(arrays(0).values()), axis=-1) * 100.0
    assert np.abs(values - expected).max() <= image.dataobj.slope * 0.501


def test_a_faint_sequence_beside_a_bright_one_keeps_its_levels(tmp_path):
    expected = []
    for (sequence, array), scale in zip(arrays(0).items(), (1.0, 1e-4, 1e3, 1.0), strict=True):
        expected.append((scale * array).astype(np.float32))
        write(tmp_path / "in" / "a" / f"a_{BRATS[sequence]}.nii.gz", expected[-1])
    values, image = stored(convert_folder(tmp_path / "in", tmp_path / "out"), "a")
    assert image.get_data_dtype() == np.float32
    np.testing.assert_array_equal(values, np.stack(expected, axis=-1))


def test_scaled_sources_are_read_in_their_units(tmp_path):
    for sequence, array in arrays(0).items():
        image = nib.Nifti1Image(array, AFFINE)
        image.header.set_slope_inter(0.5, 10)
        path = tmp_path / "in" / "a" / f"a_{BRATS[sequence]}.nii.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        nib.save(image, path)
    values, image = stored(convert_folder(tmp_path / "in", tmp_path / "out"), "a")
    expected = 0.5 * np.stack(list(arrays(0).values()), axis=-1) + 10
    assert np.abs(values - expected).max() <= image.dataobj.slope * 0.501


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


def test_part_is_a_function_of_the_name_with_the_right_share():
    names = [f"sub-{number:04d}" for number in range(4000)]
    parts = [part_of(name, 0.35) for name in names]
    assert parts == [part_of(name, 0.35) for name in names]
    share = parts.count("test") / len(parts)
    assert abs(share - 0.35) < 4 * np.sqrt(0.35 * 0.65 / 4000)
    grown = [part_of(name, 0.5) for name in names]
    assert all(after == "test" for before, after in zip(parts, grown, strict=True) if before == "test")


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


@pytest.mark.parametrize("prefix", ["sub-", ""])
def test_only_the_scanner_of_participants_is_carried_over(prefix, tmp_path):
    source = write_bids(tmp_path / "in")
    rows = [f"{prefix}{row}\n" for row in ("01\t61\tA", "03\t50\tB", "99\t7\tC")]
    (source / "participants.tsv").write_text("participant_id\tage\tscanner\n" + "".join(rows))
    task = convert_folder(source, tmp_path / "out", test_fraction=0.0)
    expected = f"participant_id\tscanner\n{prefix}01\tA\n{prefix}03\tB\n"
    assert (task.root / "participants.tsv").read_text() == expected
    table = index_cohort(task.root, train_patients=3, test_patients=0, slices=1)
    assert table["scanner"].tolist() == ["A", "A", "", "B"]


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


def test_rounding_of_affines_is_no_other_grid(tmp_path):
    source = write_brats(tmp_path / "in", ("a",))
    write(source / "a/a_t2.nii.gz", arrays(0)["T2w"], AFFINE + 1e-5)
    assert len(convert_folder(source, tmp_path / "out", test_fraction=0.0).training) == 1


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


def test_a_single_frame_in_four_dimensions_is_a_volume(tmp_path):
    source = write_brats(tmp_path / "in", ("a",))
    write(source / "a/a_t2.nii.gz", arrays(0)["T2w"][..., None])
    values, _ = stored(convert_folder(source, tmp_path / "out"), "a")
    np.testing.assert_array_equal(values[..., 3], arrays(0)["T2w"])


def test_names_that_can_be_read_in_two_ways_are_asked_for(tmp_path):
    names = BRATS | {"T1gd": "T1_post"}
    source = write_brats(tmp_path / "in", suffixes=names)
    found = problems(source, tmp_path / "out")
    assert len(found) == 3
    assert all("_T1_post.nii.gz can be T1w or T1gd. Say which it is: --sequence '" in problem for problem in found)
    task = convert_folder(source, tmp_path / "out", sequences={"*_T1_post.nii.gz": "T1gd"})
    values, _ = stored(task, "BraTS20_001")
    np.testing.assert_array_equal(values[..., SEQUENCES.index("T1gd")], arrays(0)["T1gd"])


def test_a_split_without_a_training_patient_is_refused(tmp_path):
    source = write_brats(tmp_path / "in")
    (found,) = problems(source, tmp_path / "out", test_fraction=0.999)
    assert "at least one training patient, found 3 for testing only. Lower the test fraction" in found


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


def test_folders_that_are_absent_empty_or_taken(tmp_path):
    with pytest.raises(UserError, match="found none"):
        convert_folder(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in").mkdir()
    assert "found no folder" in problems(tmp_path / "in", tmp_path / "out")[0]
    write_brats(tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="absent or empty"):
        convert_folder(tmp_path / "in", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_the_new_task_has_its_name_and_the_rights_of_its_folder(tmp_path):
    task = convert_folder(write_brats(tmp_path / "in"), tmp_path / "out", name="MyTask", test_fraction=0.0)
    assert json.loads((task.root / "dataset.json").read_text())["name"] == "MyTask"
    assert (task.root / "imagesTr").stat().st_mode & 0o777 == (task.root / "imagesTr").parent.stat().st_mode & 0o777
