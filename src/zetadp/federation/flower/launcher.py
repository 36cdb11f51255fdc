"""A whole federation on this machine: server and nodes as processes that always end with the block."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zetadp.base.storage import write_json
from zetadp.base.validation import UserError
from zetadp.core.plan import Plan
from zetadp.federation.flower.certificates import make_credentials
from zetadp.federation.flower.participant import Participant, make_roster
from zetadp.federation.flower.processes import SILENT, check_flower, free_port
from zetadp.federation.flower.settings import HospitalSettings, ServerSettings

if TYPE_CHECKING:
    # Started by name; a rule that starts them depends on their code.
    import zetadp.federation.flower.node
    import zetadp.federation.flower.server  # noqa: F401

logger = logging.getLogger(__name__)

LIBRARY = Path(__file__).parents[3]
LOOPBACK = "127.0.0.1"
SERVER = "server"
PROGRAMS = "zetadp.federation.flower.processes"
"""Module that runs `SERVE` and `ANSWER`."""
SERVE = "zetadp.federation.flower.server:serve"
ANSWER = "zetadp.federation.flower.node:run_until_stopped"
LINE = re.compile(r"^\S+ \S+ ([A-Z]+) zetadp\S*: (.*)$", re.MULTILINE)
"""Level and text of what this package logs."""
LAST_WORDS = re.compile(r"^\S+ \S+ CRITICAL zetadp\S*: (.*)", re.MULTILINE | re.DOTALL)


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
