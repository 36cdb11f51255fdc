"""Tables are read as text, and hidden files do not exist."""

import os

import pandas as pd
import pytest

from zetadp.base.tables import fingerprint, read_table, visible, write_table
from zetadp.base.validation import UserError

NAMES = ["NA", "None", "nan", "null", "007", "1e5", "12", "12.0", "True", "", " x ", "#7", '"q"', "ä", "-1"]
NAMES += ["a\nb", "x\u2028y"]


def test_every_name_comes_back_as_it_was_written(tmp_path):
    write_table(tmp_path / "t.csv", pd.DataFrame({"name": NAMES, "n": range(len(NAMES))}))
    assert read_table(tmp_path / "t.csv")["name"].tolist() == NAMES


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a,c\n1,2\n",
        b"a,b\n1\n",
        b"a,b\n1,2,3\n4,5,6\n",
        b"a,b,a\n1,2,3\n",
        "a,b\nKöln,1\n".encode("latin-1"),
        "a,b\n1,2\n".encode("utf-16"),
        b'a,b\n"1,2\n',
    ],
)
def test_a_table_that_cannot_be_trusted_is_refused_by_name(tmp_path, content):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(UserError, match=r"t\.csv"):
        read_table(tmp_path / "t.csv", ("a", "b"))


def test_a_fingerprint_changes_with_what_replaces_a_file_also_where_it_is_older(tmp_path):
    files = [tmp_path / name for name in ("a", "b", "gone")]
    for file in files[:2]:
        file.write_text("1")
        os.utime(file, (10, 10))
    found = {fingerprint(files), fingerprint(files)}
    assert len(found) == 1
    for change in (
        lambda: files[0].write_text("22"),
        lambda: os.utime(files[1], (5, 5)),
        lambda: files[2].touch(),
        lambda: files[0].unlink(),
    ):
        change()
        found.add(fingerprint(files))
    assert len(found) == 5


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.wav", ["top.wav"]),
        ("*/*.wav", ["one/b.WAV", "yes/a.wav"]),
        ("**/*.wav", ["one/b.WAV", "one/two/c.wav", "top.wav", "yes/a.wav"]),
        ("yes/*", ["yes/a.wav"]),
    ],
)
def test_files_of_subfolders_are_seen_whatever_the_case_of_their_ending(tmp_path, pattern, names):
    for name in ("top.wav", "yes/a.wav", "one/b.WAV", "one/two/c.wav", ".hidden/d.wav", "yes/._a.wav"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [path.relative_to(tmp_path).as_posix() for path in visible(tmp_path, pattern)] == names
