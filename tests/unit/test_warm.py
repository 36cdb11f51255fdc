"""A warm Python does what Python does, and has nothing of zetadp before it is called."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import warm

TELL = """
import json, os, sys
early = [name for name in sys.modules if name.partition(".")[0] == "zetadp"]
import neighbour, zetadp
read = sys.stdin.read()
print(json.dumps([sys.argv, os.getcwd(), os.environ["GIVEN"], early, "torch" in sys.modules, read, zetadp.__file__]))
print(__name__, file=sys.stderr)
"""


@pytest.fixture
def script(tmp_path):
    """Return what writes a script into a folder that also holds a module."""
    (tmp_path / "neighbour.py").write_text("")

    def written(text):
        (tmp_path / "script.py").write_text(text)
        return str(tmp_path / "script.py")

    return written


def called(python, *arguments, **more):
    return subprocess.run([python, *arguments], capture_output=True, text=True, check=False, **more)


def test_it_runs_a_script_as_python_does_with_packages_loaded_and_without_zetadp(script, tmp_path):
    (tmp_path / "own/zetadp").mkdir(parents=True)
    (tmp_path / "own/zetadp/__init__.py").write_text("")
    more = {"cwd": tmp_path / "own", "input": "in", "env": {"GIVEN": "here", "PYTHONPATH": str(tmp_path / "own")}}
    done, plain = (called(python, script(TELL), "a b", **more) for python in (warm.python(), sys.executable))
    *told, early, loaded, read, library = json.loads(done.stdout)
    assert (told, done.stderr) == (json.loads(plain.stdout)[:3], "__main__\n")
    assert (early, loaded, read) == ([], True, "in")
    assert library == str(tmp_path / "own/zetadp/__init__.py")


def test_all_ends_with_the_process_that_started_it(script):
    file = script("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(100)")
    start = f"import subprocess, sys\nsys.path.insert(0, {str(Path(warm.__file__).parent)!r})\nimport warm\n"
    start += f"subprocess.Popen([warm.python(()), {file!r}])\nimport time\ntime.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True) as owner:
        child = int(owner.stdout.readline())
        owner.kill()
    end = time.monotonic() + 20
    while psutil.pid_exists(child):
        assert time.monotonic() < end
        time.sleep(0.02)
