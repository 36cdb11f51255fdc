"""How the processes of a federation on this machine end, and what is read of what they print."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest
from hospitals.sites import make_plan

from zetadp.base.validation import UserError
from zetadp.hospitals.launcher import SERVER, LocalFederation


@pytest.fixture
def federation(tmp_path):
    with LocalFederation(tmp_path, make_plan()) as running:
        yield running


def start(federation: LocalFederation, name: str, script: str) -> None:
    """Start a process that is no more than a line of the shell."""
    federation.command = ["sh", "-c", script]
    federation._start(name, "")


def test_a_training_ends_as_its_server_does_and_with_a_node_that_ends(federation):
    start(federation, SERVER, "exit 0")
    federation.wait()
    start(federation, SERVER, "echo 'zetadp: the disk is full' >&2; exit 1")
    with pytest.raises(UserError, match=r"^the disk is full$"):
        federation.wait()
    start(federation, SERVER, "echo words >&2; exit 1")  # what an earlier process said counts for nothing
    with pytest.raises(UserError, match=r"server ended by itself. The end of .*\nwords"):
        federation.wait()
    start(federation, SERVER, "sleep 100")
    start(federation, "node-02", "printf '\\377\\nzetadp: it has other patients' >&2; exit 1")
    with pytest.raises(UserError, match=r"^node-02: it has other patients$"):
        federation.wait()
    logs = list((federation.folder / "logs").iterdir())
    assert {path.stat().st_mode & 0o777 for path in logs} == {0o600}  # its texts may be of a site's patients


def test_processes_end_with_the_block_and_so_does_all_that_they_started(federation):
    start(federation, "node", "trap '' TERM; sleep 100 & echo $!; wait")
    while not (said := federation.log("node").read_text()).endswith("\n"):
        time.sleep(0.01)
    both = [psutil.Process(each) for each in (federation._running["node"].pid, int(said))]
    federation.stop("node", patience=0.1)
    assert not federation.runs("node")
    assert not psutil.wait_procs(both, timeout=20)[1]


KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from hospitals.sites import make_plan
from zetadp.hospitals.launcher import LocalFederation
with LocalFederation(Path(sys.argv[1]), make_plan()) as running:
    running._start("node", "no-command")
    print(running._running["node"].pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_process_whose_starter_is_killed_at_once_ends_too(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path), *sys.path]
    left = int(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
    end = time.monotonic() + 60
    while (exists := psutil.pid_exists(left)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not exists
    assert not (tmp_path / "logs/node.err").read_text()  # it did not come to its command
