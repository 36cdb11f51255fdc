"""Flower's SuperNode, with a say in how often it looks for work, and able to come back after a crash.

Two things are written into Flower's code and are changed there. A SuperNode that finds no message waits for three
seconds, and a round of a training waits for it: an hour in a thousand rounds. And a SuperLink refuses a node that it
takes to be connected still, as it does for a minute after the node was killed: so a node remembers its number, and
signs off before it signs on.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpx
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

from zetadp.federation.flower.pulling import ask_again_soon

if TYPE_CHECKING:
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse

IDLE_SECONDS = 1.0


def main() -> None:
    """Run a SuperNode with the arguments of ``flower-supernode``, ``--idle-seconds`` and ``--memory``."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS)
    parser.add_argument("--memory", type=Path)
    given, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    look_every(given.idle_seconds)
    ask_again_soon()
    if given.memory is not None:
        sign_off_first(given.memory)
    flower_supernode()


def look_every(seconds: float) -> None:
    """Let the SuperNode of this process sleep no longer than so between two looks for a message."""
    vars(start_client_internal)["time"] = SimpleNamespace(sleep=lambda wanted: time.sleep(min(wanted, seconds)))


def sign_off_first(memory: Path) -> None:
    """Let the SuperNode of this process take back an earlier sign-on of its own that a crash has left.

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
