from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from served import Quiet, served

from zetadp.base.validation import UserError
from zetadp.mri.download import download, extract

CONTENT = np.random.default_rng(0).bytes(3_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@contextmanager
def serving(*answers):
    """Serve `CONTENT` on 127.0.0.1; each request takes the next answer.

    An answer is ``good``, a status code, ``corrupt`` (one byte altered), ``whole`` (whatever the range), ``silent`` (no
    answer), or the number of bytes after which the connection is dropped. Yields the address and the list of requested
    ranges.
    """
    queue, requests, ended = list(answers), [], threading.Event()

    class Handler(Quiet):
        def do_GET(self):
            answer = queue.pop(0)
            requests.append(self.headers.get("Range"))
            start = int(requests[-1].removeprefix("bytes=").removesuffix("-")) if requests[-1] else 0
            if answer == "silent":
                ended.wait(5)
            elif answer in (404, 503) or start >= len(CONTENT):
                self.send_error(answer if answer in (404, 503) else 416)
            else:
                start = 0 if answer == "whole" else start
                body = CONTENT[start:]
                if answer == "corrupt":
                    body = bytes([body[0] ^ 1]) + body[1:]
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[:answer] if isinstance(answer, int) else body)

    with served(Handler) as address:
        try:
            yield f"{address}task.tar", requests
        finally:
            ended.set()


def fetch(url, target, md5=MD5, *, calls=1):
    """Call until it succeeds, as the workflow does; the last call must."""
    for _ in range(calls - 1):
        with pytest.raises(UserError) as error:
            download(url, target, md5, timeout=0.5)
        assert url in str(error.value)
        assert str(target) in str(error.value)
        assert not target.exists()
    download(url, target, md5, timeout=0.5)


def only(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_is_there_is_not_fetched_again_unless_it_is_wrong(tmp_path):
    target = tmp_path / "task.tar"
    target.write_bytes(CONTENT)
    with serving("good") as (url, requests):
        fetch(url, target, MD5.upper())
        assert requests == []
        target.write_bytes(CONTENT[:-1])
        fetch(url, target)
        assert requests == [None]
    assert target.read_bytes() == CONTENT


HALF = CONTENT[:1_000_000]
COURSES = {
    "broken twice": ((1_000_000, 500_000, "good"), b"", [None, "bytes=1000000-", "bytes=1500000-"]),
    "another process began": (("good",), HALF, ["bytes=1000000-"]),
    "busy for a while": ((404, 503, "good"), b"", [None] * 3),
    "corrupt": (("corrupt", "good"), b"", [None, None]),
    "corrupt before a break": (("good", "good"), bytes(1000), ["bytes=1000-", None]),
    "whole but not renamed": (("good",), CONTENT, [f"bytes={len(CONTENT)}-"]),
    "too long": (("good", "good"), CONTENT + bytes(7), [f"bytes={len(CONTENT) + 7}-", None]),
    "without ranges": ((1_000_000, "whole"), b"", [None, "bytes=1000000-"]),
    "silent": (("silent", "good"), b"", [None, None]),
}
"""Answers of the server to one call each, the partial file that is there, and the ranges that must be requested."""


@pytest.mark.parametrize("course", COURSES)
def test_a_download_goes_on_where_it_broke_and_ends_with_the_right_content(course, tmp_path):
    answers, partial, wanted = COURSES[course]
    if partial:
        (tmp_path / "task.tar.part").write_bytes(partial)
    with serving(*answers) as (url, requests):
        fetch(url, tmp_path / "task.tar", calls=len(answers))
    assert requests == wanted
    assert only(tmp_path) == ["task.tar"]
    assert (tmp_path / "task.tar").read_bytes() == CONTENT


def archive(path, *members) -> object:
    """Write a tar of members: a name for a file, or a name and changes to its header."""
    with tarfile.open(path, "w") as tar:
        for name, changes in ((member, {}) if isinstance(member, str) else member for member in members):
            info = tarfile.TarInfo(name)
            data = f"content of {name}".encode()
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            for key, value in changes.items():
                setattr(info, key, value)
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


GOOD = ("Task/", "Task/dataset.json", "Task/imagesTr/", "Task/imagesTr/BRATS_001.nii.gz")


@pytest.mark.parametrize("above", [(), ("./",)], ids=["packed by name", "packed as all that is here"])
def test_the_files_below_the_top_folder_and_nothing_else_become_the_folder(tmp_path, above):
    odd = [
        (f"Task/odd{kind.decode()}", {"type": kind, "linkname": "/etc"})
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)
    ]
    members = (*above, *GOOD, "._Task", "Task/imagesTr/._BRATS_001.nii.gz", *odd, "Task/odd2/good")
    folder = tmp_path / "data" / "Task01_BrainTumour"
    extract(archive(tmp_path / "task.tar", *members), folder)
    files = {file.relative_to(folder).as_posix(): file.read_text() for file in folder.rglob("*") if not file.is_dir()}
    names = ("dataset.json", "imagesTr/BRATS_001.nii.gz", "odd2/good")
    assert files == {name: f"content of Task/{name}" for name in names}
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    assert only(tmp_path / "data") == ["Task01_BrainTumour"]


def test_a_file_that_would_leave_the_folder_stops_everything(tmp_path):
    path = archive(tmp_path / "task.tar", *GOOD, "Task/../../evil")
    with pytest.raises(UserError, match="lies outside its top folder"):
        extract(path, tmp_path / "data" / "task")
    assert only(tmp_path) == ["task.tar"]


def test_a_folder_with_files_is_kept_and_one_without_is_replaced(tmp_path):
    path = archive(tmp_path / "task.tar", *GOOD)
    (tmp_path / "task" / "imagesTr").mkdir(parents=True)
    mine = tmp_path / "task" / "imagesTr" / "mine.txt"
    mine.write_text("mine")
    with pytest.raises(UserError, match="absent or empty"):
        extract(path, tmp_path / "task")
    assert mine.read_text() == "mine"
    mine.unlink()
    extract(path, tmp_path / "task")
    assert only(tmp_path / "task") == ["dataset.json", "imagesTr"]
