"""Files that a hospital brings: what is wrong or unusual about them is seen where they are read."""

from __future__ import annotations

import gzip
import itertools
import shutil
import struct
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from commanded import ended
from decathlon_builder import real_sample, volume, write_tiny_task, write_volume
from public_head import write_public_head

from zetadp.base.validation import UserError
from zetadp.cli import main
from zetadp.mri.decathlon import SEQUENCES, read_task
from zetadp.mri.index import index_cohort
from zetadp.mri.nifti import check_complete, read_volume
from zetadp.mri.slicing import centre_slices
from zetadp.mri.volumes import read_centre_slices

SHAPE = (12, 8, 9)
WORDS = ("flair", "t1", "t1ce", "t2")
ORIENTATIONS = [
    "".join(codes) for axes in itertools.permutations(("RL", "AP", "SI")) for codes in itertools.product(*axes)
]


@pytest.fixture
def array():
    return volume(SHAPE, 4, np.random.default_rng(0))


def expected(array: np.ndarray, count: int, size: int) -> np.ndarray:
    """Slice and average a canonical array, with loops and block means."""
    x, y, z, channels = array.shape
    start = (z - count) // 2
    images = np.empty((channels, count, size, size))
    for channel, k in itertools.product(range(channels), range(count)):
        picture = array[:, ::-1, start + k, channel].T.astype(float)
        images[channel, k] = picture.reshape(size, y // size, size, x // size).mean(axis=(1, 3))
    return images


def test_all_orientations_give_the_same_images_in_the_units_of_the_header(tmp_path, array):
    assert len(ORIENTATIONS) == 48
    for orientation in ORIENTATIONS:
        path = write_volume(tmp_path / f"{orientation}.nii.gz", array, orientation, slope=0.5, inter=3.0)
        images = read_centre_slices(path, SEQUENCES, count=4, size=4)
        assert images.dtype == np.float32
        np.testing.assert_allclose(images, 0.5 * expected(array, 4, 4) + 3, rtol=1e-6, err_msg=orientation)


def test_sequences_are_in_canonical_order_whatever_the_file_holds(tmp_path, array):
    canonical = read_centre_slices(write_volume(tmp_path / "a.nii.gz", array), SEQUENCES, count=3, size=4)
    for order in itertools.permutations(range(4)):
        path = write_volume(tmp_path / "b.nii.gz", array[..., list(order)])
        images = read_centre_slices(path, [SEQUENCES[index] for index in order], count=3, size=4)
        np.testing.assert_array_equal(images, canonical)


def test_slices_that_are_not_finite_or_empty_are_named(tmp_path, array):
    array = array.astype(np.float32)
    array[3, 3, 4, 1], array[3, 3, 5, 2], array[:, :, 3, 3] = np.nan, -np.inf, 0
    path = write_volume(tmp_path / "a.nii.gz", array)
    with pytest.raises(UserError) as error:
        read_centre_slices(path, SEQUENCES, count=3, size=4)
    for said in (str(path), "T1w slice 4 holds NaN", "T1gd slice 5 holds NaN", "T2w slice 3 is empty"):
        assert said in str(error.value)


def test_heads_of_three_real_patients_lie_as_they_should():
    task = read_task(real_sample())
    for file in task.training + task.test:
        images = read_centre_slices(task.root / file, task.sequences)
        assert (images.shape, images.dtype) == ((4, 20, 32, 32), np.dtype("float32"))
        assert np.isfinite(images).all()
        assert images.min() >= 0

        head = images.mean(axis=(0, 1)) > 0.1 * images.mean()
        rows, columns = np.flatnonzero(head.any(axis=1)), np.flatnonzero(head.any(axis=0))
        assert np.ptp(rows) > np.ptp(columns)  # a head is longer from front to back than wide
        widths = head.sum(axis=1)[rows]
        third = len(rows) // 3
        assert widths[:third].sum() < widths[-third:].sum()  # and narrower at the forehead, which is up
        folded = np.corrcoef(head.ravel(), head[:, ::-1].ravel())[0, 1]
        assert folded > 0.8  # left and right are alike, so they lie along the columns


# Headers


def patched(offset: int, packed: bytes):
    """Return what replaces bytes of a header."""

    def change(path, good):
        data = bytearray(gzip.decompress(good))
        data[offset : offset + len(packed)] = packed
        path.write_bytes(gzip.compress(bytes(data)))

    return change


def shaped(*shape: int, dtype=np.int16, orientation: str = "RAS"):
    return lambda path, good: write_volume(path, np.ones(shape, dtype), orientation)


UNUSABLE = {
    "empty": (lambda path, good: path.write_bytes(b""), "Cannot read"),
    "not compressed": (lambda path, good: path.write_bytes(gzip.decompress(good)), "rename it, without .gz"),
    "a web page": (lambda path, good: path.write_text("<html>404</html>"), "not a gzip file"),
    "cut in the header": (lambda path, good: path.write_bytes(good[:100]), "Cannot read"),
    "no image": (lambda path, good: path.write_bytes(gzip.compress(b"no image" * 100)), "Cannot read"),
    "one channel": (shaped(6, 7, 8), "Expected 4 channels"),
    "five axes": (shaped(6, 7, 8, 1, 4), "found 5-D"),
    "too few slices": (shaped(9, 9, 4, 4, orientation="SAR"), "at least 5 axial slices"),
    "complex": (shaped(6, 7, 8, 4, dtype=np.complex64), "Expected real voxels"),
    "unknown type": (patched(70, struct.pack("<h", 26996)), "Cannot read"),
    "slope without intercept": (patched(112, struct.pack("<ff", 2.0, float("nan"))), "BRATS_001"),
    "huge slope": (patched(112, struct.pack("<ff", 1e38, 0.0)), "usual scale"),
    "quaternion": (patched(252, struct.pack("<hh3f", 1, 0, 0.9, 0.9, 0.9)), "BRATS_001"),
    "nine axes": (patched(40, struct.pack("<h", 9)), "BRATS_001"),
    "negative axis": (patched(42, struct.pack("<h", -40)), "BRATS_001"),
    "empty axis": (patched(42, struct.pack("<h", 0)), "at least one voxel"),
    "huge axes": (patched(42, struct.pack("<3h", 32767, 32767, 32767)), "truncated"),
    "far voxels": (patched(108, struct.pack("<f", 1e9)), "truncated"),
    "voxels at NaN": (patched(108, struct.pack("<f", float("nan"))), "BRATS_001"),
    "affine of NaN": (patched(280, struct.pack("<4f", *[float("nan")] * 4)), "BRATS_001"),
    "flat affine": (patched(280, struct.pack("<4f", 0, 0, 0, 0)), "full rank"),
}
"""Changes of a file, and what the message says about it."""


@pytest.mark.parametrize("kind", UNUSABLE)
def test_an_unusable_volume_is_one_error_that_names_the_file(tmp_path, array, kind):
    """What cannot be read is never allocated."""
    path = write_volume(tmp_path / "BRATS_001.nii.gz", array)
    change, said = UNUSABLE[kind]
    change(path, path.read_bytes())
    with pytest.raises(UserError, match=said) as error:
        read_volume(path, channels=4, slices=5)
    assert str(path) in str(error.value)


def test_a_name_that_is_not_that_of_a_volume_says_so(tmp_path):
    with pytest.raises(UserError, match=r"absent\.nii\.gz, found no such file\. Correct the path"):
        read_volume(tmp_path / "absent.nii.gz")
    (tmp_path / "IM0001").write_bytes(bytes(128) + b"DICM")
    with pytest.raises(UserError, match=r"found .*IM0001\. Convert DICOM"):
        read_volume(tmp_path / "IM0001")


def damaged(data: bytes) -> dict[str, bytes]:
    middle = len(data) // 2
    wrong = bytes([data[middle] ^ 0xFF])
    return {
        "cut in the middle": data[:middle],
        "cut in the last channel": data[: -len(data) // 10],
        "without the last byte": data[:-1],
        "wrong checksum": data[:-8] + bytes(4) + data[-4:],
        "altered byte": data[:middle] + wrong + data[middle + 1 :],
        "fewer voxels": gzip.compress(gzip.decompress(data)[:-2]),
        "only the header": gzip.compress(gzip.decompress(data)[:352]),
    }


@pytest.mark.parametrize("kind", damaged(bytes(gzip.compress(bytes(400)))))
def test_damaged_files_are_one_error_that_names_the_file(tmp_path, array, kind):
    path = write_volume(tmp_path / "a.nii.gz", array)
    whole = read_volume(path)
    path.write_bytes(damaged(path.read_bytes())[kind])
    with pytest.raises(UserError, match="truncated") as error:
        read_centre_slices(path, SEQUENCES, count=3, size=4)
    assert str(path) in str(error.value)
    if kind in ("cut in the middle", "without the last byte", "fewer voxels", "only the header"):
        with pytest.raises(UserError, match="truncated"):  # seen without unpacking all of it
            check_complete(whole)


def test_the_checksum_is_compared_also_where_the_file_goes_on_after_the_voxels(tmp_path, array):
    path = write_volume(tmp_path / "a.nii.gz", array)
    longer = gzip.compress(gzip.decompress(path.read_bytes()) + bytes(2_000_000))
    path.write_bytes(longer)
    assert np.isfinite(read_centre_slices(path, SEQUENCES, count=3, size=4)).all()
    path.write_bytes(damaged(longer)["wrong checksum"])
    with pytest.raises(UserError, match="CRC"):
        read_centre_slices(path, SEQUENCES, count=3, size=4)


# Intensities


def brain() -> np.ndarray:
    """Return float32 magnitudes (x, y, z, sequence) of a head of ellipses with fluid and a lesion, zero outside."""
    rng = np.random.default_rng(0)
    x, y, z = np.meshgrid(*(np.linspace(-1, 1, n) for n in (40, 36, 24)), indexing="ij")
    head = (x / 0.75) ** 2 + (y / 0.9) ** 2 + (z / 1.6) ** 2 < 1
    fluid = ((np.abs(x) - 0.2) / 0.15) ** 2 + (y / 0.35) ** 2 + z**2 < 1
    lesion = ((x - 0.4) / 0.15) ** 2 + ((y + 0.3) / 0.15) ** 2 + (z / 0.6) ** 2 < 1
    levels = np.array([(400, 80, 700), (600, 150, 350), (620, 160, 900), (300, 900, 800)], dtype=float)
    signal = np.where(fluid[..., None], levels[:, 1], np.where(lesion[..., None], levels[:, 2], levels[:, 0]))
    noisy = np.abs(signal + 20 * rng.standard_normal(signal.shape))
    return np.where(head[..., None], noisy, 0).astype(np.float32)


def shown(path, values: np.ndarray) -> np.ndarray:
    return read_centre_slices(write_volume(path, values), SEQUENCES, count=8, size=16)


@pytest.mark.parametrize("value", [-1000, -32768, 1e4, 1e6])
@pytest.mark.parametrize("kind", ["magnitudes", "scores"])
def test_one_voxel_out_of_range_changes_its_own_pixel_alone(value, kind, tmp_path):
    values = brain()
    if kind == "scores":
        inside = values > 0
        values = np.where(inside, (values - values[inside].mean()) / values[inside].std(), 0).astype(np.float32)
    plain = shown(tmp_path / "plain.nii.gz", values)
    values[20, 18, 12, 1] = value
    difference = np.abs(shown(tmp_path / "hot.nii.gz", values) - plain)
    assert (difference > 1e-3 * plain.max()).sum() <= 1
    assert difference.max() <= 0.3 * plain.max()


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
    plain = shown(tmp_path / "plain.nii.gz", brain())
    np.testing.assert_allclose(shown(tmp_path / "other.nii.gz", values), plain, atol=0.02 * plain.max())


def test_a_sequence_at_the_bottom_of_its_range_is_refused(tmp_path):
    values = brain()
    values[:4, :, :, 2] = 1e6  # a region with a fill value
    with pytest.raises(UserError, match="T1gd with nearly all voxels at the bottom"):
        shown(tmp_path / "filled.nii.gz", values)


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
    caplog.set_level("WARNING")
    assert main(["predict", str(write_public_head(tmp_path / "model.safetensors")), str(path)]) == 0
    assert said in caplog.text
    caplog.clear()
    task = write_tiny_task(tmp_path / "task", 1, 1)
    shutil.copy(path, task / "imagesTr/BRATS_001.nii.gz")
    index_cohort(task, train_patients=1, test_patients=1, slices=1)
    assert said in caplog.text
    caplog.clear()
    image = nib.load(path)
    (tmp_path / "in/P1").mkdir(parents=True)
    for channel, word in enumerate(WORDS):
        single = nib.Nifti1Image(np.asarray(image.dataobj)[..., channel], None, image.header)
        nib.save(single, tmp_path / f"in/P1/scan_{word}.nii.gz")
    ended(capsys, "convert", tmp_path / "in", tmp_path / "out", "--test-fraction", 0)
    assert said in caplog.text


# Distances


def series(path, thickness: float, *, depth: int = 160, tilt: float = 0.0) -> Path:
    """Write a head of 160 mm in slices of some thickness, whose intensities grow by 1 each mm upwards."""
    count = int(depth / thickness)
    heights = (np.arange(count) - (count - 1) / 2) * thickness
    values = np.broadcast_to(100 + heights[:, None], (6, 7, count, 4)).copy()
    values[0] += 500  # no slice is constant
    turn = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag([4.0, 4.0, thickness])
    nib.save(nib.Nifti1Image(values.astype(np.float32), affine), path)
    return path


@pytest.mark.parametrize("tilt", [0.0, 0.3, -0.5])
@pytest.mark.parametrize("thickness", [0.7, 1.0, 2.5, 6.0])
def test_planes_are_the_same_in_thin_and_thick_series(thickness, tilt, tmp_path):
    path = series(tmp_path / "a.nii.gz", thickness, tilt=tilt)
    for count, spacing in ((20, 1.0), (8, 4.0)):
        heights = read_centre_slices(path, SEQUENCES, count, 2, spacing).min(axis=(0, 2, 3)) - 100
        planes = (np.arange(count) - (count - 1) / 2) * spacing
        assert np.abs(heights - planes).max() <= thickness / 2 + 1e-3


def test_default_planes_are_the_slices_of_the_kept_results():
    assert centre_slices(155, 20).tolist() == list(range(67, 87))  # the Decathlon's grid
    assert centre_slices(24, 20).tolist() == list(range(2, 22))  # the default's simulated cohort


def test_a_series_that_is_too_short_for_its_planes_is_refused(tmp_path):
    path = series(tmp_path / "short.nii.gz", 6.0, depth=18)
    with pytest.raises(UserError, match="at least 4 axial slices, found 3 of 6 mm for 20 planes 1 mm apart") as error:
        read_centre_slices(path, SEQUENCES)
    assert str(path) in str(error.value)


NO_DISTANCE = {
    "zero": (252, struct.pack("<hh", 0, 0), (80, struct.pack("<3f", 2, 2, 0))),
    "NaN": (252, struct.pack("<hh", 1, 0), (80, struct.pack("<3f", 2, 2, float("nan")))),
    "tiny": (280 + 40, struct.pack("<f", 1e-4), (123, b"\x02")),
}
"""Changes of a header, each of which leaves no distance of slices that a head can have."""


@pytest.mark.parametrize("kind", NO_DISTANCE)
def test_slices_are_counted_without_a_distance_in_the_header(kind, tmp_path, caplog):
    offset, packed, second = NO_DISTANCE[kind]
    task = write_tiny_task(tmp_path, 2, 1)
    for number in (1, 2):
        path = task / f"imagesTr/BRATS_00{number}.nii.gz"
        for change in ((offset, packed), second):
            patched(*change)(path, path.read_bytes())
    caplog.set_level("WARNING")
    index_cohort(task, train_patients=2, test_patients=1, slices=5, spacing=2.0)
    said = [record.message for record in caplog.records if "distance" in record.message]
    assert len(said) == 1
    assert "1 other file" in said[0]
    volume = read_volume(path)
    assert volume.centre_slices(5, 2.0).tolist() == [2, 3, 4, 5, 6]


def test_distances_in_metres_are_read_as_such(tmp_path):
    path = series(tmp_path / "a.nii.gz", 6.0)
    metres = nib.load(path)
    metres.header.set_xyzt_units("meter")
    affine = np.diag([0.004, 0.004, 0.006, 1])
    nib.save(nib.Nifti1Image(np.asarray(metres.dataobj), affine, metres.header), tmp_path / "b.nii.gz")
    first, second = (read_volume(tmp_path / name).centre_slices(20, 1.0) for name in ("a.nii.gz", "b.nii.gz"))
    assert first.tolist() == second.tolist()
