# ruff: noqa: E402  (the version is checked before anything is imported that another one may lack)
"""Changes to Flower's own programs, which depend on Flower's internals.

Each change affects only the process that requests it. Flower guarantees nothing about these internals, so a change
could silently have no effect in another version. This module therefore refuses versions that it was not tried with,
and a change whose place is gone is an error.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from contextlib import suppress
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zetadp.base.validation import UserError

FLOWER = ("1.41", "1.42")
"""Versions of Flower with which these changes were tried."""

if (_found := version("flwr")).rpartition(".")[0] not in FLOWER:
    raise UserError(
        f"A federation needs Flower {' or '.join(FLOWER)}, found {_found}. Run: pip install zetadp[federation]"
    )

import flwr.supernode.runtime.run_clientapp as node_tasks
import httpx
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore import heartbeat
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, pull_objects
from flwr.superlink import extensions
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_client import FleetHttpClient
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from flwr.clientapp import ClientApp
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
    from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
    from starlette.types import ASGIApp, Receive, Scope, Send

FIRST_SECONDS = 0.05
FOR_NODES = "/v1/fleet/"
FOR_OPERATORS = "/v1/control/"
OPERATOR = "x-zetadp-operator"
"""Header by which a SuperLink knows its operators: their secret."""


def _change(module: ModuleType, **changes: Any) -> None:  # noqa: ANN401  (functions and numbers)
    """Replace names of a module, all of which must be there."""
    places = vars(module)
    if gone := changes.keys() - places.keys():
        raise RuntimeError(
            f"{module.__name__} of Flower {_found} has no {', '.join(sorted(gone))}: no federation without."
        )
    places.update(changes)


def ask_again_soon(seconds: float = FIRST_SECONDS) -> None:
    """Make this process request a missing part of a message soon; each wait is twice the one before.

    A message is announced before its vectors have come, at each of three steps: from the server to a node, within the
    node, and back. Flower finds them missing and asks again after a second, which made most of the time of a short
    round.

    Parameters
    ----------
    seconds
        The first wait, at most.
    """
    for function in (pull_objects, pull_and_inflate_object_from_tree):
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), "initial_backoff": seconds}


def wait_for_the_database(seconds: float = 60.0) -> None:
    """Set how long the SuperLink of this process waits for its database while another thread writes.

    Five seconds, its own patience, are too short for eleven nodes on busy cores: the SuperLink then answers a node with
    an internal error, and the node ends.
    """
    from flwr.supercore import sql_mixin

    known = vars(sql_mixin)["SQLITE_PRAGMAS"]
    _change(sql_mixin, SQLITE_PRAGMAS=(*known, ("busy_timeout", str(int(1000 * seconds)))))


def look_every(seconds: float) -> None:
    """Limit the seconds that the SuperNode of this process sleeps between two checks for messages.

    Flower's three seconds are written into its code, and a round of a training waits for them: an hour in a thousand
    rounds.
    """
    # This import loads database migrations, which write to the log. Only nodes should pay for that.
    from flwr.supernode import start_client_internal

    _change(start_client_internal, time=SimpleNamespace(sleep=lambda wanted: time.sleep(min(wanted, seconds))))


def show_life_every(seconds: float) -> None:
    """Set the seconds after which the SuperNode of this process has shown again that it lives.

    A SuperLink takes a node for dead after twice this time. Flower's thirty seconds leave the other hospitals without
    word for a minute.
    """
    _change(heartbeat, HEARTBEAT_DEFAULT_INTERVAL=seconds)
    _change(fleet_http_connection, HEARTBEAT_DEFAULT_INTERVAL=seconds)


def sign_off_first(memory: Path, connected: Callable[[], None]) -> None:
    """Make the SuperNode of this process remove an earlier registration of its own that a crash left behind.

    A SuperLink refuses a node that it takes to be connected still, as it does for a while after the node was killed.
    So a node remembers its number, and signs off before it signs on.

    Parameters
    ----------
    memory
        File for the node's number, which the SuperLink gives and which is no secret.
    connected
        Called when the node is connected.
    """
    sign_on = FleetHttpClient.ActivateNode

    def activate(client: FleetHttpClient, request: ActivateNodeRequest) -> ActivateNodeResponse:
        if memory.exists():
            with suppress(httpx.HTTPError, RuntimeError, ValueError):
                client.DeactivateNode(DeactivateNodeRequest(node_id=int(memory.read_text())))
        response = sign_on(client, request)
        memory.write_text(str(response.node_id))
        connected()
        return response

    FleetHttpClient.ActivateNode = activate  # type: ignore[assignment, method-assign]


def load_only(app: ClientApp) -> None:
    """Make this process run a node's task with its own app; code from the server is neither unpacked nor loaded."""
    _change(node_tasks, install_from_fab=lambda *_, **__: None, get_load_client_app_fn=lambda **_: lambda *_: app)


def serve_nodes_alone_outside(secret: str) -> None:
    """Restrict the SuperLink of this process: other machines only as nodes, operators only with the secret."""
    _change(extensions, get_middleware=lambda: (Middleware(NodesOnlyFromOutside, secret=secret),))


class NodesOnlyFromOutside:
    """Refuse operators without the secret, and other machines everything except the interface for nodes.

    A SuperLink serves nodes, operators and its own apps on one port, and requires no credentials of operators: anyone
    who reaches the port could register a key or start a run. Here only the interface for nodes, which checks their
    keys, is open to other machines. The rest is open to this machine only. Operators must know the secret of this very
    SuperLink, so that no operator reaches the SuperLink of another federation on this machine.

    Parameters
    ----------
    app
        The SuperLink.
    secret
        What operators must send.
    """

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self.app, self.secret = app, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        path = scope.get("path", "")
        if scope["type"] not in ("http", "websocket") or path.startswith(FOR_NODES):
            await self.app(scope, receive, send)
        elif not _local(scope):
            await PlainTextResponse("Only nodes are served here.", status_code=403)(scope, receive, send)
        elif not path.startswith(FOR_OPERATORS) or secrets.compare_digest(
            dict(scope["headers"]).get(OPERATOR.encode(), b""), self.secret.encode()
        ):
            await self.app(scope, receive, send)
        else:
            await PlainTextResponse("This is another federation.", status_code=403)(scope, receive, send)


def _local(scope: Scope) -> bool:
    client = scope.get("client")
    return client is not None and ipaddress.ip_address(client[0]).is_loopback


class AsOperator:
    """Shows the operators' secret to a SuperLink, and says so where the SuperLink has another."""

    def __init__(self, address: str, secret: str) -> None:
        self.address, self.secret = address, secret

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send a request."""
        context.request.headers[OPERATOR] = self.secret
        response = call_next(context)
        if response.status_code == httpx.codes.FORBIDDEN:
            raise UserError(
                f"Another server than that of this federation answers at {self.address}. End that server, or name "
                "another port (--port)."
            )
        return response
