"""Flower's SuperLink, reachable from outside by nodes alone.

A SuperLink serves nodes, operators and its own apps on one port, and asks operators for no credentials: whoever reaches
the port could register a key or start a run. Here only the interface for nodes, which checks their keys, is open to
other machines; the rest answers this machine alone.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import flwr.superlink.main  # noqa: F401  (so that forks find it loaded)
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

FOR_NODES = "/v1/fleet/"


class NodesOnlyFromOutside:
    """Refuse everything but the interface for nodes to clients on other machines."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] in ("http", "websocket") and not scope["path"].startswith(FOR_NODES) and not _local(scope):
            await PlainTextResponse("Only nodes are served here.", status_code=403)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _local(scope: Scope) -> bool:
    client = scope.get("client")
    return client is not None and ipaddress.ip_address(client[0]).is_loopback


def main() -> None:
    """Run a SuperLink with the arguments of ``flower-superlink``."""
    vars(extensions)["get_middleware"] = lambda: (Middleware(NodesOnlyFromOutside),)
    flower_superlink()
