from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from zetadp.base.storage import (
    Items,
    folder_written_whole,
    read_json,
    write_json,
    write_text,
    writing,
    written_whole,
)
from zetadp.base.validation import UserError


def items() -> Items:
    generator = np.random.default_rng(0)
    values = generator.standard_normal((2, 3, 4)) + 1j * generator.standard_normal((2, 3, 4))
    arrays = {"values": values.astype(np.complex64), "targets": values.real.astype(np.float32)}
    names = pd.DataFrame({"record": ["p1", "pä2"], "part": ["", "007"]})
    return Items(arrays, names, provenance={"settings": {"size": 6, "grid": [1, 2]}, "source": "x"})


def write(path: Path) -> Items:
    """Write the items above, and read them."""
    items().write(path, ("record", "row", "column"), "1")
    return Items.read(path, ("values", "targets"), ("record", "part"))


def test_a_block_that_ends_well_replaces_the_file(tmp_path):
    path = tmp_path / "new" / "a.txt"
    for text in ("old", "new"):
        with written_whole(path) as temporary:
            assert temporary.parent == path.parent
            assert temporary.suffix == path.suffix
            assert temporary != path
            temporary.write_text(text)
            assert not path.exists() or path.read_text() != text
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, UserError])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write_half() -> None:
        with written_whole(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_and_a_path_that_is_a_folder_are_a_users_error(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "a").mkdir()
    for path in (tmp_path / "file/sub/a.txt", tmp_path / "a"):
        with pytest.raises(UserError, match=f"Cannot write {path}"):
            write_text(path, "x")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "file"}


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Free space"),
        (errno.EDQUOT, "Free space"),
        (errno.EROFS, "may write to"),
        (errno.EACCES, "may write to"),
        (errno.EOPNOTSUPP, "The file system cannot do what is needed"),
        (errno.ENAMETOOLONG, "another name"),
        (errno.EIO, "Look at the disk"),
    ],
)
def test_the_advice_of_an_error_of_writing_is_for_its_reason(tmp_path, number, advice):
    said = rf"Cannot write .*a\.txt: {os.strerror(number)}\. .*{advice}.*run again"
    with pytest.raises(UserError, match=said), writing(tmp_path / "a.txt"):
        raise OSError(number, os.strerror(number))


def test_a_file_system_that_cannot_sync_folders_is_used_with_one_warning(tmp_path, monkeypatch, caplog):
    sync = os.fsync

    def of_files_only(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", of_files_only)
    number = errno.EINVAL
    for name in "ab":
        write_text(tmp_path / name / "a.txt", name)
    assert [record.message.count("cannot sync folders") for record in caplog.records] == [1]
    number = errno.EIO  # a disk that fails is no file system with fewer abilities
    with pytest.raises(UserError, match="Look at the disk"):
        write_text(tmp_path / "c.txt", "c")


def test_json_holds_numbers_of_numpy_paths_and_infinities(tmp_path):
    path = tmp_path / "a.json"
    written = {
        "epsilon": (np.inf, "inf"),
        "low": (-np.inf, "-inf"),
        "numpy": (np.float32(0.5), 0.5),
        "count": (np.int64(3), 3),
        "yes": (np.bool_(True), True),
        "array": (np.array([[1.0, np.inf]]), [[1.0, "inf"]]),
        "tuple": ((1, 2), [1, 2]),
        "path": (Path("a/b"), "a/b"),
        "nested": ({3: [np.float64(np.inf)]}, {"3": ["inf"]}),
        "none": (None, None),
    }
    write_json(path, {name: value for name, (value, _) in written.items()})
    assert read_json(path) == {name: value for name, (_, value) in written.items()}
    # Python alone would read the words Infinity and NaN, which are no JSON.
    json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(word))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((text, r"Cannot read .*a\.json as JSON") for text in (b"{", b"", b"\xff\xfe")),
        (None, r"Expected the file .*a\.json, found none"),
        (b"[1]", r"Expected a JSON object in .*a\.json, found list"),
    ],
)
def test_what_is_no_json_object_is_a_users_error(tmp_path, content, said):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_json(path)


def test_items_are_read_as_they_were_written(tmp_path):
    found, written = write(tmp_path / "a.h5"), items()
    for name, values in written.arrays.items():
        assert found.arrays[name].dtype == values.dtype
        np.testing.assert_array_equal(found.arrays[name], values)
    pd.testing.assert_frame_equal(found.names, written.names, check_dtype=False)
    assert found.provenance == written.provenance


def test_the_same_items_make_the_same_bytes(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.h5")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_damaged_and_absent_items_are_a_users_error(tmp_path):
    path = tmp_path / "a.h5"
    with pytest.raises(UserError, match=r"a\.h5: No such file"):
        Items.read(path)
    write(path)
    with pytest.raises(UserError, match=r"a\.h5.*labels"):
        Items.read(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match=r"Cannot read the items .*a\.h5.* Delete the file"):
        Items.read(path)


def test_what_killed_writers_left_is_removed_and_what_others_write_is_not(tmp_path):
    with subprocess.Popen(["true"]) as process:
        dead = process.pid
    kept = [
        f".a.{os.getppid()}.partial.txt",  # a process that lives
        f".a.{dead}.partial.csv",
        f".a.b.{dead}.partial.txt",  # files of other names
        ".a.partial.txt",
        "a.txt.partial",
        f".cohort.{os.getppid()}.partial",
        "cohort.partial",
    ]
    left = [f".a.{dead}.partial.txt", f".cohort.{dead}.partial"]
    for name in (*kept, *left):
        if "cohort" in name:
            (tmp_path / name / "imagesTr/one").mkdir(parents=True)
        else:
            (tmp_path / name).write_text("half")
    write_text(tmp_path / "a.txt", "whole")
    with folder_written_whole(tmp_path / "cohort") as folder:
        (folder / "dataset.json").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "a.txt", "cohort"])
