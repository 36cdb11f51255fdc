from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zetadp.base.storage import Items
from zetadp.base.validation import UserError
from zetadp.brain.images import load_role, to_records
from zetadp.mri.decathlon import AXES
from zetadp.mri.slicing import centre_slices, resize_area


@given(depth=st.integers(1, 300), data=st.data())
def test_centre_slices_lie_in_the_middle(depth, data):
    count = data.draw(st.integers(1, depth))
    kept = centre_slices(depth, count)
    assert kept.tolist() == list(range(kept[0], kept[0] + count))
    assert 0 <= (depth - 1 - kept[-1]) - kept[0] <= 1


@given(thickness=st.floats(0.4, 8), depth=st.integers(1, 300), spacing=st.floats(0.5, 6), count=st.integers(1, 30))
def test_slices_are_those_nearest_to_the_planes(thickness, depth, spacing, count):
    planes = (np.arange(count) - (count - 1) / 2) * spacing
    if planes[-1] > depth * thickness / 2 - 0.01:
        return
    kept = centre_slices(depth, count, spacing / thickness)
    centres = (kept - (depth - 1) / 2) * thickness
    assert np.abs(centres - planes).max() <= thickness / 2 + 0.01


def test_planes_outside_of_the_slices_are_refused():
    assert centre_slices(4, 20, 1 / 6).tolist() == [0] * 4 + [1] * 6 + [2] * 6 + [3] * 4
    with pytest.raises(ValueError, match="at least 4 axial slices, found 3"):
        centre_slices(3, 20, 1 / 6)


sizes = st.integers(1, 50)


@given(rows=sizes, columns=sizes, target=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_resize_keeps_the_mean_and_the_range(rows, columns, target, seed):
    images = np.random.default_rng(seed).uniform(-1, 3, size=(2, 3, rows, columns))
    small = resize_area(images, target)
    assert small.shape == (2, 3, target, target)
    assert small.dtype == np.float32
    np.testing.assert_allclose(small.mean(axis=(2, 3), dtype=float), images.mean(axis=(2, 3)), atol=1e-6)
    assert small.min() >= images.min() - 1e-5
    assert small.max() <= images.max() + 1e-5


def stack(names: list[str]) -> np.ndarray:
    """Return images whose every value says which record, sequence and slice it belongs to."""
    values = np.empty((len(names), 2, 3, 4, 4), dtype=np.float32)
    for place, name in enumerate(names):
        values[place] = int(name[1:]) * 100 + np.arange(6).reshape(2, 3, 1, 1) + np.arange(16).reshape(4, 4) / 100
    return values


@pytest.fixture
def files(tmp_path):
    names = [["r3", "r0"], ["r5", "r1", "r2"], ["r4"]]
    paths = [tmp_path / f"shard-{number}.h5" for number in range(3)]
    for path, own in zip(paths, names, strict=True):
        Items({"values": stack(own)}, pd.DataFrame({"record": own})).write(path, AXES, "1")
    return paths


def table(*records: str, role: str = "train") -> pd.DataFrame:
    return pd.DataFrame({"patient": [f"p{r}" for r in records], "record": records, "role": role, "node": "node-01"})


def test_images_come_in_the_order_of_the_partition_whatever_the_files(files):
    partition = pd.concat([table("r4", "r0", "r2"), table("r1", "r5", role="test")])
    for order in (files, files[::-1]):
        found, rows = load_role(order, partition, "train")
        assert rows["record"].tolist() == ["r4", "r0", "r2"]
        np.testing.assert_array_equal(found, stack(["r4", "r0", "r2"]))
    found, _ = load_role(files, partition, "test")
    assert found[:, 0, 0, 0, 0].tolist() == [100, 500]
    assert load_role(files, partition, "validation")[0].shape == (0, 2, 3, 4, 4)
    with pytest.raises(UserError, match="Expected all 2 records of the partition"):
        load_role(files, table("r1", "r7"), "train")


def test_slices_are_standardised_and_kspace_is_not():
    data = to_records(stack(["r1", "r2"]), torch.device("cpu"))
    assert data.inputs.dtype == torch.float32
    torch.testing.assert_close(data.inputs.mean(dim=(2, 3)), torch.zeros(12, 1), atol=1e-4, rtol=0)
    torch.testing.assert_close(data.inputs.std(dim=(2, 3), correction=0), torch.ones(12, 1), atol=1e-3, rtol=0)
