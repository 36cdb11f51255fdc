from __future__ import annotations

import gzip
import itertools

import numpy as np
import pytest
from decathlon_builder import real_sample, volume, write_volume

from zetadp.base.validation import UserError
from zetadp.mri.decathlon import SEQUENCES, read_task
from zetadp.mri.volumes import check_complete, read_centre_slices, read_volume

SHAPE = (12, 8, 9)
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


def test_all_orientations_give_the_same_images(tmp_path, array):
    assert len(ORIENTATIONS) == 48
    for orientation in ORIENTATIONS:
        path = write_volume(tmp_path / f"{orientation}.nii.gz", array, orientation)
        images = read_centre_slices(path, SEQUENCES, count=4, size=4)
        assert images.dtype == np.float32
        np.testing.assert_allclose(images, expected(array, 4, 4), rtol=1e-6, err_msg=orientation)


def test_sequences_are_in_canonical_order_whatever_the_file_holds(tmp_path, array):
    canonical = read_centre_slices(write_volume(tmp_path / "a.nii.gz", array), SEQUENCES, count=3, size=4)
    for order in itertools.permutations(range(4)):
        path = write_volume(tmp_path / "b.nii.gz", array[..., list(order)])
        images = read_centre_slices(path, [SEQUENCES[index] for index in order], count=3, size=4)
        np.testing.assert_array_equal(images, canonical)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32, np.float64, ">i2", ">f4"])
def test_stored_types(tmp_path, array, dtype):
    array = (array % 251).astype(dtype)
    images = read_centre_slices(write_volume(tmp_path / "a.nii.gz", array), SEQUENCES, count=5, size=4)
    np.testing.assert_allclose(images, expected(array, 5, 4), rtol=1e-6)


def test_slope_and_intercept_are_applied(tmp_path, array):
    plain = read_centre_slices(write_volume(tmp_path / "a.nii.gz", array), SEQUENCES, count=5, size=4)
    path = write_volume(tmp_path / "b.nii.gz", array, "PIR", slope=0.25, inter=70.0)
    np.testing.assert_allclose(read_centre_slices(path, SEQUENCES, count=5, size=4), 0.25 * plain + 70.0, rtol=1e-5)


def test_uncompressed_volumes_are_read_too(tmp_path, array):
    zipped = read_centre_slices(write_volume(tmp_path / "a.nii.gz", array), SEQUENCES, count=5, size=4)
    plain = read_centre_slices(write_volume(tmp_path / "a.nii", array), SEQUENCES, count=5, size=4)
    np.testing.assert_array_equal(plain, zipped)
    (tmp_path / "a.nii.gz").rename(tmp_path / "B.NII.GZ")
    np.testing.assert_array_equal(read_centre_slices(tmp_path / "B.NII.GZ", SEQUENCES, count=5, size=4), zipped)


def test_one_voxel_of_another_channel_or_slice_changes_nothing_else(tmp_path, array):
    images = read_centre_slices(write_volume(tmp_path / "a.nii.gz", array), SEQUENCES, count=3, size=4)
    array[2, 3, 4, 2] += 100
    array[:, :, [0, 1, 2, 6, 7, 8]] = 0
    changed = read_centre_slices(write_volume(tmp_path / "b.nii.gz", array), SEQUENCES, count=3, size=4)
    assert np.argwhere(images != changed).tolist() == [[2, 1, 2, 0]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_voxel_that_is_not_finite(tmp_path, array, value):
    array = array.astype(np.float32)
    array[3, 3, 4, 1] = value
    path = write_volume(tmp_path / "a.nii.gz", array)
    with pytest.raises(UserError, match="T1w slice 4 holds NaN or infinite") as error:
        read_centre_slices(path, SEQUENCES, count=3, size=4)
    assert str(path) in str(error.value)


def test_a_bad_voxel_outside_the_slices_used_is_no_fault(tmp_path, array):
    array = array.astype(np.float32)
    array[..., 0, :] = np.nan
    images = read_centre_slices(write_volume(tmp_path / "a.nii.gz", array), SEQUENCES, count=3, size=4)
    assert np.isfinite(images).all()


@pytest.mark.parametrize(("slope", "inter"), [(1.0, 0.0), (0.5, -4.0)])
def test_constant_and_empty_slices_are_named_with_their_sequence(tmp_path, array, slope, inter):
    array[:, :, 3, 2] = round(-inter / slope)
    array[:, :, 5, 0] = 77
    path = write_volume(tmp_path / "a.nii.gz", array, "LPI", slope=slope, inter=inter)
    with pytest.raises(UserError) as error:
        read_centre_slices(path, ("T2w", "T1gd", "FLAIR", "T1w"), count=3, size=4)
    assert "FLAIR slice 3 is empty" in str(error.value)
    assert "T2w slice 5 is constant" in str(error.value)


def test_many_faults_make_a_short_message(tmp_path):
    path = write_volume(tmp_path / "a.nii.gz", np.zeros((4, 4, 30, 4), np.int16))
    with pytest.raises(UserError, match="and 75 more") as error:
        read_centre_slices(path, SEQUENCES, count=20, size=4)
    assert len(str(error.value)) < 500 + len(str(path))


def test_order_must_be_the_four_sequences(tmp_path):
    with pytest.raises(ValueError, match="Expected order"):
        read_centre_slices(tmp_path / "a.nii.gz", ("FLAIR", "T1w", "T1w", "T2w"))


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
    volume = read_volume(path)
    path.write_bytes(damaged(path.read_bytes())[kind])
    with pytest.raises(UserError, match="truncated") as error:
        read_centre_slices(path, SEQUENCES, count=3, size=4)
    assert str(path) in str(error.value)
    if kind in ("cut in the middle", "without the last byte", "fewer voxels", "only the header"):
        with pytest.raises(UserError, match="truncated"):  # seen without unpacking all of it
            check_complete(volume)


def test_the_checksum_is_compared_also_where_the_file_goes_on_after_the_voxels(tmp_path, array):
    path = write_volume(tmp_path / "a.nii.gz", array)
    longer = gzip.compress(gzip.decompress(path.read_bytes()) + bytes(2_000_000))
    path.write_bytes(longer)
    assert np.isfinite(read_centre_slices(path, SEQUENCES, count=3, size=4)).all()
    path.write_bytes(damaged(longer)["wrong checksum"])
    with pytest.raises(UserError, match="CRC"):
        read_centre_slices(path, SEQUENCES, count=3, size=4)


def test_completeness_accepts_several_gzip_members_and_plain_files(tmp_path, array):
    path = write_volume(tmp_path / "a.nii.gz", array)
    data = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(data[:1000]) + gzip.compress(data[1000:]))
    check_complete(read_volume(path))
    plain = write_volume(tmp_path / "a.nii", array)
    check_complete(read_volume(plain))
    plain.write_bytes(plain.read_bytes()[:-5])
    with pytest.raises(UserError, match="truncated"):
        check_complete(read_volume(plain))


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
