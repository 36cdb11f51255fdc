# ruff: noqa: E402  (the version is checked before anything is imported that another one may lack)
"""Changes to Flower's own programs, which depend on Flower's internals.

Each change affects only the process that requests it. Flower guarantees nothing about these internals, so a change
could silently have no effect in another version. This module therefore refuses every version but one.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from contextlib import suppress
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING

from zetadp.base.validation import UserError

FLOWER = "1.41.0"
"""The version of Flower that all this was written for."""

if (_found := version("flwr")) != FLOWER:
    raise UserError(f"A federation needs Flower {FLOWER}, found {_found}. Run: pip install zetadp[federation]")

import flwr.supernode.runtime.run_clientapp as node_tasks
import httpx
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, pull_objects
from flwr.superlink import extensions
from flwr.supernode.fleet_http_client import FleetHttpClient
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from pathlib import Path

    from flwr.clientapp import ClientApp
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
    from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

FIRST_SECONDS = 0.05
FOR_NODES = "/v1/fleet/"
FOR_OPERATORS = "/v1/control/"
OPERATOR = "x-zetadp-operator"
"""Header by which a SuperLink and its operators know each other: their secret, in requests and in the answers."""


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
    vars(sql_mixin)["SQLITE_PRAGMAS"] = (*known, ("busy_timeout", str(int(1000 * seconds))))


def look_every(seconds: float) -> None:
    """Limit the seconds that the SuperNode of this process sleeps between two checks for messages.

    Flower's three seconds are written into its code, and a round of a training waits for them: an hour in a thousand
    rounds.
    """
    # This import loads database migrations, which write to the log. Only nodes should pay for that.
    from flwr.supernode import start_client_internal

    vars(start_client_internal)["time"] = SimpleNamespace(sleep=lambda wanted: time.sleep(min(wanted, seconds)))


def sign_off_first(memory: Path) -> None:
    """Make the SuperNode of this process remove an earlier registration of its own that a crash left behind.

    A SuperLink refuses a node that it takes to be connected still, as it does for a minute after the node was killed.
    So a node remembers its number, and signs off before it signs on.

    Parameters
    ----------
    memory
        File for the node's number, which the SuperLink gives and which is no secret.
    """
    sign_on = FleetHttpClient.ActivateNode

    def activate(client: FleetHttpClient, request: ActivateNodeRequest) -> ActivateNodeResponse:
        if memory.exists():
            with suppress(httpx.HTTPError, RuntimeError, ValueError):
                client.DeactivateNode(DeactivateNodeRequest(node_id=int(memory.read_text())))
        response = sign_on(client, request)
        memory.write_text(str(response.node_id))
        return response

    FleetHttpClient.ActivateNode = activate  # type: ignore[assignment, method-assign]


def load_only(app: ClientApp) -> None:
    """Make this process run a node's task with its own app; code from the server is neither unpacked nor loaded."""
    vars(node_tasks).update(install_from_fab=lambda *_, **__: None, get_load_client_app_fn=lambda **_: lambda *_: app)


def serve_nodes_alone_outside(secret: str) -> None:
    """Restrict the SuperLink of this process: other machines only as nodes, operators only with the secret."""
    vars(extensions)["get_middleware"] = lambda: (Middleware(NodesOnlyFromOutside, secret=secret),)


class NodesOnlyFromOutside:
    """Refuse operators without the secret, and other machines everything except the interface for nodes.

    A SuperLink serves nodes, operators and its own apps on one port, and requires no credentials of operators: anyone
    who reaches the port could register a key or start a run. Here only the interface for nodes, which checks their
    keys, is open to other machines. The rest is open to this machine only. Operators must know the secret of this very
    SuperLink, and are shown that it knows the secret too, so that no operator reaches the SuperLink of another
    federation on this machine.

    Parameters
    ----------
    app
        The SuperLink.
    secret
        What operators must send, and get back.
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
        elif not path.startswith(FOR_OPERATORS):
            await self.app(scope, receive, send)
        elif secrets.compare_digest(dict(scope["headers"]).get(OPERATOR.encode(), b""), self.secret.encode()):
            await self.app(scope, receive, self._proving(send))
        else:
            await PlainTextResponse("This is another federation.", status_code=403)(scope, receive, send)

    def _proving(self, send: Send) -> Send:
        """Return a way to send that adds the secret to an answer's headers."""

        async def proving(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = (OPERATOR.encode(), self.secret.encode())
                message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        return proving


def _local(scope: Scope) -> bool:
    client = scope.get("client")
    return client is not None and ipaddress.ip_address(client[0]).is_loopback


class OwnSuperLinkOnly:
    """Shows the operators' secret to a SuperLink, and stops where the SuperLink does not show it, too."""

    def __init__(self, address: str, secret: str) -> None:
        self.address, self.secret = address, secret

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send a request and check who answered; errors of the server itself carry no proof and stay errors."""
        context.request.headers[OPERATOR] = self.secret
        response = call_next(context)
        if not response.is_server_error and response.headers.get(OPERATOR) != self.secret:
            raise UserError(
                f"Another server than that of this federation answers at {self.address}. End that server, or name "
                "another port (--port)."
            )
        return response
