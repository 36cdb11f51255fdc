"""The tools of the crash tests: children end as asked, at the points asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zetadp.base.storage import write_text


def write_two(folder):
    with (Path(folder) / "raw").open("ab", buffering=0) as file:
        file.write(b"12345678")
        os.fsync(file.fileno())
    write_text(Path(folder) / "whole.txt", "all")
    return {"written": 2}


def leave(status):
    sys.stdout.write("so long\n")
    sys.exit(status)


def fail():
    raise KeyError("nothing there")


def hang():
    time.sleep(60)


def test_a_child_answers_prints_and_ends_as_a_program_does(zygote, tmp_path):
    done = zygote.run(write_two, {"folder": tmp_path})
    assert (done.status, done.value, done.points) == (0, {"written": 2}, [])
    assert zygote.run("os.path:basename", {"p": "a/b"}).value == "b"
    left = zygote.run(leave, {"status": 3})
    assert (left.status, left.log) == (3, "so long\n")
    failed = zygote.run(fail)
    assert failed.status == 1
    assert failed.log.endswith("KeyError: 'nothing there'\n")


def test_a_child_is_killed_in_time(zygote):
    began = time.monotonic()
    dead = zygote.run(hang, kill_after=0.05)
    assert dead.killed
    assert 0.05 <= dead.seconds <= time.monotonic() - began < 30
    with pytest.raises(TimeoutError, match=r"did not end within 0\.1 s"):
        zygote.run(hang, limit=0.1)


def test_points_stand_in_order_and_are_where_they_say(zygote, tmp_path):
    dry = zygote.run(write_two, {"folder": tmp_path}, points=True)
    assert dry.points[:5] == ["before:write#1", "torn:write#1", "after:write#1", "before:fsync#1", "after:fsync#1"]
    assert dry.points.index("after:fsync#2") < dry.points.index("before:replace#1")
    sizes = {"before:write#1": 0, "torn:write#1": 4, "after:write#1": 8}
    for point in dry.points:
        folder = tmp_path / point
        folder.mkdir()
        dead = zygote.run(write_two, {"folder": folder}, kill_at=point)
        assert dead.killed
        assert (folder / "raw").stat().st_size == sizes.get(point, 8)
        assert (folder / "whole.txt").exists() == (dry.points.index(point) > dry.points.index("before:replace#1"))


def test_operations_of_the_callers_choice_have_points(zygote, tmp_path):
    also = ["zetadp.base.storage:write_text", "pathlib:Path.exists"]
    points = zygote.run(write_two, {"folder": tmp_path}, points=True, also=["pathlib:Path.mkdir"]).points
    assert [point for point in points if "mkdir" in point] == ["before:Path.mkdir#1", "after:Path.mkdir#1"]
    assert zygote.run(write_two, {"folder": tmp_path}, points=True, also=also).status == 0
    assert "Expected json:decoder to be a function" in zygote.run(hang, points=True, also=["json:decoder"]).log


def test_a_full_disk_takes_what_there_is_room_for(zygote, tmp_path):
    full = zygote.run(write_two, {"folder": tmp_path}, full_at="before:fsync#1")
    assert full.status == 1
    assert "Cannot write" in full.log
    assert (tmp_path / "raw").read_bytes() == b"12345678"
    full = zygote.run(write_two, {"folder": tmp_path}, full_at="start", room=10)
    assert full.status == 0
    assert (tmp_path / "raw").stat().st_size == 10


def test_what_killed_writers_left_is_removed_and_what_others_write_is_not(tmp_path):
    with subprocess.Popen(["true"]) as process:
        dead = process.pid
    kept = [
        f".a.{os.getppid()}.partial.txt",  # a process that lives
        f".a.{dead}.partial.csv",
        f".a.b.{dead}.partial.txt",  # files of other names
        ".a.partial.txt",
        "a.txt.partial",
    ]
    for name in (*kept, f".a.{dead}.partial.txt"):
        (tmp_path / name).write_text("half")
    write_text(tmp_path / "a.txt", "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "a.txt"])
