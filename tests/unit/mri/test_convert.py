from __future__ import annotations

import json
import os
import re
import shlex
import shutil

import nibabel as nib
import numpy as np
import pytest
from decathlon_builder import oriented_affine, volume

from zetadp.base.tables import read_table
from zetadp.base.validation import UserError
from zetadp.cli.commands import main
from zetadp.mri.convert import convert_folder
from zetadp.mri.decathlon import SEQUENCES, read_task, write_site_folder
from zetadp.mri.index import index_cohort
from zetadp.mri.persons import Division
from zetadp.mri.slicing import resize_area
from zetadp.mri.sources import files_of_scan
from zetadp.mri.volumes import read_centre_slices

SHAPE = (8, 10, 6)
AFFINE = oriented_affine("LPS", SHAPE)
BRATS = {"FLAIR": "flair", "T1w": "t1", "T1gd": "t1ce", "T2w": "t2"}
BIDS = {"FLAIR": "FLAIR", "T1w": "acq-3d_T1w", "T1gd": "ce-gadolinium_T1w", "T2w": "T2w"}
TRAINING = Division(0)


def write(path, array, affine=AFFINE):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, affine), path)


def arrays(seed: int, dtype=np.int16) -> dict[str, np.ndarray]:
    whole = volume(SHAPE, 4, np.random.default_rng(seed)).astype(dtype)
    return {sequence: whole[..., index] for index, sequence in enumerate(SEQUENCES)}


def write_brats(root, *names, first_seed=0):
    for seed, name in enumerate(names, start=first_seed):
        for sequence, array in arrays(seed).items():
            write(root / name / f"{name}_{BRATS[sequence]}.nii.gz", array)
        write(root / name / f"{name}_seg.nii.gz", np.zeros(SHAPE, np.uint8))
    return root


def write_bids(root, *sessions):
    """Write sessions of subjects, such as ``01_ses-pre``; without a session the subject has one scan."""
    for seed, name in enumerate(sessions):
        folder = root.joinpath(*f"sub-{name}".split("_"), "anat")
        for sequence, array in arrays(seed).items():
            write(folder / f"sub-{name}_{BIDS[sequence]}.nii.gz", array)
        (folder / f"sub-{name}_T1w.json").write_text("{}")
        write(folder / f"sub-{name}_T2star.nii.gz", np.zeros(SHAPE, np.uint8))
    (root / "derivatives" / "sub-01").mkdir(parents=True)
    return root


@pytest.mark.parametrize("target", ["task", "p1/task", "../scans/task", "link/task"])
def test_a_target_inside_its_source_is_refused(target, tmp_path, capsys):
    source = write_brats(tmp_path / "scans", "p1")
    (source / "link").symlink_to(source / "p1")
    assert main(["convert", str(source), str(source / target), "--patient-pattern", "(.*)"]) == 1
    assert f"Expected a target outside {source}, found {source / target}" in capsys.readouterr().err
    assert not [*source.rglob("dataset.json")]


def indexed(task):
    """Return the table of a converted cohort without test patients."""
    lines = (task.root / "patient_key.tsv").read_text().splitlines()[1:]
    return index_cohort(
        task.root, train_patients=len({line.split("\t")[1] for line in lines}), test_patients=0, slices=6
    )


def problems(source, target, **options) -> list[str]:
    with pytest.raises(UserError) as error:
        convert_folder(source, target, division=TRAINING, **options)
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
    task = convert_folder(tmp_path / "in", tmp_path / "out", division=TRAINING)
    image = nib.load(task.root / task.training[0])
    assert image.get_data_dtype() == dtype
    assert (image.dataobj.slope, image.dataobj.inter) == (1, 0)
    np.testing.assert_array_equal(image.affine, AFFINE)
    np.testing.assert_array_equal(image.get_fdata(), np.stack(expected, axis=-1).astype(dtype))


def test_the_task_passes_the_checks_and_reads_as_the_sources_do(tmp_path):
    scans = ("01_ses-pre", "01_ses-post", "02_ses-pre", "03")
    task = convert_folder(write_bids(tmp_path / "in", *scans), tmp_path / "out", division=TRAINING)
    table = indexed(task)
    assert table["record"].tolist() == ["sub-01_ses-post", "sub-01_ses-pre", "sub-02_ses-pre", "sub-03"]
    assert table["patient"].tolist() == ["sub-01", "sub-01", "sub-02", "sub-03"]
    for row in table.itertuples():
        images = read_centre_slices(task.root / row.file, task.sequences, count=2, size=4)
        for image, array in zip(images, arrays(scans.index(row.record[4:])).values(), strict=True):
            # LPS: rows already run to posterior, columns to the left.
            pictures = np.transpose(array[::-1, :, 2:4], (2, 1, 0))
            np.testing.assert_allclose(image, resize_area(pictures, 4), rtol=1e-6)


def test_sequences_with_contrast_that_are_none_of_the_four_are_left_out(tmp_path):
    source = write_bids(tmp_path / "in", "01")
    for sequence in ("FLAIR", "T2w"):
        write(source / f"sub-01/anat/sub-01_ce-gadolinium_{sequence}.nii.gz", np.zeros(SHAPE, np.uint8))
    assert len(convert_folder(source, tmp_path / "out", division=TRAINING).training) == 1
    (source / "sub-01/anat/sub-01_FLAIR.nii.gz").unlink()
    assert convert_folder(source, tmp_path / "none", division=TRAINING).sequences == ("T1w", "T1gd", "T2w")


def test_scans_may_have_two_to_four_sequences(tmp_path, caplog):
    source = write_brats(tmp_path / "in", *"abcd")
    for lacking in ("a/a_t1ce", "b/b_t1ce", "c/c_t1ce", "c/c_flair"):
        (source / f"{lacking}.nii.gz").unlink()
    task = convert_folder(source, tmp_path / "out", division=TRAINING)
    assert "Records without T1gd: 3 of 4 (a, b, c)." in caplog.text
    assert task.sequences == ("FLAIR", "T1w", "T2w")
    expected = {"a": task.sequences, "b": task.sequences, "c": ("T1w", "T2w"), "d": SEQUENCES}
    table = index_cohort(task.root, train_patients=4, test_patients=0, slices=6)
    write_site_folder(tmp_path / "site", task.root, table, "train")
    for seed, (record, file) in enumerate(zip(table["record"], table["file"], strict=True)):
        for root in (task.root, tmp_path / "site"):
            assert read_task(root).sequences_of(file) == expected[record]
        found = read_centre_slices(task.root / file, expected[record], count=2, size=4)
        for name, images in zip(SEQUENCES, found, strict=True):
            pictures = np.transpose(arrays(seed)[name][::-1, :, 2:4], (2, 1, 0))
            wanted = resize_area(pictures, 4) if name in expected[record] else np.full((2, 4, 4), np.nan)
            np.testing.assert_allclose(images, wanted, rtol=1e-6)


def test_a_scan_with_one_sequence_is_refused(tmp_path):
    source = write_brats(tmp_path / "in", "a")
    for name in ("flair", "t1ce", "t2"):
        (source / f"a/a_{name}.nii.gz").unlink()
    (found,) = problems(source, tmp_path / "out")
    assert "at least 2 of FLAIR" in found
    assert "found T1w" in found


def test_only_scans_with_too_few_sequences_are_left_out(tmp_path, capsys):
    source = write_brats(tmp_path / "in", *"abc")
    for lacking in ("b/b_t1ce", "c/c_t1ce", "c/c_flair", "c/c_t2"):
        (source / f"{lacking}.nii.gz").unlink()
    (found,) = problems(source, tmp_path / "none")
    remedy = found.partition("leave out such records with ")[2].rstrip(".").split()
    for name, option, expected in (("two", remedy, {"a", "b"}), ("four", remedy[:1], {"a"})):
        command = ["convert", str(source), str(tmp_path / name), "--test-fraction", "0", *option]
        # The folder that is left out need not fit the rule for patients.
        assert main([*command, "--patient-pattern", "([ab])"]) == 0 if name == "two" else main(command) == 0
        assert {file.name[0] for file in read_task(tmp_path / name).training} == expected


def test_a_rule_for_one_file_leaves_others_of_its_name_and_must_fit_some(tmp_path):
    for name, number in (("P1", 0), ("P2", 10)):
        for sequence, array in arrays(number).items():
            write(tmp_path / f"in/{name}/{BRATS[sequence]}.nii.gz", array)
    infinite = arrays(20, np.float32)["T2w"]
    infinite[1, 1, 1] = np.nan
    write(tmp_path / "in/P1/t2.nii.gz", infinite)
    (found,) = problems(tmp_path / "in", tmp_path / "none")
    pattern, _, sequence = found.partition("--sequence '")[2].partition("'")[0].rpartition("=")
    task = convert_folder(tmp_path / "in", tmp_path / "out", division=TRAINING, sequences={pattern: sequence})
    assert outcomes(task)["P1/t2.nii.gz"][0] == "left out"
    assert outcomes(task)["P2/t2.nii.gz"][0] == "taken"
    (found,) = problems(tmp_path / "in", tmp_path / "none", sequences={pattern: sequence, "P3/*": "none"})
    assert "--sequence" in found
    assert "'P3/*', which fits none" in found


def test_a_file_that_may_be_a_sequence_that_is_lacking_is_asked_for(tmp_path):
    source = write_brats(tmp_path / "in", "a")
    (source / "a/a_t2.nii.gz").rename(source / "a/a_scan.nii.gz")
    (found,) = problems(source, tmp_path / "out")
    assert "--sequence 'a_scan.nii.gz=T2w'" in found
    for number, (said, count) in enumerate((("none", 3), ("T2w", 4))):
        rules = {"a_scan.nii.gz": said}
        task = convert_folder(source, tmp_path / f"out-{number}", division=TRAINING, sequences=rules)
        assert len(task.sequences) == count


def test_sessions_of_one_person_stay_together_whatever_the_split(tmp_path):
    source = write_bids(tmp_path / "in", *(f"{number:02d}_ses-{name}" for number in range(12) for name in "ab"))
    for fraction, parts in ((0, (24, 0)), (1, (0, 24))):  # a hospital, and a server that watches
        task = convert_folder(source, tmp_path / f"out-{fraction}", division=Division(fraction))
        assert (len(task.training), len(task.test)) == parts
    task = convert_folder(source, tmp_path / "out", division=Division(0.5))
    train, test = ({file.name.split("_")[0] for file in files} for files in (task.training, task.test))
    assert train
    assert test
    assert not train & test
    assert len(task.training + task.test) == 24


SCANS = {"UPENN-1_11": "UPENN-1", "UPENN-1_21": "UPENN-1", "UPENN-3_11": "UPENN-3"}
"""Scans, and whose they are."""


def table_of(path, rows) -> dict:
    """Return the option for a table of records and patients."""
    path.write_text("record\tpatient\n" + "".join(f"{record}\t{patient}\n" for record, patient in rows))
    return {"patients": path}


def test_persons_are_told_and_never_guessed(tmp_path):
    source = write_brats(tmp_path / "in", *SCANS)
    task = convert_folder(source, tmp_path / "untold", division=TRAINING)
    assert not (task.root / "patient_key.tsv").exists()
    table = index_cohort(task.root, train_patients=3, test_patients=0, slices=6)
    assert table["patient"].tolist() == list(SCANS)
    ways = {"table": table_of(tmp_path / "t.tsv", SCANS.items()), "rule": {"patient_pattern": r"(UPENN-\d+)_\d+"}}
    for name, told in ways.items():
        table = indexed(convert_folder(source, tmp_path / name, division=TRAINING, **told))
        assert dict(zip(table["record"], table["patient"], strict=True)) == SCANS
    (found,) = problems(source, tmp_path / "out", **ways["table"], **ways["rule"])
    assert "--patient-pattern" in found


@pytest.mark.parametrize("pattern", [r"(UPENN-1)_\d+", r"UPENN-\d+_\d+", "("])
def test_a_rule_that_does_not_tell_every_person_is_refused(pattern, tmp_path):
    (found,) = problems(write_brats(tmp_path / "in", *SCANS), tmp_path / "out", patient_pattern=pattern)
    assert "--patient-pattern" in found


def test_a_table_of_records_names_every_folder_once_and_no_other(tmp_path):
    told = table_of(tmp_path / "t.tsv", [("a", "ann"), ("a", "ann"), ("b", "bob"), ("z", "zoe")])
    (found,) = problems(write_brats(tmp_path / "in", *"abc"), tmp_path / "out", **told)
    assert all(fault in found for fault in ("1 missing (c)", "1 unknown (z)", "1 given twice (a)", "t.tsv"))


@pytest.mark.parametrize("where", ["table", "rule", "folders"])
def test_names_that_differ_only_in_writing_are_refused(where, tmp_path):
    folders = ("x_pat-a", "y_PAT-A") if where == "rule" else ("pat-a", "PAT-A") if where == "folders" else ("x", "y")
    told = {
        "table": table_of(tmp_path / "t.tsv", [("x", "pat-a"), ("y", "PAT-A")]),
        "rule": {"patient_pattern": "._(.*)"},
        "folders": {},
    }
    (found,) = problems(write_brats(tmp_path / "in", *folders), tmp_path / "out", **told[where])
    assert "'PAT-A' and 'pat-a'" in found


def test_a_file_that_a_persons_initials_make_unclear_is_asked_for_as_what_the_scan_lacks(tmp_path):
    """In Dutch, "na" before an image means that it shows the contrast agent."""
    (problem,) = problems(write_brats(tmp_path / "in", "NA"), tmp_path / "out")
    assert problem.endswith("NA_t1.nii.gz can be T1w or T1gd. Say which it is: --sequence 'NA_t1.nii.gz=T1w'.")
    rule = {"NA_t1.nii.gz": "T1w"}
    options = {"patient_pattern": "(.*)", "sequences": rule, "division": TRAINING}
    task = convert_folder(tmp_path / "in", tmp_path / "out", **options)
    assert list(indexed(task)["patient"]) == ["NA"]


def test_all_problems_are_in_one_message_and_nothing_is_written(tmp_path):
    source = write_brats(tmp_path / "in", *"abcdefghi")
    (source / "a/a_t1ce.nii.gz").rename(source / "a/a_scan.nii.gz")
    shutil.copy(source / "b/b_t1.nii.gz", source / "b/b_again_t1.nii.gz")
    cut = source / "c/c_flair.nii.gz"
    cut.write_bytes(cut.read_bytes()[:-300])
    infinite = arrays(20, np.float32)["T2w"]
    infinite[1, 1, 1] = np.inf
    write(source / "d/d_t2.nii.gz", infinite)
    write(source / "e/e_t2.nii.gz", np.zeros((*SHAPE, 2), np.int16))
    (source / "f/f_flair.nii.gz").write_bytes(b"no image")
    moved = AFFINE.copy()
    moved[0, 3] += 0.5
    write(source / "g/g_t2.nii.gz", arrays(20)["T2w"], moved)
    write(source / "h/h_t1ce.nii.gz", arrays(20)["T1gd"][:-1])
    (source / "i/i_t1ce.nii.gz").rename(source / "i/i_t1_post.nii.gz")
    write(source / "loose_t1.nii.gz", arrays(21)["T1w"])
    found = problems(source, tmp_path / "out", sequences={"*_t9*": "T1w"})
    expected = [
        ("directly in it", "loose_t1.nii.gz"),
        ("one T1gd volume in",),
        ("b_again_t1.nii.gz, b_t1.nii.gz",),
        ("i_t1_post.nii.gz can be T1w or T1gd",),
        ("--sequence", "*_t9*"),
        ("c_flair.nii.gz",),
        ("d_t2.nii.gz",),
        ("e_t2.nii.gz",),
        ("f_flair.nii.gz",),
        ("g_flair.nii.gz", "g_t2.nii.gz"),
        ("h_flair.nii.gz", "h_t1ce.nii.gz", "(7, 10, 6)"),
    ]
    assert len(found) == len(expected)
    for line, words in zip(found, expected, strict=True):
        assert all(word in line for word in words)


def outcomes(task):
    """Return what became of each file, by its path."""
    table = read_table(task.root / "conversion.tsv")
    return {row.file: (row.outcome, row.record, row.reason) for row in table.itertuples()}


def test_both_layouts_side_by_side_and_below_lose_no_file(tmp_path):
    source = write_bids(tmp_path / "in", "01", "02_ses-a", "02_ses-b")
    write_brats(source, "Pat1_x", first_seed=20)
    write_brats(source / "pacs", "Pat1_y", "Pat2_x", first_seed=40)
    write(source / "sub-01/dwi/sub-01_dwi.nii.gz", np.zeros(SHAPE, np.uint8))
    write(source / "derivatives/sub-01/anat/sub-01_desc-preproc_T1w.nii.gz", np.zeros(SHAPE, np.uint8))
    write(source / "Pat1_x/more/Pat1_x_T1_mask.nii.gz", np.zeros(SHAPE, np.uint8))
    # Nothing says who the others are, while BIDS names its subjects.
    (found,) = problems(source, tmp_path / "none")
    assert all(name in found for name in ("3 records", "Pat1_x", "pacs_Pat1_y", "pacs_Pat2_x", "--patient-pattern"))
    rule = r"(?:pacs_)?(Pat\d)_."
    task = convert_folder(source, tmp_path / "out", division=TRAINING, patient_pattern=rule)
    table = indexed(task)
    assert dict(zip(table["record"], table["patient"], strict=True)) == {
        **{"sub-01": "sub-01", "sub-02_ses-a": "sub-02", "sub-02_ses-b": "sub-02"},
        **{"Pat1_x": "Pat1", "pacs_Pat1_y": "Pat1", "pacs_Pat2_x": "Pat2"},
    }
    became = outcomes(task)
    assert sum(outcome == "taken" for outcome, _, _ in became.values()) == 24
    left_out = {name: reason for name, (outcome, _, reason) in became.items() if outcome == "left out"}
    assert left_out == {
        "Pat1_x/Pat1_x_seg.nii.gz": "computed from a scan, as its name says",
        "Pat1_x/more/Pat1_x_T1_mask.nii.gz": "computed from a scan, as its name says",
        "pacs/Pat1_y/Pat1_y_seg.nii.gz": "computed from a scan, as its name says",
        "pacs/Pat2_x/Pat2_x_seg.nii.gz": "computed from a scan, as its name says",
        "derivatives": "1 file in a folder of computed images",
        "sub-01/anat/sub-01_T2star.nii.gz": "its name is none of the four sequences",
        "sub-01/dwi": "1 file of another kind of image",
        "sub-02/ses-a/anat/sub-02_ses-a_T2star.nii.gz": "its name is none of the four sequences",
        "sub-02/ses-b/anat/sub-02_ses-b_T2star.nii.gz": "its name is none of the four sequences",
    }


def test_one_subject_of_bids_is_never_two_persons(tmp_path):
    source = write_bids(tmp_path / "in", "01_ses-a", "01_ses-b")
    (found,) = problems(source, tmp_path / "out", patient_pattern="(.*)")
    assert "sub-01_ses-a, sub-01_ses-b" in found
    (source / "sub-01").rename(tmp_path / "sub-01")
    for place in ("first", "second"):
        shutil.copytree(tmp_path / "sub-01/ses-a", source / place / "sub-01")
    (found, *_) = problems(source, tmp_path / "out")
    assert "sub-01 in" in found


def test_folders_of_persons_without_a_scan_are_named(tmp_path):
    source = write_brats(write_bids(tmp_path / "in", "01"), "sub-50", first_seed=20)
    (source / "sub-03/func").mkdir(parents=True)
    (source / "P9/dicom").mkdir(parents=True)
    rule = {"patient_pattern": "(.*)"}
    found = problems(source, tmp_path / "none", **rule)
    assert [name for name in ("P9", "sub-03", "sub-50") if any(f"in/{name}," in line for line in found)] == [
        "P9",
        "sub-03",
    ]
    task = convert_folder(source, tmp_path / "out", division=TRAINING, fewest_sequences=4, **rule)
    assert [file.name for file in task.training] == ["sub-01.nii.gz", "sub-50.nii.gz"]
    assert outcomes(task)["P9"] == ("left out", "P9", "lacks FLAIR, T1w, T1gd, T2w")
    write(source / "loose_t1.nii.gz", arrays(0)["T1w"])
    assert "loose_t1.nii.gz" in problems(source, tmp_path / "none", fewest_sequences=4, **rule)[0]


def test_files_of_other_formats_are_listed_and_named_where_scans_lack(tmp_path):
    source = write_brats(tmp_path / "in", "p1")
    for name in ("p1/p1_flair.mgz", "p1/p1.json", "README", "p1/dicom/IM1", "p1/dicom/IM2"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(b"DICM")
    became = outcomes(convert_folder(source, tmp_path / "out", division=TRAINING))
    listed = {name: reason for name, (_, _, reason) in became.items() if reason.endswith("not in NIfTI format")}
    assert listed == {"p1/dicom": "2 files not in NIfTI format", "p1/p1_flair.mgz": "not in NIfTI format"}
    (source / "p2").mkdir()
    (source / "p2/IM1").write_bytes(b"DICM")
    (problem,) = problems(source, tmp_path / "none")
    assert "(1 left out (p2))" in problem
    assert "Convert DICOM and other formats to NIfTI first" in problem
    with pytest.raises(UserError, match=r"Expected one scan in the folder .*p2, found none.* Convert DICOM"):
        files_of_scan(source / "p2")


def test_volumes_directly_in_the_folder_are_named_whatever_their_names(tmp_path):
    write(tmp_path / "in/P7.nii.gz", np.stack([*arrays(0).values()], axis=-1))
    (problem,) = problems(tmp_path / "in", tmp_path / "out")
    assert "found 1 volume directly in it (P7.nii.gz)" in problem
    assert "dataset.json" in problem


def test_the_printed_command_runs_as_it_stands(tmp_path, capsys):
    source = write_brats(tmp_path / "in", "a", "b")
    configuration = tmp_path / "Klinik Süd" / "my.yaml"
    configuration.parent.mkdir()
    options = ["--exact-test-fraction", "--test-fraction", "0.5", "--slices", "6", "--configuration"]
    assert main(["convert", str(source), str(tmp_path / "out"), *options, str(configuration)]) == 0
    (command,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("snakemake"))
    assert shlex.split(command)[-2:] == ["--configfile", str(configuration)]


DERIVED = {
    "mask": lambda array: array > 300,
    "labels": lambda array: (array > 250).astype(int) + (array > 300),
    "tissue": lambda array: np.clip((array.astype(float) - 200) / 100, 0, 1),
}


@pytest.mark.parametrize("kind", DERIVED)
def test_what_no_scanner_measured_is_refused_whatever_its_name(kind, tmp_path):
    source = write_brats(tmp_path / "in", "a")
    values = DERIVED[kind](arrays(0)["FLAIR"])
    write(source / "a/a_flair.nii.gz", values.astype(np.float32))
    (found,) = problems(source, tmp_path / "out")
    assert "Expected a scan in" in found
    assert "--sequence '*a/a_flair.nii.gz=none'" in found


def test_the_same_volume_under_two_names_is_refused(tmp_path):
    source = write_brats(tmp_path / "in", "a", "b")
    write(source / "b/b_t2.nii.gz", arrays(0)["T2w"], oriented_affine("LPS", SHAPE))
    (found,) = problems(source, tmp_path / "out")
    assert "a (a_t2.nii.gz) and b (b_t2.nii.gz)." in found
    shutil.copytree(source / "a", source / "copy of a")
    # Another program may store the copy in another type.
    write(source / "copy of a/a_flair.nii.gz", arrays(0)["FLAIR"].astype(np.float32))
    found = problems(source, tmp_path / "out")
    assert len(found) == 2
    assert "a (a_flair.nii.gz) and copy of a (a_flair.nii.gz), and in 2 more of their volumes" in found[0]


def test_other_grids_are_resampled_by_the_headers_if_the_user_says_so(tmp_path):
    """A linear ramp in space stays what it is, on the grid of the named sequence."""
    source = write_brats(tmp_path / "in", "a", "b")
    fine, thick = np.diag([1.0, 1, 1, 1]), np.diag([1.0, 1, 2, 1])
    ramp = 100 + np.add.outer(np.add.outer(10 * np.arange(8), 20 * np.arange(10)), np.arange(40))
    for number, name in enumerate(BRATS.values()):
        write(source / f"a/a_{name}.nii.gz", (ramp + number).astype(np.float32), fine)
    write(source / "a/a_flair.nii.gz", ramp[..., ::2].astype(np.float32), thick)
    assert "--resample" in problems(source, tmp_path / "none")[0]
    (source / "b/b_t1.nii.gz").rename(tmp_path / "t1.nii.gz")  # a scan on one grid needs no sequence to resample onto
    convert_folder(source, tmp_path / "without", division=TRAINING, resample_onto="T1w")
    (tmp_path / "t1.nii.gz").rename(source / "b/b_t1.nii.gz")
    task = convert_folder(source, tmp_path / "out", division=TRAINING, resample_onto="T1w")
    images = {file.name: nib.load(task.root / file) for file in task.training}
    flair = images["a.nii.gz"].get_fdata()[..., 0]
    np.testing.assert_allclose(flair[..., :39], ramp[..., :39], rtol=1e-5)
    assert images["a.nii.gz"].header["descrip"].item() == b"FLAIR resampled onto T1w"
    assert json.loads((task.root / "dataset.json").read_text())["resampled"] == {
        "imagesTr/a.nii.gz": "FLAIR resampled onto T1w"
    }
    np.testing.assert_array_equal(images["b.nii.gz"].get_fdata()[..., 0], arrays(1)["FLAIR"])
    write(source / "a/a_flair.nii.gz", ramp[..., ::2].astype(np.float32), thick + np.eye(4, k=3) * 100)
    assert "covers 0%" in problems(source, tmp_path / "none", resample_onto="T1w")[0]


def test_a_thick_series_that_ends_within_the_slices_is_refused_by_name(tmp_path):
    """It covers more than half of the grid onto which it is resampled, but not all planes that are cut later."""
    source, shape = write_brats(tmp_path / "in", "b"), (8, 10, 40)
    images = volume(shape, 4, np.random.default_rng(0)).astype(np.int16)
    fine, thick = np.diag([1.0, 1, 1, 1]), np.diag([1.0, 1, 6, 1])
    for name, image in zip(BRATS.values(), np.moveaxis(images, 3, 0), strict=True):
        write(source / f"a/a_{name}.nii.gz", image, fine)
    write(source / "a/a_flair.nii.gz", images[..., :24:6, 0], thick)  # its last slice is centred at 18 mm
    (found,) = problems(source, tmp_path / "out", resample_onto="T1w")
    assert re.search(r"a_flair\.nii\.gz, found FLAIR slice 19 is .*FLAIR resampled onto T1w, .*--resample FLAIR", found)
    task = convert_folder(source, tmp_path / "onto", division=TRAINING, resample_onto="FLAIR")
    assert len(task.training) == 2
    images[..., 15, 3] = 7  # also without resampling
    write(source / "a/a_flair.nii.gz", images[..., 0], fine)
    write(source / "a/a_t2.nii.gz", images[..., 3], fine)
    (found,) = problems(source, tmp_path / "out")
    assert re.search(r"a_t2\.nii\.gz, found T2w slice 15 is constant.*--sequence '\*a/a_t2\.nii\.gz=none'", found)


def test_units_of_length_count_and_a_negative_scale_is_refused(tmp_path):
    source = write_brats(tmp_path / "in", "a")
    file = source / "a/a_t2.nii.gz"
    for unit, size in (("meter", 0.001), ("micron", 1000)):
        image = nib.Nifti1Image(arrays(0)["T2w"], np.diag([size, size, size, 1]) @ AFFINE)
        image.header.set_xyzt_units(unit)
        nib.save(image, file)
        task = convert_folder(source, tmp_path / unit, division=TRAINING)
        np.testing.assert_allclose(nib.load(task.root / task.training[0]).affine, AFFINE, atol=1e-3)
    image = nib.Nifti1Image(arrays(0)["T2w"], AFFINE)
    image.header.set_xyzt_units("meter")
    nib.save(image, file)
    assert "1e+03 x 1e+03 x 1e+03 mm, with the unit of length meter" in problems(source, tmp_path / "out")[0]
    image.header.set_xyzt_units("mm")
    image.header.set_slope_inter(-1, 4000)
    nib.save(image, file)
    assert "positive scale" in problems(source, tmp_path / "out")[0]


def test_a_file_name_that_is_not_utf_8_ends_in_the_list_of_files(tmp_path):
    write_brats(tmp_path / "mine", "P1", "P2")
    write(tmp_path / "mine/P2" / os.fsdecode(b"P2_Diff\xfcsion.nii.gz"), arrays(9)["FLAIR"])
    convert_folder(tmp_path / "mine", tmp_path / "task", division=TRAINING)
    assert r"P2/P2_Diff\udcfcsion.nii.gz" in set(read_table(tmp_path / "task/conversion.tsv")["file"])


def test_the_anatomy_folder_of_one_subject_is_refused_in_words(tmp_path):
    write_bids(tmp_path / "bids", "01")
    with pytest.raises(UserError):
        convert_folder(tmp_path / "bids/sub-01/anat", tmp_path / "task", division=TRAINING)
