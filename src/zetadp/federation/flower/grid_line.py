"""The server's line to its nodes over a Flower grid: who is there by key, requests out, answers in."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import Message

from zetadp.federation.flower.envelopes import WrongEnvelopeError, pack_request, unpack_reply
from zetadp.federation.flower.protocol import Answer, Reason, Refusal, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flwr.serverapp import Grid

logger = logging.getLogger(__name__)

APP_FAILED = (1, 2, 8)
"""Flower's codes for an app that could not be loaded, raised or died; all others tell of messages that got lost."""

LOOK_SECONDS = 1.0
"""Who is connected is asked no more often than so."""


@dataclass(frozen=True)
class _Sent:
    """A request under way."""

    message: str
    request: Request
    activated: str


class GridLine:
    """Requests and answers as Flower messages.

    Parameters
    ----------
    grid
        Flower's access to the nodes.
    keys
        Public key of each node in PEM. A node is who its key says, whatever it calls itself.
    lifetime
        Seconds after which a request that nobody fetched is dropped.
    """

    def __init__(self, grid: Grid, keys: Mapping[str, bytes], lifetime: float) -> None:
        self.grid, self.lifetime = grid, lifetime
        self.names = {key.strip(): name for name, key in keys.items()}
        self._nodes: dict[str, tuple[int, str]] = {}
        self._looked = float("-inf")
        self._sent: dict[str, _Sent] = {}

    def reachable(self) -> set[str]:
        """Return the names of the nodes that are connected and whose keys are known."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return set(self._nodes)
        found: dict[str, tuple[int, str]] = {}
        for node in self.grid.get_nodes():
            name = self.names.get(bytes(node.public_key).strip())
            if name is not None:
                found[name] = (node.node_id, node.last_activated_at)
        self._nodes, self._looked = found, time.monotonic()
        return set(found)

    def asked(self, name: str) -> bool:
        """Tell whether a request is under way to a node that has not begun anew since: what it had fetched is gone."""
        sent, node = self._sent.get(name), self._nodes.get(name)
        return sent is not None and (node is None or node[1] == sent.activated)

    def ask(self, name: str, request: Request) -> None:
        """Send a request to a node that is reachable."""
        node, activated = self._nodes[name]
        message = Message(pack_request(request), node, "train", ttl=self.lifetime, group_id=str(request.round + 1))
        (identifier,) = self.grid.push_messages([message])
        if identifier:
            self._sent[name] = _Sent(identifier, request, activated)

    def collect(self) -> list[Answer | Refusal]:
        """Return the answers that have arrived."""
        if not self._sent:
            return []
        by_message = {sent.message: (name, sent) for name, sent in self._sent.items()}
        replies = []
        for message in self.grid.pull_messages(list(by_message)):
            name, sent = by_message.pop(message.metadata.reply_to_message_id)
            del self._sent[name]
            reply = self._reply(name, sent, message)
            if reply is not None:
                replies.append(reply)
        return replies

    def _reply(self, name: str, sent: _Sent, message: Message) -> Answer | Refusal | None:
        """Return what a message says; None where a message got lost and the request may be sent again."""
        failed = Refusal(name, sent.request.attempt, sent.request.round, Reason.FAILED)
        if message.has_error():
            logger.warning("%s: %s", name, message.error.reason)
            return failed if message.error.code in APP_FAILED else None
        try:
            reply = unpack_reply(message.content)
        except WrongEnvelopeError as error:
            logger.warning("%s sent what is no answer: %s", name, error)
            return failed
        if reply.name != name:
            logger.warning("the node with the key of %s calls itself %s", name, reply.name)
            return failed
        return reply
