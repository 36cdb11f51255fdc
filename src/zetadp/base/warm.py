"""A ``python`` that starts at once: its processes are forked from a process that has imported third-party packages.

A workflow runs hundreds of scripts, each in a Python of its own. Most of them work for a moment, after they have
imported PyTorch, pandas and their like for seconds. `start_python` returns the path of a program that is called like
Python. It hands its arguments, folder, environment and open files to a process that waits with those packages loaded.
That process forks a child for each call. The child runs a script or a module as ``__main__``, finds modules on the
``PYTHONPATH`` of its caller, and ends with an exit status or a signal, as the interpreter does. The waiting process
runs nothing itself, so calls do not affect each other, even if a child dies. Nothing of zetadp is loaded before the
fork: every call imports the library of its own checkout.

The program runs Python itself whenever there is nothing to fork from: before the packages are loaded, after the waiting
process has ended, or where forking is not safe, because a package has started a thread.

A warm Python does not notice that a script forgot to import a package. The smoke scenario and the tests of environments
and clusters call Python itself, and notice.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import marshal
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

PROGRAM = "warm-python"
"""File name of the program."""

# Forking is safe from a process with one thread alone.
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

CLIENT = """
import marshal, os, signal, socket, sys
arguments = sys.argv[1:]

def run_python():
    os.execv({python!r}, [{python!r}, *arguments])

if not arguments or not (arguments[0] == "-m" or arguments[0].endswith(".py")):
    run_python()
line = socket.socket(socket.AF_UNIX)
try:
    line.connect({address!r})
    content = marshal.dumps((arguments, os.getcwd(), dict(os.environ)))
    socket.send_fds(line, [len(content).to_bytes(8, "big")], [0, 1, 2])
    line.sendall(content)
    answer = line.recv(8)
except OSError:
    answer = b""
if not answer:
    run_python()
child = int.from_bytes(answer, "big")
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(child, number))
try:
    answer = line.recv(8)
except OSError:
    answer = b""
if not answer:
    sys.stderr.write("The process that this one was forked from has died, so this one was ended.\\n")
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:
        pass
    os._exit(1)
status = int.from_bytes(answer, "big", signed=True)
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


def start_python(loaded: Sequence[str], path: str = "", *, wait: bool = False) -> str:
    """Start the waiting process, which ends with this one; return the path of the program.

    Parameters
    ----------
    loaded
        Modules, and scripts by their paths, to import before the fork. A module that is not installed is left out.
    path
        Folders of further modules, as in ``PYTHONPATH``.
    wait
        Whether to wait until they are imported. If not, calls before that run Python itself.

    Returns
    -------
    The path; ``sys.executable`` on systems other than Linux, where no program can be run from temporary folders, and
    where this process was itself started by such a program.
    """
    if sys.platform != "linux" or Path(sys.executable).name == PROGRAM:
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    program, client = folder / PROGRAM, folder / "client.py"
    client.write_text(CLIENT.format(python=sys.executable, address=str(folder / "socket")), encoding="utf-8")
    command = shlex.join([sys.executable, "-IS", str(client)])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    if not os.access(program, os.X_OK):  # as in a file system that runs no programs
        shutil.rmtree(folder)
        return sys.executable
    server = subprocess.Popen(  # noqa: S603  (this file, with modules that the caller names)
        [sys.executable, "-P", __file__, str(program), *loaded],  # -P: no module of this folder passes for a package
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if wait else subprocess.DEVNULL,
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
        start_new_session=True,  # a terminal that interrupts or ends its programs leaves this process to its caller
    )

    def end() -> None:
        server.communicate()  # it ends with its input, together with its children
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    if wait and server.stdout is not None:
        server.stdout.readline()
    return str(program)


def _serve(program: Path, loaded: Sequence[str]) -> tuple[list[str], str, dict[str, str]]:
    """Fork a child for every caller until standard input ends; return in each child the arguments of its call."""
    for name in loaded:
        with suppress(ModuleNotFoundError):
            (runpy.run_path if name.endswith(".py") else importlib.import_module)(name)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        sys.exit("A package started a thread, so nothing can be forked safely.")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(program.with_name("socket")))
    listener.listen(64)
    ended, wake = os.pipe()
    for handle in (ended, wake):
        os.set_blocking(handle, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    callers: dict[socket.socket, int] = {}
    watched = selectors.DefaultSelector()
    for source in (0, listener, ended):
        watched.register(source, selectors.EVENT_READ)
    gc.collect()
    gc.freeze()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        for source in [cast("socket.socket | int", key.fileobj) for key, _ in watched.select()]:
            if source == 0:
                for child in callers.values():
                    _end(child)
                shutil.rmtree(program.parent, ignore_errors=True)  # a caller that was killed has left it
                sys.exit(0)
            elif source == ended:
                with suppress(BlockingIOError):
                    os.read(ended, 1 << 16)
                _report(callers, watched)
            elif source is listener:
                caller, _ = listener.accept()
                if (received := _receive(caller)) is None:
                    continue
                files, content = received
                if child := os.fork():
                    callers[caller] = child
                    watched.register(caller, selectors.EVENT_READ)
                    for handle in files:
                        os.close(handle)
                    with suppress(OSError):
                        caller.sendall(child.to_bytes(8, "big"))
                    continue
                watched.close()
                for connection in (listener, caller, *callers):
                    connection.close()
                signal.set_wakeup_fd(-1)
                for handle in (ended, wake):
                    os.close(handle)
                _become_program(files)
                called: tuple[list[str], str, dict[str, str]] = marshal.loads(content)  # noqa: S302  (a caller of this user)
                return called
            elif source in callers:  # a caller that has gone
                _end(callers[source])
                watched.unregister(source)
                del callers[source]
                source.close()


def _receive(caller: socket.socket) -> tuple[list[int], bytes] | None:
    """Return the open files and the content of a call; None if the caller was killed before it had sent all of it."""
    size, files, content = b"", list[int](), bytearray()
    with suppress(OSError):
        size, files, _, _ = socket.recv_fds(caller, 8, 3)
        while len(content) < int.from_bytes(size, "big") and (part := caller.recv(1 << 20)):
            content += part
    if len(files) == 3 and len(content) == int.from_bytes(size, "big"):
        return files, bytes(content)
    for handle in files:
        os.close(handle)
    caller.close()
    return None


def _become_program(files: Sequence[int]) -> None:
    """Give a child a session of its own, the standard files of its caller, and the signals of a new interpreter."""
    os.setsid()
    for number, handle in enumerate(files):
        os.dup2(handle, number)
        os.close(handle)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(child: int) -> None:
    """Kill a child and its own children."""
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            end(child, signal.SIGKILL)


def _report(callers: dict[socket.socket, int], watched: selectors.BaseSelector) -> None:
    """Send callers the exit status of their children."""
    with suppress(ChildProcessError):
        while (finished := os.waitpid(-1, os.WNOHANG))[0]:
            for caller in [caller for caller, child in callers.items() if child == finished[0]]:
                with suppress(OSError):
                    caller.sendall(os.waitstatus_to_exitcode(finished[1]).to_bytes(8, "big", signed=True))
                watched.unregister(caller)
                del callers[caller]
                caller.close()


def _run_program(program: str, path: list[str], arguments: list[str], folder: str, environment: dict[str, str]) -> Any:  # noqa: ANN401  (what runpy returns)
    """Run a script or module as Python does with these arguments."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.executable = program
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    through = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.stdout.reconfigure(write_through=through)
    tempfile.tempdir = None
    for package in ("numpy.random", "torch"):  # Python's generator does so itself after a fork
        if package in sys.modules:
            sys.modules[package].seed()
    importlib.invalidate_caches()
    module = arguments[0] == "-m"
    sys.argv[:] = arguments[module:]
    script_folder = "" if module else str(Path(arguments[0]).parent.resolve())
    sys.path[:] = [script_folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *path]
    sys.modules.pop("sitecustomize", None)
    with suppress(ImportError):
        importlib.import_module("sitecustomize")
    if module:
        return runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    return runpy.run_path(arguments[0], run_name="__main__")


def _exit_after(action: Callable[[], object]) -> NoReturn:
    """End this process as Python does after a program, but leave memory to the kernel, which is quicker."""
    status = 1
    try:
        action()
        status = 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            status = error.code or 0
        else:
            sys.stderr.write(f"{error.code}\n")
    except BaseException as error:  # noqa: BLE001  (whatever it is, the interpreter would show it)
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


if __name__ == "__main__":
    _program, *_loaded = sys.argv[1:]
    _path = sys.path[:]
    _called = _serve(Path(_program), _loaded)
    _exit_after(lambda: _run_program(_program, _path, *_called))
