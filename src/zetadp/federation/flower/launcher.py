"""A whole federation on this machine: SuperLink, server and nodes as processes that always end with the block."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import httpx

from zetadp.base.storage import write_json
from zetadp.base.validation import UserError
from zetadp.federation.flower.certificates import Credentials
from zetadp.federation.flower.control import FINISHED, Control, RunState
from zetadp.federation.flower.processes import (
    FORGE,
    Processes,
    folder_in_use,
    free_port,
    require_free_port,
    silent_environment,
)
from zetadp.federation.flower.settings import HospitalSettings, ServerSettings

if TYPE_CHECKING:
    import zetadp.federation.flower.programs  # noqa: F401  (started by name; a rule that starts it depends on its code)

logger = logging.getLogger(__name__)

START_SECONDS = 60.0
LOOPBACK = "127.0.0.1"
RAISED = "ServerApp failed with exception: "
"""How Flower begins the text of an error that ended a run."""


class Federation:
    """SuperLink, server and nodes on the loopback interface, over TLS and with keys.

    Parameters
    ----------
    folder
        For logs, settings, secrets and Flower's own files; while the block runs, for this federation alone. Patients'
        ledgers lie where the nodes' settings say.
    credentials
        Certificates and keys, made for ``127.0.0.1``.
    idle_seconds
        How long an idle node waits before it looks for a message again.
    forge
        Module of the process that all others are forked from.
    host, port
        Where the SuperLink listens. Nodes on other machines need another host than the loopback interface.
    """

    def __init__(
        self,
        folder: Path,
        credentials: Credentials,
        *,
        idle_seconds: float = 0.5,
        forge: str = FORGE,
        host: str = LOOPBACK,
        port: int | None = None,
    ) -> None:
        self.idle_seconds = idle_seconds
        self.folder, self.credentials = folder, credentials
        self.host, self.port = host, port or free_port()
        environment = silent_environment(folder / "flower", NO_PROXY=LOOPBACK, no_proxy=LOOPBACK)
        self.processes = Processes(folder / "logs", environment, forge)
        self._held = ExitStack()

    @property
    def address(self) -> str:
        """Where the SuperLink is reached from this machine."""
        return f"{LOOPBACK}:{self.port}"

    def __enter__(self) -> Self:
        self.credentials.check_server()
        require_free_port(self.host, self.port)
        self._held.enter_context(folder_in_use(self.folder, "--folder"))
        logging.getLogger("httpx").setLevel(logging.WARNING)
        try:
            self.start_server()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop everything: nodes first, so that they sign off."""
        self.processes.stop(*[name for name in self.processes.names() if name not in ("superlink", "server")])
        self.processes.stop("server", "superlink")
        self.processes.close()
        self._held.close()

    def start_server(self) -> None:
        """Start SuperLink and the process in which its apps run, and wait until they answer.

        Runs that a crash left unfinished are stopped: their apps died with it, but nodes would go on waiting for the
        rest of a message that was under way, for as long as the SuperLink takes such a run to be alive.
        """
        certificate, key = self.credentials.server
        arguments = [
            *("--host", self.host, "--port", str(self.port), "--isolation", "process"),
            *("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)),
            *("--ssl-ca-certfile", str(self.credentials.authority), "--enable-supernode-auth"),
            *("--superexec-auth-secret-file", str(_secret(self.folder, "server"))),
            *("--operator-secret-file", str(_secret(self.folder, "operator"))),
            *("--database", str(self.folder / "superlink.db"), "--disable-runtime-dependency-installation"),
        ]
        self.processes.start("superlink", "superlink", arguments)
        with self.control() as control:
            end = time.monotonic() + START_SECONDS
            while not control.ready():
                self.processes.check()
                if time.monotonic() > end:
                    logs = self.folder / "logs"
                    raise UserError(
                        f"The SuperLink gave no answer in {START_SECONDS:g} s. The logs in {logs} say more."
                    )
                time.sleep(0.1)
            control.stop_all()
        arguments = ["--runtime", self.address, "--secret", str(_secret(self.folder, "server"))]
        arguments += ["--root", str(self.credentials.authority)]
        self.processes.start("server", "worker", arguments)

    def control(self) -> Control:
        """Return an operator's connection to the SuperLink of this federation."""
        return Control(self.address, self.credentials.authority, _secret(self.folder, "operator").read_bytes())

    def admit(self, names: Sequence[str]) -> None:
        """Admit nodes by their public keys."""
        with self.control() as control:
            for name in names:
                control.admit(name, self.credentials.node(name)[0].read_bytes())

    def start_node(self, settings: HospitalSettings) -> None:
        """Start a node whose plan is approved; it joins when its patients are checked and prepared."""
        path = self.folder / f"{settings.name}.json"
        write_json(path, asdict(settings))
        key = self.credentials.node(settings.name)[1]
        link = Uplink(self.address, self.credentials.authority, key, self.idle_seconds)
        start_node(self.processes, self.folder, path, settings.name, link)

    def wait_for_nodes(self, names: Sequence[str]) -> None:
        """Wait until nodes are connected, which they are when their patients are read and checked."""
        keys = {self.credentials.node(name)[0].read_bytes().strip() for name in names}
        with self.control() as control:
            while not keys <= {key.strip() for key in control.online()}:
                self.processes.check()
                time.sleep(0.1)

    def begin(self, settings: ServerSettings) -> int:
        """Start a run and return its number."""
        path = self.folder / "server.json"
        settings.write(path)
        with self.control() as control:
            return control.start(path)

    def wait(self, run: int, *, watch: bool = True, say: Callable[[str], None] = logger.debug) -> RunState:
        """Wait until a run is over and return how it ended.

        Parameters
        ----------
        run
            Its number.
        watch
            Whether the end of a process ends the run.
        say
            Called with each line of the server's output.

        Raises
        ------
        UserError
            If the run failed, for instance because all nodes did, or if a watched process ended by itself.
        """
        with self.control() as control:
            while (state := self._state(control, run)) is None or state.status != FINISHED:
                if watch:
                    self.processes.check()
                self._tell(say)
                time.sleep(0.5)
        self._tell(say)
        if state.outcome != "completed":
            raise UserError(f"The run {state.outcome}: {state.details.removeprefix(RAISED)}")
        return state

    def _state(self, control: Control, run: int) -> RunState | None:
        """Return how a run stands; None where a SuperLink that is there gave no answer, as when it is too busy."""
        try:
            return control.state(run)
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and not error.response.is_server_error:
                raise
            self.processes.check("superlink")
            return None

    def run(self, settings: ServerSettings, say: Callable[[str], None] = logger.debug) -> RunState:
        """Run a training to its end; ``say`` takes what happens, a line each."""
        return self.wait(self.begin(settings), say=say)

    def _tell(self, say: Callable[[str], None]) -> None:
        for name, level, text in self.processes.news():
            if name == "server" and level != "ERROR":
                say(text)


class Uplink(NamedTuple):
    """How a node reaches the server.

    Attributes
    ----------
    server
        ``host:port`` of the SuperLink.
    authority
        Certificate that the server's certificate must go back to.
    key
        The node's private key.
    idle_seconds
        How long the node waits before it looks for a message again.
    """

    server: str
    authority: Path
    key: Path
    idle_seconds: float


def start_node(
    processes: Processes,
    folder: Path,
    settings: Path,
    name: str,
    link: Uplink,
) -> None:
    """Start the two processes of a node: one that computes, and one that speaks with the server.

    Parameters
    ----------
    processes
        Where they are watched.
    folder
        For the secret that the two share, and the number that the server gives the node.
    settings
        The hospital's settings file.
    name
        The node's name.
    link
        How it reaches the server.
    """
    port, secret, ready = str(free_port()), str(_secret(folder, name)), folder / f"{name}.ready"
    ready.unlink(missing_ok=True)
    arguments = ["--runtime", f"{LOOPBACK}:{port}", "--secret", secret, "--hospital", str(settings)]
    arguments += ["--key", str(link.key), "--ready", str(ready)]
    processes.start(f"{name}-worker", "worker", arguments)
    arguments = [
        *("--superlink", link.server, "--root-certificates", str(link.authority)),
        *("--auth-supernode-private-key", str(link.key), "--isolation", "process"),
        *("--superexec-auth-secret-file", secret, "--host", LOOPBACK, "--port", port),
        *("--idle-seconds", str(link.idle_seconds), "--memory", str(folder / f"{name}.number")),
        *("--after", str(ready)),
    ]
    processes.start(name, "supernode", arguments)


def _secret(folder: Path, name: str) -> Path:
    """Return the file of the secret that a site's two processes share."""
    path = folder / f"{name}.secret"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(32))
    return path
