"""The processes of a federation on this machine. They end with it, call no other host, own their folder and port.

All are forked from one warm process, the forge: Flower and PyTorch are imported once on a machine, not by each program.
The forge reads one order a line from its standard input, as JSON, and writes the number of the new process. When its
input ends, it and all its children end. What a process says to people, and why it ended, is read from its log.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from zetadp.base.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = Path(__file__).parents[3]
FLOWER = ("1.41", "1.42")
"""Versions of Flower that were tried."""
FORGE = "zetadp.federation.flower.processes"
PROGRAMS = {
    "server": "zetadp.federation.flower.server:serve",
    "node": "zetadp.federation.flower.node:run_until_stopped",
}
"""Functions that the forge runs in processes of their own. It imports their modules once."""
SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""No telemetry, no question for updates, no installation of packages; and no thread that a fork would lose."""
LOCK = "lock"
"""File in a folder in use; it stays there, and means nothing once its lock is gone."""
SET_PARENT_DEATH_SIGNAL = 1
FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LINE = re.compile(r"^\S+ \S+ ([A-Z]+) zetadp\S*: (.*)$", re.MULTILINE)
"""Level and text of what this package logs."""
LAST_WORDS = re.compile(r"^\S+ \S+ CRITICAL zetadp\S*: (.*)", re.MULTILINE | re.DOTALL)
DONE = "done"
"""Line in the log of a process that did what it was for; other threads may still log after it."""

logger = logging.getLogger("zetadp.federation.flower.processes")  # not __main__, as the forge is called


def check_flower() -> None:
    """Raise a `UserError` if the version of Flower was not tried, before anything of it is imported.

    `zetadp.federation.flower.superlink` and `zetadp.federation.flower.node` use insides of Flower, for which it
    guarantees nothing.
    """
    if (found := version("flwr")).rpartition(".")[0] not in FLOWER:
        raise UserError(
            f"A federation needs Flower {' or '.join(FLOWER)}, found {found}. Run: pip install zetadp[federation]"
        )


def silent_environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment for Flower's processes; its own files go to ``home``."""
    # The library that runs here is the one that is to run there, also where it is not installed.
    path = os.pathsep.join(filter(None, [str(LIBRARY), os.environ.get("PYTHONPATH", "")]))
    return {
        **os.environ,
        **SILENT,
        "PYTHONPATH": path,
        "FLWR_HOME": str(home),
        "PYTHONUNBUFFERED": "1",
        **more,
    }


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """End the block on SIGTERM as on Ctrl-C, so that its clean-up runs; neither counts as an error."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def folder_in_use(folder: Path, option: str) -> Iterator[None]:
    """Create a folder if needed, and lock it against other processes until the block or this process ends.

    Parameters
    ----------
    folder
        The folder.
    option
        How the user names another one.

    Raises
    ------
    UserError
        If another process uses the folder, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("ab")
    except OSError as error:
        raise UserError(
            f"Cannot write the folder {folder}: {error.strerror}. Mend it, or name another ({option})."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            busy = isinstance(error, BlockingIOError)
            why = "is in use by another process of a federation" if busy else f"cannot be locked: {error.strerror}"
            raise UserError(f"The folder {folder} {why}. End that process, or name another ({option}).") from error
        yield


def require_free_port(host: str, port: int) -> None:
    """Raise a `UserError` if this machine cannot listen at a port."""
    try:
        if not port:
            raise OverflowError("it stands for any port")
        with socket.socket() as probe:
            # As the server itself will bind: connections of an earlier one that are still closing do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        raise UserError(
            f"Cannot listen at port {port} of {host}: {getattr(error, 'strerror', error)}. If another program listens "
            "there, perhaps another federation, end it; or name another port (--port)."
        ) from error


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """Processes with a log each, forked from one warm process; all of them end with the block, or with this process.

    Parameters
    ----------
    folder
        For the logs.
    environment
        Of all processes.
    forge
        Module of the warm process.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], forge: str = FORGE) -> None:
        self.folder, self.environment, self.forge = folder, dict(environment), forge
        self._running: dict[str, int] = {}
        self._forge: subprocess.Popen[bytes] | None = None
        # Where in its log a process began, and how far the log was read.
        self._begun: dict[str, int] = {}
        self._read: dict[str, int] = {}

    def start(self, name: str, program: str, **arguments: object) -> None:
        """Start one of `PROGRAMS` with arguments for it; what it prints goes to ``<name>.log``.

        Raises
        ------
        UserError
            If the forge does not start.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._forge is None:
            self._begin("forge")
            with self.log("forge").open("ab") as log:
                self._forge = subprocess.Popen(  # noqa: S603  (this Python, and a module of this package)
                    [sys.executable, "-m", self.forge],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self.environment,
                    start_new_session=True,
                )
        assert self._forge.stdin is not None
        assert self._forge.stdout is not None
        self._begin(name)
        order = {"name": name, "program": program, "arguments": arguments, "log": self.log(name)}
        with suppress(BrokenPipeError):
            self._forge.stdin.write(f"{json.dumps(order, default=str)}\n".encode())
            self._forge.stdin.flush()
        number = self._forge.stdout.readline()
        if not number:
            raise UserError(self._last_words("forge"))
        self._running[name] = int(number)

    def _begin(self, name: str) -> None:
        self.log(name).touch(mode=0o600)  # its texts must stay at the site
        self._begun[name] = self._read[name] = self.log(name).stat().st_size

    def news(self, name: str) -> list[tuple[str, str]]:
        """Return the level and the text of each line that a process has logged since the last call."""
        found = self._content(name, self._read[name])
        whole = found[: found.rfind(b"\n") + 1]
        self._read[name] += len(whole)
        return LINE.findall(_decoded(whole))

    def check(self, *names: str) -> None:
        """Raise a `UserError` if a process, of all or of those named, has ended by itself, with the reason if known."""
        for name in names or list(self._running):
            if not self.runs(name):
                raise UserError(self._last_words(name))

    def finish(self, name: str) -> None:
        """Take note that a process has ended; raise a `UserError` with the reason unless it did what it was for."""
        if DONE not in self._text(name, self._begun[name]).split("\n"):
            self.check(name)
        self._running.pop(name, None)

    def runs(self, name: str) -> bool:
        """Return whether a process exists."""
        try:
            os.kill(self._running[name], 0)
        except (KeyError, ProcessLookupError):
            return False
        return True

    def names(self) -> list[str]:
        """Return the names of the processes that were started and not stopped."""
        return list(self._running)

    def kill(self, *names: str) -> None:
        """End processes, and all that they started, at once, as a crash would."""
        for name in names:
            if name in self._running:
                self._send(name, signal.SIGKILL)
                while self.runs(name):
                    time.sleep(0.01)
                del self._running[name]

    def stop(self, *names: str, patience: float = 5.0) -> None:
        """Ask processes to end, wait, then end them."""
        for name in names:
            self._send(name, signal.SIGTERM)
        end = time.monotonic() + patience
        while any(self.runs(name) for name in names) and time.monotonic() < end:
            time.sleep(0.05)
        self.kill(*names)

    def _send(self, name: str, number: signal.Signals) -> None:
        with suppress(KeyError, ProcessLookupError):
            os.killpg(self._running[name], number)

    def close(self) -> None:
        """End everything."""
        self.kill(*self._running)
        if self._forge is not None:
            self._forge.kill()
            self._forge.communicate()
            self._forge = None

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.folder / f"{name}.log"

    def _content(self, name: str, first: int) -> bytes:
        """Return the log of a process from a byte on."""
        with self.log(name).open("rb") as file:
            file.seek(first)
            return file.read()

    def _text(self, name: str, first: int) -> str:
        return _decoded(self._content(name, first))

    def _last_words(self, name: str) -> str:
        text = self._text(name, self._begun[name])
        found = LAST_WORDS.search(text)
        return found[1].strip() if found else f"{name} ended by itself. The end of {self.log(name)}:\n{text[-2000:]}"


def _decoded(content: bytes) -> str:
    return content.decode(errors="backslashreplace")


def main() -> None:
    """Run the forge: fork what is ordered until the input ends."""
    die_with_parent()
    programs = {}
    for name, place in PROGRAMS.items():
        module, _, function = place.partition(":")
        programs[name] = getattr(importlib.import_module(module), function)
    # The kernel takes note of children that end; each child has this set back for its own children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        order = json.loads(line)
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork() or _obey(order, programs[order["program"]])
        os.write(sys.stdout.fileno(), f"{process}\n".encode())


def _obey(order: Mapping[str, Any], program: Callable[..., None]) -> NoReturn:
    """Run the program of an order in this process, a session of its own that writes its own log, and end it."""
    die_with_parent()
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    logging.basicConfig(level=logging.INFO, format=FORM, stream=sys.stderr)
    for library in ("httpx", "flwr"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        program(**order["arguments"])
        sys.stdout.write(f"{DONE}\n")
    except UserError as error:
        logger.critical("%s: %s", order["name"], error)
    except BaseException:  # noqa: BLE001  (a child must not go on as its parent)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    main()
