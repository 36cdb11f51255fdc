"""The operator's access to a SuperLink: admit nodes, start a run, see how it ended."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from zetadp.base.validation import UserError
from zetadp.federation.flower.patches import AsOperator
from zetadp.federation.flower.settings import SETTINGS

FINISHED = "finished"
"""Status of a run that is over."""
ALL_RUNS = 1_000_000
"""Without a number a SuperLink lists its last twenty."""


@dataclass(frozen=True)
class RunState:
    """How a run stands.

    Attributes
    ----------
    status
        ``pending``, ``starting``, ``running`` or ``finished``.
    outcome
        Of a finished run: ``completed``, ``failed`` or ``stopped``.
    details
        Why it failed.
    sent, received
        Bytes from the server to its nodes and from them to it.
    """

    status: str
    outcome: str
    details: str
    sent: int
    received: int


class Control:
    """Operator's connection to a SuperLink, over TLS; every other SuperLink of ours refuses it.

    Parameters
    ----------
    address
        ``host:port``; other machines than the SuperLink's own are refused.
    authority
        Certificate that the SuperLink's certificate must go back to.
    secret
        The secret of the SuperLink's operators.
    """

    def __init__(self, address: str, authority: Path, secret: bytes) -> None:
        self._client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=False,
            root_certificates=authority.read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr"),
                AsOperator(address, secret.hex()),
            ],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def ready(self) -> bool:
        """Return whether the SuperLink answers."""
        try:
            self._client.ListNodes(ListNodesRequest())
        except httpx.TransportError:
            return False
        return True

    def admit(self, name: str, public_key: bytes) -> None:
        """Admit a node by its public key; a key that is known already stays."""
        if public_key in {bytes(node.public_key) for node in self._client.ListNodes(ListNodesRequest()).nodes_info}:
            return
        self._client.RegisterNode(RegisterNodeRequest(public_key=public_key, name=name))

    def online(self) -> set[bytes]:
        """Return the public keys of the nodes that are connected."""
        nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return {bytes(node.public_key) for node in nodes if node.status == "online"}

    def start(self, settings: Path) -> int:
        """Start a run with the server's settings file and return its number."""
        content = app_bundle()
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        config = user_config_to_proto({SETTINGS: str(settings)})
        response = self._client.StartRun(StartRunRequest(fab=fab_to_proto(fab), override_config=config))
        if not response.HasField("run_id"):
            raise UserError(f"The SuperLink started no run: {response.note or 'it gave no reason'}.")
        return int(response.run_id)

    def stop_all(self) -> None:
        """Stop the runs that are not over."""
        for number, run in self._client.ListRuns(ListRunsRequest(limit=ALL_RUNS)).run_dict.items():
            if run.status.status != FINISHED:
                self._client.StopRun(StopRunRequest(run_id=number))

    def state(self, run: int) -> RunState:
        """Return how a run stands."""
        found = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run]
        status = found.status
        return RunState(status.status, status.sub_status, status.details, found.bytes_sent, found.bytes_recv)


BUNDLE = f"""
[project]
name = "zetadp-federation"
version = "1.0.0"
license = {{ text = "Apache-2.0" }}

[tool.flwr.app]
publisher = "zetadp"

[tool.flwr.app.components]
serverapp = "zetadp.federation.flower.server_app:app"
clientapp = "zetadp.federation.flower.hospital:bundled"

[tool.flwr.app.config]
{SETTINGS} = ""
"""


def app_bundle() -> bytes:
    """Return the bundle that Flower wants to carry: names of what is installed at every site, and no code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower calls other libraries by names of old
        return build_fab_from_files({"pyproject.toml": BUNDLE.encode()})[0]
