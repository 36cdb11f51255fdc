"""How soon a process of Flower asks again for a part of a message that has not arrived yet.

A message is announced before its vectors have come, at each of three steps: from the server to a node, within the node,
and back. Flower finds them missing and asks again after a second, which made most of the time of a short round.
"""

from __future__ import annotations

from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, pull_objects

FIRST_SECONDS = 0.05


def ask_again_soon(seconds: float = FIRST_SECONDS) -> None:
    """Let this process wait no longer before it asks again for the first time; every wait is twice the one before."""
    for function in (pull_objects, pull_and_inflate_object_from_tree):
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), "initial_backoff": seconds}
