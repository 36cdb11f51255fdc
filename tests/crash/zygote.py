"""Processes to be killed, forked from a warm one: a fresh Python that has the library and its scripts imported.

A test cannot fork itself, since PyTorch's threads do not survive a fork, and a new Python takes seconds to import it
all. So the test starts one *zygote*, a Python of its own with a single thread, which forks a child for every call::

    def work(folder: str, rounds: int) -> dict:     # at the top level of a test module or of any other file
        ...
        return {"rounds": rounds}                   # anything that JSON can hold

    def test_something(zygote, tmp_path):           # the fixture `zygote` of this folder: one a test session
        done = zygote.run(work, {"folder": tmp_path, "rounds": 3})
        assert done.status == 0 and done.value == {"rounds": 3}

        # (a) Killed so many seconds after the function began, wherever it is then.
        zygote.run(work, {"folder": tmp_path, "rounds": 3}, kill_after=0.2 * done.seconds)

        # (b) Killed from inside, at a named point: `points` tells which there are.
        also = ["zetadp.privacy.mechanism:NodeMechanism.release", "zetadp.core.server:Server.step"]
        dry = zygote.run(work, {"folder": tmp_path / "dry", "rounds": 3}, points=True, also=also)
        for point in dry.points:                    # "before:write#1", "torn:write#1", "after:write#1", ...
            dead = zygote.run(work, {"folder": tmp_path / point, "rounds": 3}, kill_at=point, also=also)
            assert dead.killed

        # (c) From a named point on, or from the "start", the disk is full.
        full = zygote.run(work, {"folder": tmp_path, "rounds": 3}, full_at="before:fsync#2")

        # Within the zygote itself: what is read once and cached costs later children nothing.
        zygote.warm(work, {"folder": tmp_path / "warm", "rounds": 1})

Functions are named to the zygote by file and name (or given as ``"module:function"``), so the file is imported there
too: nothing that a test set up in its own process is known to them, and fixtures are not. Arguments travel as JSON;
paths arrive as strings. What the child prints, and the traceback of an exception (exit status 1, as in any Python
program), is in ``log``. ``sys.exit`` gives the status that it is given. See `points` for the points and their names.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import logging
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

TESTS = Path(__file__).parents[1]
SCRIPTS = TESTS.parent / "scripts"
sys.path[:] = list(dict.fromkeys([str(TESTS), *sys.path]))

from crash.points import CrashPoints, fill_the_disk, kill_this_process  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # The allocator that pyarrow brings along would start a thread.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


@dataclass(frozen=True)
class Outcome:
    """How a child ended.

    Attributes
    ----------
    status
        Exit status, or the negative number of the signal that ended it.
    seconds
        Time from the beginning of the function to the end of the process.
    value
        What the function returned; None where it did not come to that.
    log
        All that was written to standard output and standard error.
    points
        The points passed, where the function returned and points were asked for.
    """

    status: int
    seconds: float
    value: Any
    log: str
    points: list[str]

    @property
    def killed(self) -> bool:
        """Whether it was ended as asked for by ``kill_after`` or ``kill_at``."""
        return self.status in (-signal.SIGKILL, -signal.SIGALRM)


class Zygote:
    """The client's side of a warm process; a context manager that ends it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="zygote-")
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD},
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """End the warm process."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def run(
        self,
        function: Callable[..., Any] | str,
        arguments: Mapping[str, Any] | None = None,
        *,
        cwd: Path | None = None,
        kill_after: float | None = None,
        kill_at: str | None = None,
        full_at: str | None = None,
        room: int = 0,
        points: bool = False,
        also: Sequence[str] = (),
        limit: float = 60.0,
    ) -> Outcome:
        """Call a function in a new child and wait for its end.

        Parameters
        ----------
        function
            A function at the top level of a file, or ``"module:function"``.
        arguments
            Its keyword arguments, as JSON can hold them; paths become strings.
        cwd
            Working directory of the child.
        kill_after
            Seconds after which the child is killed, counted from the call of the function; it may have ended before.
        kill_at
            The point at which the child kills itself.
        full_at, room
            The point, or ``"start"``, from which on no file can grow beyond ``room`` bytes.
        points
            Whether to list the points passed.
        also
            More operations with points, as ``module:attribute`` or ``module:Class.method``.
        limit
            Seconds after which a child that hangs is killed, and the test fails.
        """
        request = {
            "task": _named(function),
            "arguments": arguments or {},
            "cwd": cwd or self._folder.name,
            "kill_after": kill_after,
            "kill_at": kill_at,
            "full_at": full_at,
            "room": room,
            "points": points or kill_at is not None or full_at not in (None, "start"),
            "also": list(also),
            "limit": limit,
        }
        reply = self._ask(request)
        if reply["hung"]:
            msg = f"{request['task']} did not end within {limit} s:\n{reply['log']}"
            raise TimeoutError(msg)
        return Outcome(reply["status"], reply["seconds"], reply["value"], reply["log"], reply["points"])

    def warm(
        self,
        function: Callable[..., Any] | str,
        arguments: Mapping[str, Any] | None = None,
        *,
        cwd: Path | None = None,
    ) -> None:
        """Call a function in the warm process itself; it must not leave threads behind."""
        request = {"task": _named(function), "arguments": arguments or {}, "cwd": cwd or self._folder.name}
        reply = self._ask({**request, "warm": True})
        if reply["error"]:
            raise RuntimeError(reply["error"])

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(request, default=os.fspath) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            msg = f"The warm process ended with status {self._process.wait()}."
            raise RuntimeError(msg)
        reply: dict[str, Any] = json.loads(line)
        return reply


def _named(function: Callable[..., Any] | str) -> str:
    """Return how the zygote finds a function: ``module:name`` or ``/path/to/file.py:name``."""
    if isinstance(function, str):
        return function
    if "." in function.__qualname__:
        msg = f"Expected a function at the top level of a file, found {function.__qualname__}."
        raise ValueError(msg)
    return f"{function.__code__.co_filename}:{function.__name__}"


@cache
def _found(task: str) -> Callable[..., Any]:
    """Return a function by the name that the client gave."""
    home, _, name = task.rpartition(":")
    if not home.endswith(".py"):
        function: Callable[..., Any] = getattr(importlib.import_module(home), name)
        return function
    module_name = f"crash_task_{Path(home).stem}"
    module = sys.modules.get(module_name)
    if module is None or module.__file__ != home:
        spec = importlib.util.spec_from_file_location(module_name, home)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    function = getattr(module, name)
    assert callable(function)
    return function


def _serve() -> None:
    """Answer requests until the client is gone."""
    import torch

    torch.set_num_threads(1)
    for script in sorted(SCRIPTS.glob("*.py")):
        runpy.run_path(str(script))
    # The protocol keeps standard output to itself.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        reply = _warm(request) if request.get("warm") else _fork(request, replies)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _warm(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        os.chdir(request["cwd"])
        _found(request["task"])(**request["arguments"])
    except Exception:  # noqa: BLE001  (the client raises it)
        return {"error": traceback.format_exc()}
    gc.collect()
    gc.freeze()
    return {"error": None}


def _check_single_thread() -> None:
    """Refuse to fork with threads: a lock that one of them holds would stay locked in the child for ever."""
    native = Path("/proc/self/task")
    count = len(list(native.iterdir())) if native.is_dir() else threading.active_count()
    if count != 1:
        msg = f"Expected one thread in the warm process, found {count}."
        raise RuntimeError(msg)


def _fork(request: Mapping[str, Any], replies: IO[str]) -> dict[str, Any]:
    """Run a request in a child; wait for its end, or bring it about."""
    _found(request["task"])
    _check_single_thread()
    # Pipes, not files: they work in a child whose disk is full, and their end is the end of the process.
    answer, to_answer = os.pipe()
    log, to_log = os.pipe()
    pid = os.fork()
    if pid == 0:
        for handle in (answer, log, replies.fileno()):
            os.close(handle)
        _be_child(request, to_answer, to_log)
    for handle in (to_answer, to_log):
        os.close(handle)
    received = {answer: bytearray(), log: bytearray()}
    running = set(received)
    began = time.monotonic()
    deadline = began + request["limit"]
    hung = False
    while running:
        ready, _, _ = select.select(list(running), [], [], None if hung else max(deadline - time.monotonic(), 0.0))
        for handle in ready:
            part = os.read(handle, 1 << 16)
            if handle == answer and part and not received[answer]:
                began = time.monotonic()  # the first byte says that the function begins
            received[handle] += part
            if not part:
                running.discard(handle)
        if not ready and not hung:
            os.kill(pid, signal.SIGKILL)
            hung = True
    _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - began
    for handle in received:
        os.close(handle)
    code = os.waitstatus_to_exitcode(status)
    found = json.loads(received[answer][1:]) if code == 0 else {"value": None, "points": []}
    return {"status": code, "seconds": seconds, "hung": hung, "log": received[log].decode(errors="replace"), **found}


def _be_child(request: Mapping[str, Any], to_answer: int, to_log: int) -> None:
    """Call the function of a request; never return."""
    status = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((nothing, 0), (to_log, 1), (to_log, 2)):
            os.dup2(old, new)
        os.close(nothing)
        os.close(to_log)
        os.chdir(request["cwd"])
        logging.root.handlers.clear()  # a library that logged in the zygote may have put one there
        status = _perform(request, to_answer)
    except BaseException:  # noqa: BLE001  (whatever it is, the child must not go on as a zygote)
        traceback.print_exc()
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _perform(request: Mapping[str, Any], to_answer: int) -> int:
    """Call the function, answer, and return the exit status."""
    function = _found(request["task"])
    full = request["full_at"]
    points = CrashPoints(
        at=request["kill_at"] or full,
        act=kill_this_process if full is None else partial(fill_the_disk, request["room"]),
        also=request["also"],
    )
    os.write(to_answer, b"!")
    try:
        if full == "start":
            fill_the_disk(request["room"])
        if request["kill_after"] is not None:
            # A timer of the kernel comes in time on a busy machine, where the zygote would not wake up. The signal's
            # default action is that of SIGKILL: no handler runs, nothing is flushed.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, max(request["kill_after"], 1e-6))
        with points if request["points"] else nullcontext():
            value = function(**request["arguments"])
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception:  # noqa: BLE001  (as the interpreter does)
        traceback.print_exc()
        return 1
    with os.fdopen(to_answer, "w") as answer:
        json.dump({"value": value, "points": points.seen}, answer)
    return 0


if __name__ == "__main__":
    _serve()
