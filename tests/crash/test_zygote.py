"""The tools of the crash tests: children end as asked, at the points asked for."""

from __future__ import annotations

import os
from pathlib import Path

from zetadp.base.storage import write_text


def write_two(folder):
    with (Path(folder) / "raw").open("ab", buffering=0) as file:
        file.write(b"12345678")
        os.fsync(file.fileno())
    write_text(Path(folder) / "whole.txt", "all")
    return {"written": 2}


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


def test_a_full_disk_takes_what_there_is_room_for(zygote, tmp_path):
    full = zygote.run(write_two, {"folder": tmp_path}, full_at="before:fsync#1")
    assert full.status == 1
    assert "Cannot write" in full.log
    assert (tmp_path / "raw").read_bytes() == b"12345678"
    full = zygote.run(write_two, {"folder": tmp_path}, full_at="start", room=10)
    assert full.status == 0
    assert (tmp_path / "raw").stat().st_size == 10
