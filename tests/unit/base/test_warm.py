"""A program that is forked ends as Python would, and takes nothing with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zetadp.base.warm import PROGRAM, start_python

FORKED = "import os, pathlib; assert b'warm.py' in pathlib.Path(f'/proc/{os.getppid()}/cmdline').read_bytes(); "
WAITS = "import os, pathlib, time; pathlib.Path('pid').write_text(f'{os.getpid()} {os.getppid()}'); time.sleep(100)"
LIMIT = 30


@pytest.fixture(scope="module")
def program():
    """Return a program that is forked from a Python with NumPy and PyTorch."""
    return start_python(["numpy.random", "torch"], wait=True)


@pytest.fixture
def call(program, tmp_path):
    """Return what calls the program with a script; all output goes to a file."""

    def called(code: str, program: str = program) -> subprocess.Popen[bytes]:
        (tmp_path / "script.py").write_text(code)
        with (tmp_path / "output").open("wb") as output:
            command = [program, str(tmp_path / "script.py")]
            return subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT)

    return called


def running(pid: int) -> bool:
    """Return whether a process runs; one that has ended and is not yet reaped does not."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def awaited(path: Path) -> str:
    """Return the text of a file once it has some."""
    limit = time.monotonic() + LIMIT
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < limit
        time.sleep(0.01)
    return path.read_text()


def gone(pid: int) -> bool:
    """Return whether a process ends within the limit."""
    limit = time.monotonic() + LIMIT
    while running(pid) and time.monotonic() < limit:
        time.sleep(0.01)
    return not running(pid)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("print('done')", 0),
        ("import sys; sys.exit(3)", 3),
        ("raise ValueError('wrong')", 1),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("os.kill(os.getpid(), 15)", -signal.SIGTERM),
    ],
)
def test_a_forked_program_ends_as_python_would(call, tmp_path, code, status):
    assert call(FORKED + code).wait(timeout=LIMIT) == status
    said = (tmp_path / "output").read_text()
    assert ("done" in said, "ValueError: wrong" in said) == (status == 0, status == 1)


def test_a_program_that_is_killed_takes_nothing_with_it(call):
    assert call(FORKED + "os.kill(0, 9)").wait(timeout=LIMIT) == -signal.SIGKILL
    assert call(FORKED).wait(timeout=LIMIT) == 0


def test_forked_programs_share_no_random_numbers(call, tmp_path):
    draws = "numpy.random.random(), torch.rand(()).item(), random.random(), secrets.randbits(64), ssl.RAND_bytes(8)"
    drawn = set()
    for _ in range(2):
        code = f"import numpy, random, secrets, ssl, torch; print({draws}, sep='\\n')"
        assert call(FORKED + code).wait(timeout=LIMIT) == 0
        drawn |= set((tmp_path / "output").read_text().splitlines())
    assert len(drawn) == 10


def test_nothing_continues_after_its_caller_was_killed(call, tmp_path):
    waiting = call(WAITS)
    pid, _ = map(int, awaited(tmp_path / "pid").split())
    waiting.kill()
    waiting.wait(timeout=LIMIT)
    assert gone(pid)


def test_without_the_process_to_fork_from_python_runs_itself(call, tmp_path):
    """What was forked before ends with an error, and never as if it were done."""
    program = start_python([], wait=True)
    waiting = call(WAITS, program)
    pid, server = map(int, awaited(tmp_path / "pid").split())
    os.kill(server, signal.SIGKILL)
    assert waiting.wait(timeout=LIMIT) == 1
    assert "has died" in (tmp_path / "output").read_text()
    assert gone(pid)
    assert call("import sys; sys.exit(sys.executable.endswith('warm-python'))", program).wait(timeout=LIMIT) == 0


def test_everything_ends_with_the_process_that_started_it(tmp_path):
    caller = """
import subprocess, sys
from zetadp.base.warm import start_python
program = start_python([], wait=True)
print(program, flush=True)
subprocess.run([program, "waits.py"])
"""
    (tmp_path / "waits.py").write_text(WAITS)
    starter = subprocess.Popen([sys.executable, "-c", caller], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    folder = Path(starter.stdout.readline().strip()).parent
    pids = [int(pid) for pid in awaited(tmp_path / "pid").split()]
    starter.kill()
    starter.communicate()
    assert all(map(gone, pids))
    assert not folder.exists()


def test_a_program_that_was_forked_starts_no_other(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / PROGRAM))
    assert start_python([]) == sys.executable
