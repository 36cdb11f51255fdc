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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_voxel_that_is_not_finite(tmp_path, array, value):
    array = array.astype(np.float32)
    array[3, 3, 4, 1] = value
    path = write_volume(tmp_path / "a.nii.gz", array)
    with pytest.raises(UserError, match="T1w slice 4 holds NaN or infinite") as error:
        read_centre_slices(path, SEQUENCES, count=3, size=4)
    assert str(path) in str(error.value)


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
