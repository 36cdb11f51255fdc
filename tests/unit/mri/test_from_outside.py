"""Files that a hospital brings: what is wrong or unusual about them is seen where they are read."""

from __future__ import annotations

import gzip
import shutil
import struct
from itertools import count

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from commanded import ended, mistake
from decathlon_builder import volume, write_tiny_task, write_volume
from public_head import write_public_head

from zetadp.base.validation import UserError
from zetadp.cli import main
from zetadp.mri.decathlon import SEQUENCES, read_task
from zetadp.mri.index import index_cohort
from zetadp.mri.volumes import read_centre_slices

SHAPE = (40, 36, 24)
WORDS = ("flair", "t1", "t1ce", "t2")
SEEDS = count()


def brain(seed: int = 0) -> np.ndarray:
    """Return float32 magnitudes (x, y, z, sequence) of a head of ellipses with fluid and a lesion, zero outside."""
    rng = np.random.default_rng(seed)
    x, y, z = np.meshgrid(*(np.linspace(-1, 1, n) for n in SHAPE), indexing="ij")
    head = (x / 0.75) ** 2 + (y / 0.9) ** 2 + (z / 1.6) ** 2 < 1
    fluid = ((np.abs(x) - 0.2) / 0.15) ** 2 + (y / 0.35) ** 2 + z**2 < 1
    lesion = ((x - 0.4) / 0.15) ** 2 + ((y + 0.3) / 0.15) ** 2 + (z / 0.6) ** 2 < 1
    levels = np.array([(400, 80, 700), (600, 150, 350), (620, 160, 900), (300, 900, 800)], dtype=float)
    signal = np.where(fluid[..., None], levels[:, 1], np.where(lesion[..., None], levels[:, 2], levels[:, 0]))
    noisy = np.abs(signal + 20 * rng.standard_normal(signal.shape))
    return np.where(head[..., None], noisy, 0).astype(np.float32)


def scans(root, *names, arrays=None, affine=None):
    """Write one folder for each name, with one file for each sequence."""
    affine = np.diag([2.0, 2, 3, 1]) if affine is None else affine
    for name in names:
        channels = volume((8, 7, 5), 4, np.random.default_rng(next(SEEDS))) if arrays is None else arrays
        (root / name).mkdir(parents=True)
        for word, channel in zip(WORDS, np.moveaxis(channels, -1, 0), strict=True):
            nib.save(nib.Nifti1Image(channel, affine), root / name / f"scan_{word}.nii.gz")
    return root


def patients(task) -> dict[str, str]:
    """Return the patient of each record of a task without test patients."""
    key = task / "patient_key.tsv"
    names = pd.read_csv(key, sep="\t", dtype=str)["patient"] if key.is_file() else pd.Series(read_task(task).training)
    table = index_cohort(task, train_patients=names.nunique(), test_patients=0, slices=1)
    return dict(zip(table["record"], table["patient"], strict=True))


# Persons

FOLLOW_UPS = {
    "UPENN-GBM-00001_11": "UPENN-GBM-00001",
    "UPENN-GBM-00001_21": "UPENN-GBM-00001",
    "UPENN-GBM-00003_11": "UPENN-GBM-00003",
}


def test_no_person_is_guessed_from_a_name(tmp_path, capsys):
    names = (*FOLLOW_UPS, "UCSF-PDGM-0429_nifti", "UCSF-PDGM-0429_FU003d_nifti")
    names += ("BraTS-GLI-00001-000", "BraTS-GLI-00001-001", "P01_2019-01-02", "P01_2019-07-05")
    _, said, _ = ended(capsys, "convert", scans(tmp_path / "in", *names), tmp_path / "out", "--test-fraction", 0)
    assert "unit: patient" not in said
    assert "--patient" in said  # how to do better
    assert patients(tmp_path / "out") == {name: name for name in names}


@pytest.mark.parametrize("how", ["table", "rule"])
def test_persons_that_the_user_tells_stay_whole(how, tmp_path, capsys):
    source = scans(tmp_path / "in", *FOLLOW_UPS)
    table = tmp_path / "patients.tsv"
    table.write_text("record\tpatient\n" + "".join(f"{record}\t{name}\n" for record, name in FOLLOW_UPS.items()))
    told = {"table": ("--patients", table), "rule": ("--patient-pattern", r"(UPENN-GBM-\d+)_\d+")}[how]
    _, said, _ = ended(capsys, "convert", source, tmp_path / "out", *told, "--test-fraction", 0)
    assert patients(tmp_path / "out") == FOLLOW_UPS
    assert "2 training" in said


@pytest.mark.parametrize("pattern", [r"(UPENN-GBM-00001)_\d+", r"UPENN-GBM-\d+_\d+", "("])
def test_a_rule_that_does_not_tell_every_person_is_refused(pattern, tmp_path, capsys):
    source = scans(tmp_path / "in", *FOLLOW_UPS)
    assert "--patient-pattern" in mistake(capsys, "convert", source, tmp_path / "out", "--patient-pattern", pattern)


def test_a_table_of_records_names_every_folder_once_and_no_other(tmp_path, capsys):
    source, table = scans(tmp_path / "in", "a", "b", "c"), tmp_path / "patients.tsv"
    table.write_text("record\tpatient\na\tann\na\tann\nb\tbob\nz\tzoe\n")
    said = mistake(capsys, "convert", source, tmp_path / "out", "--patients", table)
    assert all(fault in said for fault in ("1 missing (c)", "1 unknown (z)", "1 given twice (a)", str(table)))


@pytest.mark.parametrize("where", ["patient_key.tsv", "patients.tsv", "folders"])
def test_names_that_differ_only_in_writing_are_refused(where, tmp_path, capsys):
    pair = ("pat-a", "PAT-A")
    names = (*pair, "C")
    if where == "folders":
        message = mistake(capsys, "convert", scans(tmp_path / "in", *names), tmp_path / "out")
    elif where == "patients.tsv":
        rows = "".join(f"s{number}\t{name}\n" for number, name in enumerate(names))
        (tmp_path / where).write_text(f"record\tpatient\n{rows}")
        source = scans(tmp_path / "in", "s0", "s1", "s2")
        message = mistake(capsys, "convert", source, tmp_path / "out", "--patients", tmp_path / where)
    else:
        task = write_tiny_task(tmp_path / "task", 3, 0)
        rows = "".join(f"imagesTr/BRATS_{number:03d}.nii.gz\t{name}\n" for number, name in enumerate(names, start=1))
        (task / where).write_text(f"file\tpatient\n{rows}")
        with pytest.raises(UserError) as error:
            index_cohort(task, train_patients=3, test_patients=0, slices=1)
        message = str(error.value)
    assert all(repr(name) in message or name in message for name in pair)


# Headers


def patched(path, offset: int, packed: bytes) -> None:
    data = bytearray(gzip.decompress(path.read_bytes()))
    data[offset : offset + len(packed)] = packed
    path.write_bytes(gzip.compress(bytes(data)))


HEADERS = {
    "unknown type": (70, struct.pack("<h", 26996)),
    "slope without intercept": (112, struct.pack("<ff", 2.0, float("nan"))),
    "huge slope": (112, struct.pack("<ff", 1e38, 0.0)),
    "quaternion": (252, struct.pack("<hh3f", 1, 0, 0.9, 0.9, 0.9)),
    "nine axes": (40, struct.pack("<h", 9)),
    "negative axis": (42, struct.pack("<h", -40)),
    "empty axis": (42, struct.pack("<h", 0)),
    "huge axes": (42, struct.pack("<3h", 32767, 32767, 32767)),
    "far voxels": (108, struct.pack("<f", 1e9)),
    "voxels at NaN": (108, struct.pack("<f", float("nan"))),
    "affine of NaN": (280, struct.pack("<4f", *[float("nan")] * 4)),
    "flat affine": (280, struct.pack("<4f", 0, 0, 0, 0)),
}


def read_cohort(task, member):
    index_cohort(task, train_patients=1, test_patients=1, slices=1)
    read_centre_slices(member, SEQUENCES, count=3, size=4)


@pytest.mark.parametrize("kind", HEADERS)
def test_a_damaged_header_is_one_message_that_names_the_file(kind, tmp_path, capsys):
    """In every way in: as a file to convert, in a cohort, and to predict. What cannot be read is never allocated."""
    task, source = write_tiny_task(tmp_path / "task", 1, 1), scans(tmp_path / "in", "P1", "P2")
    model = write_public_head(tmp_path / "model.safetensors")
    member, file = task / "imagesTr/BRATS_001.nii.gz", source / "P1/scan_t1.nii.gz"
    for path in (member, file):
        patched(path, *HEADERS[kind])
    assert str(file) in mistake(capsys, "convert", source, tmp_path / "out")
    with pytest.raises(UserError, match=member.name):
        read_cohort(task, member)
    assert member.name in mistake(capsys, "predict", model, member)


# Intensities


def hot(values: np.ndarray, value: float, at=(20, 18, 12)) -> np.ndarray:
    changed = values.copy()
    changed[at] = value
    return changed


def scores(values: np.ndarray) -> np.ndarray:
    inside = values > 0
    return np.where(inside, (values - values[inside].mean()) / values[inside].std(), 0).astype(np.float32)


@pytest.mark.parametrize("value", [-1000, -32768, 1e4, 1e6])
@pytest.mark.parametrize("kind", ["magnitudes", "scores"])
def test_one_voxel_out_of_range_changes_its_own_pixel_alone(value, kind, tmp_path):
    values = brain() if kind == "magnitudes" else scores(brain())
    options = {"order": SEQUENCES, "count": 8, "size": 16}
    plain = read_centre_slices(write_volume(tmp_path / "plain.nii.gz", values), **options)
    changed = read_centre_slices(write_volume(tmp_path / "hot.nii.gz", hot(values, value, (20, 18, 12, 1))), **options)
    differs = np.abs(changed - plain) > 1e-3 * plain.max()
    assert differs.sum() <= 1
    assert np.abs(changed - plain).max() <= 0.3 * plain.max()


@pytest.mark.parametrize("kind", ["ringing", "overshoot", "fill"])
def test_a_few_negative_magnitudes_do_not_make_the_background_bright(kind, tmp_path):
    values = brain()
    head = values[..., :1] > 0
    if kind == "ringing":
        values = values + np.where(head, 0, np.random.default_rng(1).normal(0, 3, values.shape)).astype(np.float32)
    elif kind == "overshoot":
        edge = np.zeros_like(head)
        edge[1:] = head[:-1] & ~head[1:]
        values = np.where(edge, -80, values)
    else:
        values[:2] = -32768
    options = {"order": SEQUENCES, "count": 8, "size": 16}
    plain = read_centre_slices(write_volume(tmp_path / "plain.nii.gz", brain()), **options)
    found = read_centre_slices(write_volume(tmp_path / "other.nii.gz", values), **options)
    np.testing.assert_allclose(found, plain, atol=0.02 * plain.max())


# Orientation


def with_forms(path, sform=None, qform=None):
    image = nib.Nifti1Image(brain().astype(np.int16), None)
    for setter, form in ((image.header.set_sform, sform), (image.header.set_qform, qform)):
        if form is not None:
            setter(np.diag(form), 1)
    nib.save(image, path)
    return path


RAS, LAS = (2.0, 2, 3, 1), (-2.0, 2, 3, 1)


@pytest.mark.parametrize(("forms", "said"), [((RAS, LAS), "sform"), ((None, None), "orientation")])
def test_an_orientation_that_was_assumed_is_said(forms, said, tmp_path, capsys, caplog):
    path = with_forms(tmp_path / "brain.nii.gz", *forms)
    model = write_public_head(tmp_path / "model.safetensors")
    caplog.set_level("WARNING")
    assert main(["predict", str(model), str(path)]) == 0
    assert said in caplog.text
    caplog.clear()
    task = write_tiny_task(tmp_path / "task", 1, 1)
    shutil.copy(path, task / "imagesTr/BRATS_001.nii.gz")
    index_cohort(task, train_patients=1, test_patients=1, slices=1)
    assert said in caplog.text
    caplog.clear()
    source = scans(tmp_path / "in", "P1")
    for word in WORDS:
        image = nib.load(path)
        single = nib.Nifti1Image(np.asarray(image.dataobj)[..., 0], None, image.header)
        nib.save(single, source / f"P1/scan_{word}.nii.gz")
    ended(capsys, "convert", source, tmp_path / "out", "--test-fraction", 0)
    assert said in caplog.text


@pytest.mark.parametrize("share", [0.3, 0.6, 0.999])
def test_a_model_with_one_flipped_bit_predicts_nothing(share, tmp_path, capsys):
    path = write_volume(tmp_path / "brain.nii.gz", brain().astype(np.int16))
    model = write_public_head(tmp_path / "model.safetensors")
    content = bytearray(model.read_bytes())
    content[int(share * len(content))] ^= 0x40
    model.write_bytes(bytes(content))
    assert "model.safetensors" in mistake(capsys, "predict", model, path)
