"""Reading and fetching the files of MNIST."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from served import served_folder

from zetadp.base.validation import UserError
from zetadp.tasks.phase_mnist.digits import FASHION, FILES, MNIST, Source, fetch_digits, read_digits

SHARED = Path(__file__).parents[5] / "shared/data"


def idx(values):
    """Return what an idx file of unsigned bytes holds."""
    numbers = [2048 + values.ndim, *values.shape]
    return b"".join(number.to_bytes(4, "big") for number in numbers) + values.tobytes()


def md5(content):
    return hashlib.md5(content).hexdigest()


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
        md5s.append((md5(content), md5(packed)))
    return Source("tiny", "http://127.0.0.1:9/", md5s), folder, values


@pytest.mark.parametrize(("source", "name"), [(MNIST, "mnist"), (FASHION, "fashion_mnist")])
def test_the_published_files_are_read(source, name):
    if not (SHARED / name).is_dir():
        pytest.skip(f"needs {SHARED / name}")
    images, labels = read_digits(SHARED / name, "test", source)
    assert images.shape == (10_000, 28, 28)
    assert images.dtype == np.uint8
    assert set(labels) == set(range(10))
    assert len(read_digits(SHARED / name, "train", source)[1]) == 60_000


@pytest.mark.parametrize("damage", ["missing", "cut", "other", "no gzip", "flipped"])
def test_a_missing_or_damaged_file_is_refused(tiny, damage):
    source, folder, values = tiny
    path = folder / "train-images-idx3-ubyte.gz"
    packed = path.read_bytes()
    changed = values["train", "images"].copy()
    changed[3, 4, 5] ^= 1
    contents = {
        "cut": packed[:-20],
        "other": gzip.compress(idx(changed)),
        "no gzip": b"<html>moved</html>",
        "flipped": packed[:100] + bytes([packed[100] ^ 255]) + packed[101:],
    }
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
