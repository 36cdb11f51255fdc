"""The files of MNIST, and which of their images make a composite example."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from served import served_folder

from papers.complex_dp.phase_mnist.encoder import composite_features
from papers.complex_dp.phase_mnist.task import (
    FASHION,
    FILES,
    MNIST,
    Source,
    fetch_digits,
    pair_digits,
    paired,
    read_digits,
)
from zetadp.base.storage import Items
from zetadp.base.validation import UserError

SHARED = Path(__file__).parents[5] / "shared/data"
LABELS = np.random.default_rng(1).choice(10, size=5000, p=np.arange(1, 11) / 55)


def idx(values):
    """Return what an idx file of unsigned bytes holds."""
    numbers = [2048 + values.ndim, *values.shape]
    return b"".join(number.to_bytes(4, "big") for number in numbers) + values.tobytes()


@pytest.fixture
def tiny(tmp_path):
    """Return a source of four files, their folder, and the values of its training part."""
    random = np.random.default_rng(0)
    folder = tmp_path / "published"
    folder.mkdir()
    md5s, values = [], {}
    for (part, kind), name in FILES.items():
        values[part, kind] = random.integers(0, 10, (7, 28, 28) if kind == "images" else 7, dtype=np.uint8)
        content = idx(values[part, kind])
        packed = gzip.compress(content, mtime=0)
        (folder / name).write_bytes(packed)
        md5s.append((hashlib.md5(content).hexdigest(), hashlib.md5(packed).hexdigest()))
    return Source("tiny", "http://127.0.0.1:9/", md5s), folder, values


@pytest.mark.parametrize(("source", "name"), [(MNIST, "mnist"), (FASHION, "fashion_mnist")])
def test_the_published_files_are_read(source, name):
    if not (SHARED / name).is_dir():
        pytest.skip(f"needs {SHARED / name}")
    images, labels = read_digits(SHARED / name, "test", source)
    assert (images.shape, images.dtype, set(labels)) == ((10_000, 28, 28), np.uint8, set(range(10)))
    assert len(read_digits(SHARED / name, "train", source)[1]) == 60_000


@pytest.mark.parametrize("damage", ["missing", "cut", "other", "no gzip"])
def test_a_missing_or_damaged_file_is_refused(tiny, damage):
    source, folder, values = tiny
    path = folder / "train-images-idx3-ubyte.gz"
    packed = path.read_bytes()
    changed = values["train", "images"].copy()
    changed[3, 4, 5] ^= 1
    contents = {"cut": packed[:-20], "other": gzip.compress(idx(changed)), "no gzip": b"<html>moved</html>"}
    path.unlink()
    if damage in contents:
        path.write_bytes(contents[damage])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz"):
        read_digits(folder, "train", source)
    read_digits(folder, "test", source)


def test_what_is_missing_is_fetched_and_checked(tiny, tmp_path):
    source, folder, values = tiny
    target = tmp_path / "fetched"
    target.mkdir()
    # What is there stays as it is: its content is right, though it is packed otherwise.
    own = gzip.compress(idx(values["train", "images"]), mtime=5)
    (target / "train-images-idx3-ubyte.gz").write_bytes(own)
    with served_folder(folder) as address:
        source = replace(source, mirror=address)
        fetch_digits(target, source)
        assert (target / "train-images-idx3-ubyte.gz").read_bytes() == own
        for part in ("train", "test"):
            assert (read_digits(target, part, source)[0] == values[part, "images"]).all()
        (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"something else"))
        (target / "t10k-images-idx3-ubyte.gz").unlink()
        with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte\.gz"):
            fetch_digits(target, source)
    assert not (target / "t10k-images-idx3-ubyte.gz").exists()


@pytest.mark.parametrize("once", [False, True])
def test_labels_of_both_parts_add_up_to_nine_by_seed_and_part_and_images_are_used_once_where_that_is_asked(once):
    real, imaginary = paired(LABELS, "train", 3, once=once)
    assert (LABELS[real] + LABELS[imaginary] == 9).all()
    assert all(map(np.array_equal, paired(LABELS, "train", 3, once=once), (real, imaginary)))
    for other in (paired(LABELS, "train", 4, once=once), paired(LABELS, "test", 3, once=once)):
        assert (imaginary != other[1]).mean() > 0.9
    if once:
        assert np.bincount(np.concatenate((real, imaginary))).max() == 1
        count, found = np.bincount(LABELS), np.bincount(LABELS[real])
        assert len(real) == sum(min(count[label], count[9 - label]) for label in range(5))
        assert (abs(found - found[::-1]) <= 1).all()


def test_a_composite_feature_is_that_of_the_real_image_plus_i_times_that_of_the_imaginary_one():
    real, imaginary = (torch.nn.functional.normalize(torch.rand(5, 8)) for _ in range(2))
    values = composite_features(real, imaginary)
    assert values.shape == (5, 1, 1, 8)
    np.testing.assert_allclose(values[:, 0, 0] * 2**0.5, real + 1j * imaginary, rtol=1e-5)
    assert not composite_features(real, None).imag.any()


@pytest.mark.skipif(not (SHARED / "mnist").is_dir(), reason="needs the files of MNIST in ../shared/data/mnist")
@pytest.mark.parametrize(("composite", "most"), [("drawn", 60000), ("once", 29071), ("none", 60000)])
def test_the_stage_pairs_the_official_digits(tmp_path, composite, most):
    files = [SHARED / "mnist/train-images-idx3-ubyte.gz"]
    outputs = {"examples": tmp_path / "examples.h5", "table": tmp_path / "index.csv"}
    pair_digits(files=files, **outputs, composite=composite, sizes={"train": 300, "test": 50})
    table = pd.read_csv(outputs["table"])
    assert table["part"].value_counts().to_dict() == {"train": 300, "test": 50}
    assert table["sha256"].nunique() == 350
    found = Items.read(outputs["examples"], ("real", "imaginary", "labels")).arrays
    assert set(found["labels"]) == set(range(10))
    # No training pair takes a test image, and the other way round.
    assert max(found["real"][:300].max(), found["imaginary"][:300].max()) < 60000
    assert min(found["real"][300:].min(), found["imaginary"][300:].min()) >= 60000
    with pytest.raises(UserError, match=f"at most {most}"):
        pair_digits(files=files, **outputs, composite=composite, sizes={"train": most + 1, "test": 50})
