"""A whole federation on this machine: its processes are the commands of server and nodes, and end with its block."""

from __future__ import annotations

import logging
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zetadp.base.storage import write_json
from zetadp.base.validation import UserError
from zetadp.hospitals.certificates import make_credentials
from zetadp.hospitals.participant import Participant, make_roster
from zetadp.hospitals.settings import HospitalSettings, ServerSettings
from zetadp.training.plan import Plan

if TYPE_CHECKING:
    # What the commands run; a rule that starts them depends on their code.
    import zetadp.hospitals.node
    import zetadp.hospitals.server  # noqa: F401
    from zetadp.base.runfolder import RunFolder
    from zetadp.training.checkpoint import RunFiles

logger = logging.getLogger(__name__)

LIBRARY = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"
SERVER = "server"
PROGRAM = "zetadp.hospitals.launcher"
"""This module, which runs a command."""
STAMP = re.compile(r"^\S+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) ")
"""Time and level at the beginning of a log line."""
FAILED = "zetadp: "
"""Beginning of the message of a command that fails."""


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
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class LocalFederation:
    """The server and the nodes of a plan on the loopback interface, over TLS and with keys.

    Parameters
    ----------
    folder
        For the plan, new keys, settings and logs. The nodes' settings contain the folders of patients' ledgers.
    plan
        The plan.
    idle_seconds
        Seconds between two requests of an idle node for a message.

    Attributes
    ----------
    names
        Names of the nodes.
    credentials, terms
        Certificates and keys of all, and the file of the plan, or with masked sums of the roster.
    command
        Command line of a process, without the program and its arguments.
    """

    def __init__(self, folder: Path, plan: Plan, *, idle_seconds: float = 0.5) -> None:
        self.folder, self.plan, self.idle_seconds = folder.resolve(), plan, idle_seconds
        self.names = [node.name for node in plan.nodes]
        plan.write(self.folder / "plan.json")
        self.credentials = make_credentials(self.folder / "keys", self.names)
        self.terms = make_roster(plan, self.credentials) or self.folder / "plan.json"
        self.port = free_port()
        self.command = [sys.executable, "-m", PROGRAM]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._positions: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(*self._running)

    def hospital(self, name: str, **settings: Any) -> HospitalSettings:  # noqa: ANN401  (each setting has a type of its own)
        """Return the settings of a node."""
        return HospitalSettings(name=name, plan=self.terms, **settings)

    def server(self, run: RunFolder, files: RunFiles, **settings: Any) -> ServerSettings:  # noqa: ANN401  (fields of the settings)
        """Return the settings of the server for one training, by the run's folder and the files that survive it."""
        keys = {} if self.plan.masked else {name: self.credentials.node(name)[0] for name in self.names}
        return ServerSettings(
            plan=self.terms,
            keys=keys,
            model=run.model.resolve(),
            history=run.history.resolve(),
            ledger=run.ledger.resolve(),
            ledger_file=files.ledger.resolve(),
            checkpoint=files.checkpoint.resolve(),
            once=files.once,
            cap=files.cap,
            series=files.series,
            data=files.data,
            **settings,
        )

    def start_node(self, settings: HospitalSettings) -> None:
        """Approve the plan and start a node; it joins when its patients are checked and prepared."""
        path, key = self.folder / f"{settings.name}.json", self.credentials.node(settings.name)[1]
        write_json(path, asdict(settings))
        participant = Participant.read(settings, key)
        # All patients are on this machine, and the person who starts its processes is responsible for them.
        participant.approve("who started this federation", participant.digest)
        options = ["--server", f"{LOOPBACK}:{self.port}", "--authority", self.credentials.authority, "--key", key]
        self._start(settings.name, "node", path, *options, "--idle-seconds", self.idle_seconds)

    def begin(self, settings: ServerSettings) -> None:
        """Start the server of one training."""
        path = self.folder / f"{SERVER}.json"
        write_json(path, asdict(settings))
        options = ["--credentials", self.credentials.folder, "--host", LOOPBACK, "--port", self.port]
        self._start(SERVER, "serve", path, *options)

    def wait(self, report: Callable[[str], None] = logger.debug) -> None:
        """Wait until the training is over; ``report`` takes what the server prints, line by line.

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
                    raise UserError(self._error_message(name))
            for line in self.news(SERVER):
                report(line)
        server = self._running.pop(SERVER)
        server.communicate()
        if server.returncode:
            raise UserError(self._error_message(SERVER))

    def run(self, settings: ServerSettings, report: Callable[[str], None] = logger.debug) -> None:
        """Run a training to its end; ``report`` takes what the server prints, line by line."""
        self.begin(settings)
        self.wait(report)

    def _start(self, name: str, command: str, *arguments: object) -> None:
        # The library that runs here is the one that is to run there, also where it is not installed.
        path = os.pathsep.join(filter(None, [str(LIBRARY), os.environ.get("PYTHONPATH", "")]))
        environment = {"FLWR_HOME": str(self.folder / "flower"), "NO_PROXY": LOOPBACK, "no_proxy": LOOPBACK}
        self.kill(name)  # what is left of an earlier one
        log, errors = self.log(name), self._errors(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        for file in (log, errors):
            file.touch(mode=0o600)  # its texts must stay at the site
        self._positions[name] = 0
        with log.open("wb") as output, errors.open("wb") as error_output:
            self._running[name] = subprocess.Popen(  # noqa: S603  (this Python, and a module of this package)
                [*self.command, "federation", command, *map(str, arguments)],
                # Nobody writes to it: it ends with this process, however that happens.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=error_output,
                env={**os.environ, **environment, "PYTHONPATH": path},
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
                process.communicate()

    def stop(self, *names: str, patience: float = 5.0) -> None:
        """Ask processes to end, wait, then end them."""
        for name in names:
            _send(self._running[name], signal.SIGTERM)
        end = time.monotonic() + patience
        while any(self.runs(name) for name in names) and time.monotonic() < end:
            time.sleep(0.05)
        self.kill(*names)

    def log(self, name: str) -> Path:
        """Return the file of what a process has printed since its start."""
        return self.folder / "logs" / f"{name}.log"

    def _errors(self, name: str) -> Path:
        return self.log(name).with_suffix(".err")

    def news(self, name: str) -> list[str]:
        """Return each line that a process has printed since the last call, without time and level."""
        with self.log(name).open("rb") as file:
            file.seek(self._positions[name])
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._positions[name] += len(complete)
        return [STAMP.sub("", line) for line in complete.decode(errors="backslashreplace").splitlines()]

    def _error_message(self, name: str) -> str:
        errors = self._errors(name)
        text = errors.read_text(encoding="utf-8", errors="backslashreplace")
        _, failed, message = f"\n{text}".partition(f"\n{FAILED}")
        if failed:
            return message.strip() if name == SERVER else f"{name}: {message.strip()}"
        return f"{name} ended by itself. The end of {errors}:\n{text[-4000:]}"


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def main() -> None:
    """Run a command of zetadp, which ends with the process that started it and holds the other end of its input."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    runpy.run_module("zetadp.cli", run_name="__main__", alter_sys=True)


def _end_with_input() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
