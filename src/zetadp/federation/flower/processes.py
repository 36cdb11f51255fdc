"""The processes of a site as their parent sees them. They end with it, call no other host, own their folder and port.

What they run is in `zetadp.federation.flower.programs`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.base.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LIBRARY = Path(__file__).parents[3]
FORGE = "zetadp.federation.flower.programs"

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
HOSTS = ("0.0.0.0", "127.0.0.1", "localhost")  # noqa: S104  (nodes are on other machines)
"""Addresses at which the server's own processes reach it, too: they use the loopback interface."""


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
        except BlockingIOError as error:
            raise UserError(
                f"The folder {folder} is in use by another process of a federation. Wait for that process or end it, "
                f"or name another folder ({option})."
            ) from error
        except OSError as error:
            raise UserError(
                f"Cannot lock {folder / LOCK}: {error.strerror}. Name a folder on a local disk ({option})."
            ) from error
        yield


def require_free_port(host: str, port: int) -> None:
    """Refuse a port at which this machine cannot listen.

    Raises
    ------
    UserError
        If another program listens there, if the port is not permitted, or if the server's own processes could not
        reach the host.
    """
    if host not in HOSTS:
        raise UserError(
            f"Expected the host 0.0.0.0 (all addresses of this machine) or 127.0.0.1, found {host}. The server's own "
            "processes reach it at 127.0.0.1; keep other networks out with a firewall."
        )
    if not 0 < port < 1 << 16:
        raise UserError(f"Expected a port from 1 to 65535, found {port}.")
    try:
        with socket.socket() as probe:
            # As the server itself will bind: connections of an earlier one that are still closing do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            msg = (
                f"Port {port} of {host} is taken: another program listens there, perhaps another federation. End that "
                "program, or name another port (--port)."
            )
        else:
            msg = f"Cannot listen at port {port} of {host}: {error.strerror}. Name another port (--port)."
        raise UserError(msg) from error


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
        self._unread, self._said = b"", list[tuple[str, str, str]]()
        self._last_words: dict[str, str] = {}

    def start(self, name: str, program: str, arguments: Sequence[str]) -> None:
        """Start a program of the forge; what it prints goes to ``<name>.log``.

        Raises
        ------
        UserError
            If the forge does not start.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._forge is None:
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
        order = {"name": name, "program": program, "arguments": list(arguments), "log": str(self.log(name))}
        with suppress(BrokenPipeError):
            self._forge.stdin.write(f"{json.dumps(order)}\n".encode())
            self._forge.stdin.flush()
        self._running.pop(name, None)
        self._last_words.pop(name, None)
        while name not in self._running:
            if not self._read(wait=True):
                raise UserError(self._ended("forge"))

    def _read(self, *, wait: bool = False) -> bool:
        """Take what has come from the forge and its children; return false where nothing more can come."""
        assert self._forge is not None
        assert self._forge.stdout is not None
        while select.select([self._forge.stdout], [], [], None if wait else 0)[0]:
            content = os.read(self._forge.stdout.fileno(), 1 << 16)
            if not content:
                return False
            *lines, self._unread = (self._unread + content).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            wait = wait and not lines
        return True

    def _take(self, news: Mapping[str, Any]) -> None:
        name = news["name"]
        if "started" in news:
            self._running[name] = news["started"]
        elif news["level"] == "CRITICAL":
            self._last_words[name] = news["text"]
        else:
            self._said.append((name, news["level"], news["text"]))

    def news(self) -> list[tuple[str, str, str]]:
        """Return what processes said since the last call: the name of each, the level and the text."""
        if self._forge is not None:
            self._read()
        said, self._said = self._said, []
        return said

    def check(self, *names: str) -> None:
        """Raise a `UserError` if a process, of all or of those named, has ended by itself, with the reason if known."""
        for name in names or list(self._running):
            if not self.runs(name):
                if self._forge is not None:
                    self._read()
                raise UserError(self._last_words.get(name) or self._ended(name))

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

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process and to all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._running[name], number)

    def kill(self, *names: str) -> None:
        """End processes, and all that they started, at once, as a crash would."""
        for name in names:
            if name in self._running:
                self.send(name, signal.SIGKILL)
                while self.runs(name):
                    time.sleep(0.01)
                del self._running[name]

    def stop(self, *names: str, patience: float = 5.0) -> None:
        """Ask processes to end, wait, then end them."""
        for name in names:
            if name in self._running:
                self.send(name, signal.SIGTERM)
        end = time.monotonic() + patience
        while any(self.runs(name) for name in names) and time.monotonic() < end:
            time.sleep(0.05)
        self.kill(*names)

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

    def _ended(self, name: str) -> str:
        text = self.log(name).read_text(errors="replace")
        return f"{name} ended by itself. The end of {self.log(name)}:\n{text[-2000:]}"
