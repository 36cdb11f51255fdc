"""Processes to be killed, each forked from a `warm` Python that has the library and its scripts imported.

A process calls a function of `crash.stages` or `crash.tiny`. On the way it can be killed at a named point, or its disk
be full from there on (see `points`)::

    dry = run(train_tiny, {"folder": tmp_path / "dry"}, points=True)
    for point in dry.points:                    # "before:write#1", "torn:write#1", "after:write#1", ...
        dead = run(train_tiny, {"folder": tmp_path / point}, kill_at=point)
        assert dead.killed

Arguments travel as JSON, and paths arrive as strings. Nothing that one process did is known to the next.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path[0] = str(TESTS)

from crash.points import CrashPoints, fill_the_disk, kill_this_process  # noqa: E402
from crash.stages import SCRIPTS  # noqa: E402

LIMIT = 600.0
"""Seconds after which a process is taken to hang."""


@dataclass(frozen=True)
class Outcome:
    """How a process ended.

    Attributes
    ----------
    status
        Exit status, or the negative number of the signal that ended it.
    log
        All that was written to standard output and standard error.
    points
        The points passed, where the function returned and points were asked for.
    """

    status: int
    log: str
    points: list[str]

    @property
    def killed(self) -> bool:
        """Whether it was ended as ``kill_at`` asks for."""
        return self.status == -signal.SIGKILL


def run(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    cwd: Path | None = None,
    kill_at: str | None = None,
    full_at: str | None = None,
    room: int = 0,
    points: bool = False,
    also: Sequence[str] = (),
) -> Outcome:
    """Call a function in a new process and wait for its end.

    Parameters
    ----------
    function
        A function at the top level of a module of this folder.
    arguments
        Its keyword arguments, as JSON can hold them; paths become strings.
    cwd
        Working directory.
    kill_at
        The point at which the process kills itself.
    full_at, room
        The point, or ``"start"``, from which on no file can grow beyond ``room`` bytes.
    points
        Whether to list the points passed.
    also
        More operations with points, as ``module:attribute`` or ``module:Class.method``.
    """
    import warm

    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        passed = Path(folder) / "points.json"
        request = {
            "function": [f"crash.{Path(function.__code__.co_filename).stem}", function.__name__],
            "arguments": dict(arguments),
            "kill_at": kill_at,
            "full_at": full_at,
            "room": room,
            "also": list(also),
            "passed": passed if points else None,
        }
        loaded = (*warm.LOADED, *map(str, sorted(SCRIPTS.glob("*.py"))), "crash.stages", "crash.tiny")
        library = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [
                warm.python(loaded, library),
                __file__,
                json.dumps(request, default=os.fspath),
            ],
            cwd=cwd or folder,
            # As the workflow does; without it a table names the program that runs.
            env={**os.environ, "ZETADP_COMMAND": "snakemake", "PYTHONPATH": library},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=LIMIT,
        )
        return Outcome(done.returncode, done.stdout, json.loads(passed.read_text()) if passed.exists() else [])


def main(request: Mapping[str, Any]) -> None:
    """Do in this process what a request says."""
    module, name = request["function"]
    function = getattr(importlib.import_module(module), name)
    full = request["full_at"]
    points = CrashPoints(
        at=request["kill_at"] or full,
        act=kill_this_process if full is None else partial(fill_the_disk, request["room"]),
        also=request["also"],
    )
    if full == "start":
        fill_the_disk(request["room"])
    watched = request["passed"] or request["kill_at"] or full not in (None, "start")
    with points if watched else nullcontext():
        function(**request["arguments"])
    if request["passed"]:
        Path(request["passed"]).write_text(json.dumps(points.seen))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
