"""Flower's SuperLink, reachable from outside by nodes alone.

A SuperLink serves nodes, operators and its own apps on one port, and asks operators for no credentials: whoever reaches
the port could register a key or start a run. Here only the interface for nodes, which checks their keys, is open to
other machines; the rest answers this machine alone. Operators must know the secret of this very SuperLink, and are
shown that it knows the secret too, so that no operator reaches the SuperLink of another federation on this machine.
"""

from __future__ import annotations

import argparse
import ipaddress
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import flwr.superlink.main  # noqa: F401  (so that forks find it loaded)
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOR_NODES = "/v1/fleet/"
FOR_OPERATORS = "/v1/control/"
OPERATOR = "x-zetadp-operator"
"""Header by which a SuperLink and its operators know each other: their secret, in requests and in the answers."""


class NodesOnlyFromOutside:
    """Refuse everything but the interface for nodes to clients on other machines, and operators without the secret.

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


def main() -> None:
    """Run a SuperLink with the arguments of ``flower-superlink``, and ``--operator-secret-file``."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--operator-secret-file", type=Path, required=True)
    given, sys.argv[1:] = parser.parse_known_args()
    secret = given.operator_secret_file.read_bytes().hex()
    vars(extensions)["get_middleware"] = lambda: (Middleware(NodesOnlyFromOutside, secret=secret),)
    flower_superlink()
