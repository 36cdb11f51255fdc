from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zetadp.base.device import pick_device
from zetadp.base.storage import ImageStack, write_stack
from zetadp.base.validation import UserError
from zetadp.mri.slicing import area_weights, as_magnitudes, centre_slices, resize_area
from zetadp.tasks.brain_sequences.stacks import load_role, standardise, to_records


@given(depth=st.integers(1, 300), data=st.data())
def test_centre_slices_lie_in_the_middle(depth, data):
    count = data.draw(st.integers(1, depth))
    kept = range(depth)[centre_slices(depth, count)]
    below, above = kept.start, depth - kept.stop
    assert len(kept) == count
    assert 0 <= above - below <= 1


def test_more_slices_than_there_are():
    with pytest.raises(ValueError, match="at least 21 axial slices, found 20"):
        centre_slices(20, 21)


sizes = st.integers(1, 50)


@given(size=sizes, target=sizes)
def test_weights_are_the_shares_of_equal_intervals(size, target):
    weights = area_weights(size, target)
    assert weights.shape == (target, size)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=0), target / size, rtol=1e-4)  # every sample counts the same
    np.testing.assert_allclose(weights, weights[::-1, ::-1], atol=1e-6)  # no side is preferred


@given(rows=sizes, columns=sizes, target=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_resize_keeps_the_mean_and_the_range(rows, columns, target, seed):
    images = np.random.default_rng(seed).uniform(-1, 3, size=(2, 3, rows, columns))
    small = resize_area(images, target)
    assert small.shape == (2, 3, target, target)
    assert small.dtype == np.float32
    np.testing.assert_allclose(small.mean(axis=(2, 3), dtype=float), images.mean(axis=(2, 3)), atol=1e-6)
    assert small.min() >= images.min() - 1e-5
    assert small.max() <= images.max() + 1e-5


@given(size=st.integers(1, 30), target=st.integers(1, 30), factor=st.integers(1, 6))
def test_fractional_ratios_agree_with_fine_block_means(size, target, factor):
    # Repeating every sample makes the ratio an integer and changes nothing of what is averaged.
    line = np.random.default_rng(size).standard_normal(size)
    fine = np.repeat(line, target).reshape(target, size).mean(axis=1)
    np.testing.assert_allclose(area_weights(size, target) @ line, fine, atol=1e-5)
    np.testing.assert_allclose(area_weights(size * factor, target) @ np.repeat(line, factor), fine, atol=1e-5)


def test_stored_integers_are_averaged_without_overflow():
    images = np.full((1, 8, 8), 32767, dtype=np.int16)
    np.testing.assert_allclose(resize_area(images, 2), 32767, rtol=1e-6)


@pytest.fixture
def magnitudes():
    """Two slices of a brain whose darkest voxels are black, over an empty background."""
    slices = np.zeros((2, 8, 8), np.float32)
    slices[:, 1:6, 2:7] = np.random.default_rng(0).uniform(100, 900, (2, 5, 5))
    slices[0, 1, 2] = 1e-3
    return slices


def scored(slices, background):
    """Standardise the brain alone; the background gets a value of its own."""
    brain = slices > 0
    return np.where(brain, (slices - slices[brain].mean()) / slices[brain].std(), background).astype(np.float32)


@pytest.mark.parametrize("background", [0.0, -10.0, 10.0, None])
def test_scores_become_magnitudes_again_up_to_their_scale(magnitudes, background):
    stored = (magnitudes - 400) / 200 if background is None else scored(magnitudes, background)
    found = as_magnitudes(stored)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found * magnitudes.max() / found.max(), magnitudes, atol=0.01)


def test_magnitudes_stay_as_they_are(magnitudes):
    assert as_magnitudes(magnitudes) is magnitudes


def test_what_is_constant_or_not_finite_is_left_to_later_checks():
    assert as_magnitudes(np.full((2, 3, 3), -4.0)).max() == 0
    assert np.isnan(as_magnitudes(np.array([[[-1.0, np.nan]]]))).any()


AXES = ("patient", "sequence", "slice", "row", "column")


def stack(names: list[str], dtype: type = np.float32) -> ImageStack:
    """Return a stack whose every value says which record, sequence and slice it belongs to."""
    values = np.empty((len(names), 2, 3, 4, 4))
    for place, name in enumerate(names):
        values[place] = int(name[1:]) * 100 + np.arange(6).reshape(2, 3, 1, 1) + np.arange(16).reshape(4, 4) / 100
    return ImageStack(values.astype(dtype), tuple(names), ("FLAIR", "T1w"), AXES, "1")


@pytest.fixture
def files(tmp_path):
    names = [["r3", "r0"], ["r5", "r1", "r2"], ["r4"]]
    paths = [tmp_path / f"shard-{number}.h5" for number in range(3)]
    for path, own in zip(paths, names, strict=True):
        write_stack(path, stack(own))
    return paths


def table(*records: str, role: str = "train") -> pd.DataFrame:
    return pd.DataFrame({"patient": [f"p{r}" for r in records], "record": records, "role": role, "node": "node-01"})


def test_images_come_in_the_order_of_the_partition_whatever_the_files(files):
    partition = pd.concat([table("r4", "r0", "r2"), table("r1", "r5", role="test")])
    for order in (files, files[::-1]):
        found, rows = load_role(order, partition, "train")
        assert rows["record"].tolist() == list(found.patients) == ["r4", "r0", "r2"]
        assert found.values[:, 0, 0, 0, 0].tolist() == [400, 0, 200]
        np.testing.assert_array_equal(found.values, stack(["r4", "r0", "r2"]).values)
    found, _ = load_role(files, partition, "test")
    assert found.values[:, 0, 0, 0, 0].tolist() == [100, 500]


def test_a_record_without_images_is_a_users_error(files):
    with pytest.raises(UserError, match="Expected images of 2 records with role train, found 1"):
        load_role(files, table("r1", "r7"), "train")
    with pytest.raises(UserError, match="Expected images of 1 records with role train, found 0"):
        load_role([], table("r1"), "train")


def test_a_record_that_two_files_hold_does_not_hide_an_absent_one(files, tmp_path):
    write_stack(tmp_path / "more.h5", stack(["r1"]))
    with pytest.raises(UserError, match="Expected images of 2 records with role train, found 1"):
        load_role([*files, tmp_path / "more.h5"], table("r1", "r7"), "train")


def test_the_class_of_an_image_is_its_sequence():
    kspace = stack(["r1", "r2"], np.complex64)
    data = to_records(kspace, torch.device("cpu"))
    assert data.inputs.shape == (12, 1, 4, 4)
    assert data.inputs.dtype == torch.complex64
    assert data.targets.tolist() == [0, 0, 0, 1, 1, 1] * 2
    for image, label in enumerate(data.targets[6:].tolist()):
        np.testing.assert_array_equal(data.inputs[6 + image, 0], kspace.values[1, label, image % 3])


def test_slices_are_standardised_and_kspace_is_not():
    data = to_records(stack(["r1", "r2"]), torch.device("cpu"))
    assert data.inputs.dtype == torch.float32
    torch.testing.assert_close(data.inputs.mean(dim=(2, 3)), torch.zeros(12, 1), atol=1e-4, rtol=0)
    torch.testing.assert_close(data.inputs.std(dim=(2, 3), correction=0), torch.ones(12, 1), atol=1e-3, rtol=0)


@given(seed=st.integers(0, 999), scale=st.floats(1e-3, 1e3), offset=st.floats(-10, 10))
def test_standardising_ignores_scale_and_offset_and_treats_images_alone(seed, scale, offset):
    images = np.random.default_rng(seed).standard_normal((2, 3, 5, 5))
    found = standardise(images)
    changed = images.copy()
    changed[0, 0] = scale * (changed[0, 0] + offset)
    np.testing.assert_allclose(standardise(changed), found, atol=1e-4)
    assert found.dtype == np.float32


def test_devices_are_picked_by_name(monkeypatch):
    assert pick_device("cpu").type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto").type == "cpu"
    with pytest.raises(UserError, match=r"^device: .*'gpu'"):
        pick_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)  # this machine may have no GPU
    assert pick_device("auto").type == pick_device("cuda").type == "cuda"
    assert pick_device("cpu").type == "cpu"
