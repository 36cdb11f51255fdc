"""A ``python`` that is up at once: its processes are forked from one that has imported the third-party packages.

A workflow calls Snakemake and some twenty scripts, each in a Python of its own. Most of them work for milliseconds,
after they have imported PyTorch, SciPy and their like for seconds. `python` returns the path of a program called like
Python. It hands its arguments, folder, environment and open files to a process that waits with those packages loaded.
That process forks a child for each call. The child runs a script or a module as ``__main__``, finds modules on the
``PYTHONPATH`` of its caller, and ends with an exit status or a signal, as the interpreter does. The process that waits
runs nothing itself, so no call sees what another one did. By default nothing of zetadp is loaded before the fork, and
every call imports the library of its own checkout.

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
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

LOADED = (
    *("dp_accounting", "h5py", "nibabel", "pandas", "safetensors.torch", "scipy.optimize", "scipy.stats", "yaml"),
    *("matplotlib.backends.backend_svg", "matplotlib.figure", "torch._dynamo", "torch.func", "torch.nn.functional"),
    *("fastapi", "httpx", "snakemake.cli", "sqlalchemy.orm", "uvicorn"),
)
"""What jobs, Snakemake and Flower take longest to import."""

# Forking is safe from a process with one thread alone.
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

CLIENT = """#!{python} -IS
import marshal, os, signal, socket, sys
arguments = sys.argv[1:]
if not arguments or not (arguments[0] == "-m" or arguments[0].endswith(".py")):
    os.execv({python!r}, [{python!r}, *arguments])
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
content = marshal.dumps((arguments, os.getcwd(), dict(os.environ)))
socket.send_fds(line, [len(content).to_bytes(8, "big")], [0, 1, 2])
line.sendall(content)
child = int.from_bytes(line.recv(8), "big")
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(child, number))
status = int.from_bytes(line.recv(8), "big", signed=True)
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@cache
def python(loaded: tuple[str, ...] = LOADED, path: str = "") -> str:
    """Return the path of the program; the first call in a test process starts what it is forked from.

    Parameters
    ----------
    loaded
        Modules, and scripts by their paths, that are imported before the fork.
    path
        Where they find modules of their own, as ``PYTHONPATH`` says it.
    """
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    address, program = Path(folder.name) / "socket", Path(folder.name) / "python"
    program.write_text(CLIENT.format(python=sys.executable, address=str(address)))
    program.chmod(0o700)
    server = subprocess.Popen(
        [sys.executable, __file__, str(address), str(program), *loaded],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
    )
    assert server.stdout is not None
    if server.stdout.readline() != b"ready\n":
        return sys.executable  # a package has started a thread here, beside which nothing can be forked safely

    def end() -> None:
        server.communicate()  # it ends with its input, and so does all that it started
        folder.cleanup()

    atexit.register(end)
    return str(program)


def _serve(address: str, loaded: Sequence[str]) -> tuple[list[str], str, dict[str, str]]:
    """Fork a child for every caller until standard input ends; return in each child what it was called with."""
    for name in loaded:
        (runpy.run_path if name.endswith(".py") else importlib.import_module)(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a package started a thread"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    ended, wake = os.pipe()
    for handle in (ended, wake):
        os.set_blocking(handle, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: callers get it, too, and pass it on
    callers: dict[socket.socket, int] = {}
    watched = selectors.DefaultSelector()
    for source in (0, listener, ended):
        watched.register(source, selectors.EVENT_READ)
    gc.collect()
    gc.freeze()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        for source in [key.fileobj for key, _ in watched.select()]:
            if source == 0:
                for child in callers.values():
                    _end(child)
                sys.exit(0)
            elif source == ended:
                with suppress(BlockingIOError):
                    os.read(ended, 1 << 16)
                _report(callers, watched)
            elif source is listener:
                caller, _ = listener.accept()
                size, files, _, _ = socket.recv_fds(caller, 8, 3)
                content = bytearray()
                while len(content) < int.from_bytes(size, "big"):
                    content += caller.recv(1 << 20)
                if child := os.fork():
                    callers[caller] = child
                    watched.register(caller, selectors.EVENT_READ)
                    for handle in files:
                        os.close(handle)
                    caller.sendall(child.to_bytes(8, "big"))
                    continue
                os.setsid()
                for number, handle in enumerate(files):
                    os.dup2(handle, number)
                    os.close(handle)
                watched.close()
                for each in (listener, caller, *callers):
                    each.close()
                signal.set_wakeup_fd(-1)
                for handle in (ended, wake):
                    os.close(handle)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                return marshal.loads(content)
            elif source in callers:  # that has gone
                _end(callers[source])
                watched.unregister(source)
                del callers[source]
                source.close()


def _end(child: int) -> None:
    """Kill a child and what it started."""
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            end(child, signal.SIGKILL)


def _report(callers: dict[socket.socket, int], watched: selectors.BaseSelector) -> None:
    """Tell callers how their children have ended."""
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            for caller in [caller for caller, child in callers.items() if child == found[0]]:
                with suppress(OSError):
                    caller.sendall(os.waitstatus_to_exitcode(found[1]).to_bytes(8, "big", signed=True))
                watched.unregister(caller)
                del callers[caller]
                caller.close()


def _become(program: str, path: list[str], arguments: list[str], folder: str, environment: dict[str, str]) -> Any:
    """Go on as Python does that is called so."""
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
    importlib.invalidate_caches()
    module = arguments[0] == "-m"
    sys.argv[:] = arguments[module:]
    own = "" if module else str(Path(arguments[0]).parent.resolve())
    sys.path[:] = [own, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *path]
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
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


if __name__ == "__main__":
    _address, _program, *_loaded = sys.argv[1:]
    _path = sys.path[1:]
    _called = _serve(_address, _loaded)
    _exit_after(lambda: _become(_program, _path, *_called))
