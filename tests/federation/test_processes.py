"""What a process of a federation on this machine leaves in its log, and how the log is read."""

from __future__ import annotations

import pytest

from zetadp.base.validation import UserError
from zetadp.federation.flower.processes import Processes

NEWS = "2026-01-01 00:00:00,000 INFO zetadp.x: {}\n"


@pytest.fixture
def begun(tmp_path):
    """A process that has begun its log, and the log."""
    processes = Processes(tmp_path, {})
    processes._begin("node")
    return processes, processes.log("node")


def test_a_log_is_for_its_owner_alone(begun):
    """Its texts may be of a site's patients."""
    assert begun[1].stat().st_mode & 0o777 == 0o600


def test_a_process_did_its_work_where_its_log_says_so_also_before_a_last_line(begun):
    processes, log = begun
    log.write_text("all is done\n")
    with pytest.raises(UserError):
        processes.finish("node")
    log.write_text("done\n" + NEWS.format("another thread ends"))
    processes.finish("node")
    processes._begin("node")  # what an earlier process did counts for nothing
    with pytest.raises(UserError):
        processes.finish("node")


def test_every_line_is_news_once_also_after_bytes_that_are_no_text(begun):
    processes, log = begun
    log.write_bytes(NEWS.format("first").encode() + b"\xff" * 99 + b"\n" + NEWS.format("second").encode())
    assert processes.news("node") == [("INFO", "first"), ("INFO", "second")]
    with log.open("a") as file:
        file.write(NEWS.format("third") + NEWS.format("fourth")[:-1])
    assert processes.news("node") == [("INFO", "third")]
    with log.open("a") as file:
        file.write("\n")
    assert processes.news("node") == [("INFO", "fourth")]
