"""Processes of a federation: what each keeps to, and a whole federation on this machine, which ends with its block.

A process calls no other host than it has to, and has folder and port for itself. `main` runs the server or a node; who
started it reads in its log why it ended.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zetadp.base.storage import write_json
from zetadp.base.validation import UserError
from zetadp.core.plan import Plan
from zetadp.federation.certificates import make_credentials
from zetadp.federation.participant import Participant, make_roster
from zetadp.federation.settings import HospitalSettings, ServerSettings

if TYPE_CHECKING:
    # Started by name; a rule that starts them depends on their code.
    import zetadp.federation.node
    import zetadp.federation.server  # noqa: F401

logger = logging.getLogger("zetadp.federation.launcher")  # not __main__, as it is called

FLOWER = ("1.41", "1.42")
"""Versions of Flower that were tried."""
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
LIBRARY = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"
SERVER = "server"
PROGRAMS = "zetadp.federation.launcher"
"""This module, which runs `SERVE` and `ANSWER`."""
SERVE = "zetadp.federation.server:serve"
ANSWER = "zetadp.federation.node:run_until_stopped"
LINE = re.compile(r"^\S+ \S+ ([A-Z]+) zetadp\S*: (.*)$", re.MULTILINE)
"""Level and text of what this package logs."""
LAST_WORDS = re.compile(r"^\S+ \S+ CRITICAL zetadp\S*: (.*)", re.MULTILINE | re.DOTALL)


def check_flower() -> None:
    """Raise a `UserError` if the version of Flower was not tried, before anything of it is imported.

    `zetadp.federation.superlink` and `zetadp.federation.node` use insides of Flower, for which it
    guarantees nothing.
    """
    if (found := version("flwr")).rpartition(".")[0] not in FLOWER:
        raise UserError(
            f"A federation needs Flower {' or '.join(FLOWER)}, found {found}. Run: pip install zetadp[federation]"
        )


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


class LocalFederation:
    """The server and the nodes of a plan on the loopback interface, over TLS and with keys.

    Parameters
    ----------
    folder
        For the plan, new keys, settings and logs. Patients' ledgers lie where the nodes' settings say.
    plan
        The plan.
    idle_seconds
        How long an idle node waits before it looks for a message again.

    Attributes
    ----------
    names
        Names of the nodes.
    credentials, roster
        Certificates and keys of all, and with masked sums the file of the roster.
    command
        Command line of a process, without the program and its arguments.
    """

    def __init__(self, folder: Path, plan: Plan, *, idle_seconds: float = 0.5) -> None:
        self.folder, self.plan, self.idle_seconds = folder.resolve(), plan, idle_seconds
        self.names = [node.name for node in plan.nodes]
        plan.write(self.folder / "plan.json")
        self.credentials = make_credentials(self.folder / "keys", self.names)
        self.roster = make_roster(plan, self.credentials)
        self.port = free_port()
        self.command = [sys.executable, "-m", PROGRAMS]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        # Where in its log a process began, and how far the log was read.
        self._begun: dict[str, int] = {}
        self._read: dict[str, int] = {}

    def __enter__(self) -> Self:
        check_flower()
        # Nobody writes to it: a process that finds its other end closed was started by one that is gone.
        self._life, self._own_end = os.pipe()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(*self._running)
        os.close(self._life)
        os.close(self._own_end)

    def hospital(self, name: str, **more: Any) -> HospitalSettings:  # noqa: ANN401  (each setting has a type of its own)
        """Return the settings of a node."""
        return HospitalSettings(name=name, plan=self.folder / "plan.json", roster=self.roster, **more)

    def server(self, **more: Any) -> ServerSettings:  # noqa: ANN401  (fields of the settings)
        """Return the settings of the server for one training."""
        keys = {name: self.credentials.node(name)[0] for name in self.names}
        return ServerSettings(plan=self.folder / "plan.json", keys=keys, roster=self.roster, **more)

    def start_node(self, settings: HospitalSettings, who: str) -> None:
        """Approve the plan in a name and start a node; it joins when its patients are checked and prepared."""
        path, key = self.folder / f"{settings.name}.json", self.credentials.node(settings.name)[1]
        write_json(path, asdict(settings))
        Participant.read(settings, key).approve(who)
        where = {"server": f"{LOOPBACK}:{self.port}", "authority": self.credentials.authority, "key": key}
        self._start(settings.name, ANSWER, settings=path, **where, idle_seconds=self.idle_seconds)

    def begin(self, settings: ServerSettings) -> None:
        """Start the server of one training."""
        path = self.folder / f"{SERVER}.json"
        write_json(path, asdict(settings))
        where = {"credentials": self.credentials.folder, "host": LOOPBACK, "port": self.port}
        self._start(SERVER, SERVE, settings=path, **where)

    def wait(self, say: Callable[[str], None] = logger.debug) -> None:
        """Wait until the training is over; ``say`` takes what the server tells, a line each.

        Raises
        ------
        UserError
            If the training failed, or a node ended by itself.
        """
        running = True
        while running:
            time.sleep(0.1)
            running = self.runs(SERVER)
            for name in self._running if running else ():
                if not self.runs(name) and name != SERVER:
                    raise UserError(self._last_words(name))
            for level, text in self.news(SERVER):
                if level not in {"ERROR", "CRITICAL"}:
                    say(text)
        if self._running.pop(SERVER).returncode:
            raise UserError(self._last_words(SERVER))

    def run(self, settings: ServerSettings, say: Callable[[str], None] = logger.debug) -> None:
        """Run a training to its end; ``say`` takes what the server tells, a line each."""
        self.begin(settings)
        self.wait(say)

    def _start(self, name: str, program: str, **arguments: object) -> None:
        # The library that runs here is the one that is to run there, also where it is not installed.
        path = os.pathsep.join(filter(None, [str(LIBRARY), os.environ.get("PYTHONPATH", "")]))
        here = {"FLWR_HOME": str(self.folder / "flower"), "NO_PROXY": LOOPBACK, "no_proxy": LOOPBACK}
        log = self.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch(mode=0o600)  # its texts must stay at the site
        self._begun[name] = self._read[name] = log.stat().st_size
        with log.open("ab") as output:
            self._running[name] = subprocess.Popen(  # noqa: S603  (this Python, and a module of this package)
                [*self.command, program, json.dumps(arguments, default=str)],
                stdin=self._life,
                stdout=output,
                stderr=output,
                env={**os.environ, **SILENT, **here, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def runs(self, name: str) -> bool:
        """Return whether a process was started and has not ended."""
        return name in self._running and self._running[name].poll() is None

    def kill(self, *names: str) -> None:
        """End processes, and all that they started, at once, as a crash would."""
        for name in names:
            if process := self._running.pop(name, None):
                _send(process, signal.SIGKILL)
                process.wait()

    def stop(self, *names: str, patience: float = 5.0) -> None:
        """Ask processes to end, wait, then end them."""
        for name in names:
            _send(self._running[name], signal.SIGTERM)
        end = time.monotonic() + patience
        while any(self.runs(name) for name in names) and time.monotonic() < end:
            time.sleep(0.05)
        self.kill(*names)

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.folder / "logs" / f"{name}.log"

    def news(self, name: str) -> list[tuple[str, str]]:
        """Return the level and the text of each line that a process has logged since the last call."""
        found = self._logged(name, self._read[name])
        whole = found[: found.rfind(b"\n") + 1]
        self._read[name] += len(whole)
        return LINE.findall(_decoded(whole))

    def _logged(self, name: str, first: int) -> bytes:
        """Return the log of a process from a byte on."""
        with self.log(name).open("rb") as file:
            file.seek(first)
            return file.read()

    def _last_words(self, name: str) -> str:
        text = _decoded(self._logged(name, self._begun[name]))
        if found := LAST_WORDS.search(text):
            return found[1].strip() if name == SERVER else f"{name}: {found[1].strip()}"
        return f"{name} ended by itself. The end of {self.log(name)}:\n{text[-2000:]}"


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _decoded(content: bytes) -> str:
    return content.decode(errors="backslashreplace")


def main() -> None:
    """Run the function that the first argument names, as ``module:function``, with those that the second holds as JSON.

    It ends with the process that started it, which holds the other end of its input. A user's mistake is the last line
    of the log, and gives exit code 1.
    """
    die_with_parent()
    if select.select([sys.stdin], [], [], 0)[0]:
        sys.exit(1)  # the process that started this one ended before
    module, _, function = sys.argv[1].partition(":")
    program = getattr(importlib.import_module(module), function)
    logging.basicConfig(level=logging.INFO, format=FORM, stream=sys.stderr)
    for library in ("httpx", "flwr"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        program(**json.loads(sys.argv[2]))
    except UserError as error:
        logger.critical("%s", error)
        sys.exit(1)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    main()
