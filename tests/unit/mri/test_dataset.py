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
from zetadp.mri.dataset import load_role, standardise, to_records

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
    with pytest.raises(UserError, match="device: cuda was asked for"):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("auto").type == pick_device("cuda").type == "cuda"
    assert pick_device("cpu").type == "cpu"
