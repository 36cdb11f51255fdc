"""A whole federation on this machine: server and nodes as processes that always end with the block."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Self

from zetadp.base.storage import write_json
from zetadp.federation.flower.certificates import Credentials
from zetadp.federation.flower.processes import (
    FORGE,
    Processes,
    check_flower,
    folder_in_use,
    free_port,
    silent_environment,
)
from zetadp.federation.flower.settings import HospitalSettings, ServerSettings

if TYPE_CHECKING:
    # Started by name; a rule that starts them depends on their code.
    import zetadp.federation.flower.node
    import zetadp.federation.flower.server  # noqa: F401

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
SERVER = "server"


class LocalFederation:
    """Server and nodes on the loopback interface, over TLS and with keys.

    Parameters
    ----------
    folder
        For logs and settings; while the block runs, for this federation alone. Patients' ledgers lie where the nodes'
        settings say.
    credentials
        Certificates and keys, made for ``127.0.0.1``.
    idle_seconds
        How long an idle node waits before it looks for a message again.
    forge
        Module of the process that all others are forked from.
    """

    def __init__(
        self, folder: Path, credentials: Credentials, *, idle_seconds: float = 0.5, forge: str = FORGE
    ) -> None:
        self.folder, self.credentials, self.idle_seconds = folder, credentials, idle_seconds
        self.port = free_port()
        environment = silent_environment(folder / "flower", NO_PROXY=LOOPBACK, no_proxy=LOOPBACK)
        self.processes = Processes(folder / "logs", environment, forge)
        self._held = ExitStack()

    @property
    def address(self) -> str:
        """Where the server is reached from this machine."""
        return f"{LOOPBACK}:{self.port}"

    def __enter__(self) -> Self:
        check_flower()
        self.credentials.check_server()
        self._held.enter_context(folder_in_use(self.folder, "--folder"))
        return self

    def __exit__(self, *error: object) -> None:
        self.processes.stop(*self.processes.names())
        self.processes.close()
        self._held.close()

    def start_node(self, settings: HospitalSettings) -> None:
        """Start a node whose plan is approved; it joins when its patients are checked and prepared."""
        path = self.folder / f"{settings.name}.json"
        write_json(path, asdict(settings))
        self.processes.start(
            settings.name,
            "node",
            settings=path,
            server=self.address,
            authority=self.credentials.authority,
            key=self.credentials.node(settings.name)[1],
            idle_seconds=self.idle_seconds,
        )

    def begin(self, settings: ServerSettings) -> None:
        """Start the server of one training."""
        path = self.folder / f"{SERVER}.json"
        settings.write(path)
        where = {"credentials": self.credentials.folder, "host": LOOPBACK, "port": self.port}
        self.processes.start(SERVER, SERVER, settings=path, **where)

    def wait(self, *, watch: bool = True, say: Callable[[str], None] = logger.debug) -> None:
        """Wait until the training is over.

        Parameters
        ----------
        watch
            Whether the end of a node ends the training.
        say
            Called with each line of the server's output.

        Raises
        ------
        UserError
            If the training failed, for instance because all nodes did, or if a watched node ended by itself.
        """
        running = True
        while running:
            time.sleep(0.1)
            running = self.processes.runs(SERVER)
            if watch and running:
                self.processes.check(*[name for name in self.processes.names() if name != SERVER])
            for level, text in self.processes.news(SERVER):
                if level not in {"ERROR", "CRITICAL"}:
                    say(text)
        self.processes.finish(SERVER)

    def run(self, settings: ServerSettings, say: Callable[[str], None] = logger.debug) -> None:
        """Run a training to its end; ``say`` takes what happens, a line each."""
        self.begin(settings)
        self.wait(say=say)
