"""The server of a federation: one run of the coordinator, the files that it leaves, and its line to the nodes."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.base.storage import written_whole
from zetadp.base.validation import shown
from zetadp.core.checkpoint import RunFiles
from zetadp.core.pretrained import backbone_of, save_model, starting_weights
from zetadp.core.records import LabelledItems
from zetadp.core.settings import Performance
from zetadp.core.task import site_task_of
from zetadp.core.training import Trained
from zetadp.federation.flower.certificates import Credentials
from zetadp.federation.flower.coordinator import Coordinator
from zetadp.federation.flower.membership import roster_of
from zetadp.federation.flower.processes import require_free_port
from zetadp.federation.flower.protocol import (
    Answer,
    Reason,
    Refusal,
    Request,
    WrongEnvelopeError,
    pack_notice,
    pack_request,
    unpack_reply,
)
from zetadp.federation.flower.settings import ServerSettings
from zetadp.federation.flower.superlink import SuperLink
from zetadp.federation.flower.tries import SummingCoordinator
from zetadp.privacy.exposure import Series

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flwr.app import Message

    from zetadp.core.plan import Plan
    from zetadp.nn.backbone import Backbone

logger = logging.getLogger(__name__)

NOTICE_SECONDS = 60.0
"""Seconds after which a notice that nobody fetched is dropped."""
LOOK_SECONDS = 1.0
"""Minimum number of seconds between two checks of which nodes are connected."""


def serve(settings: Path | str, credentials: Path | str, host: str, port: int) -> None:
    """Train with the nodes that connect, then write the model, its history and a sealed copy of the account.

    Parameters
    ----------
    settings
        The server's settings file.
    credentials
        Folder of the server's certificates and keys.
    host, port
        Where nodes reach the server.

    Raises
    ------
    UserError
        If the training ends without a model.
    """
    own, files = ServerSettings.read(Path(settings)), Credentials(Path(credentials))
    if own.threads:
        torch.set_num_threads(own.threads)
    plan, keys = own.agreed()
    files.check_server()
    require_free_port(host, port)
    patience = own.patience
    lifetime = patience.give_up_seconds if patience.missing == "wait" else 2 * patience.round_seconds
    backbone = backbone_of(plan, own.backbone)
    watched = _watched(own, plan, backbone)
    with SuperLink(files, host, port, keys) as superlink:
        # A server of masked sums sees no single message.
        roster = roster_of(own.roster, plan)
        kind = Coordinator if roster is None else partial(SummingCoordinator, roster=roster)
        coordinator = kind(
            plan,
            patience,
            NodeLine(superlink, keys, lifetime),
            watched,
            RunFiles(own.ledger_file, own.checkpoint, own.permission, own.cap, Series.named(own.series)),
            start=starting_weights(plan.network, backbone),
            performance=Performance(own.evaluate_every, own.checkpoint_seconds),
        )
        model = coordinator.run()
    trained = Trained(model, coordinator.history, coordinator.ledger_head, None, coordinator.receiver.released)
    save_model(own.model, trained, plan, inputs=watched.inputs.shape[-1], backbone=backbone)
    with written_whole(own.history) as temporary:
        coordinator.history.astype({"round": int}).to_csv(temporary, index=False)
    with written_whole(own.ledger) as temporary:
        shutil.copyfile(own.ledger_file, temporary)
    own.checkpoint.unlink(missing_ok=True)
    if isinstance(coordinator, SummingCoordinator):
        coordinator.record.unlink(missing_ok=True)


def _watched(settings: ServerSettings, plan: Plan, backbone: Backbone | None) -> LabelledItems:
    """Return the items of the patients that the server watches; none where it has none."""
    task = site_task_of(plan.task)
    if settings.watched is None:
        shape = task.input_shape(plan.network.domain, backbone)
        return LabelledItems(torch.empty(0, *shape), torch.empty(0, dtype=torch.int64), np.empty(0, dtype=np.int64))
    cache, patients = settings.cache or settings.checkpoint.parent / "watched", settings.watched_patients
    return task.site(settings.watched, plan, cache, part="test", patients=patients, backbone=backbone)


@dataclass(frozen=True)
class _Sent:
    """A request under way."""

    message: str
    request: Request
    activated: str


class NodeLine:
    """Requests and answers as Flower messages.

    Parameters
    ----------
    superlink
        Where nodes fetch messages.
    keys
        Public key of each node in PEM. A node is who its key says, whatever it calls itself.
    lifetime
        Seconds after which a request that nobody fetched is dropped.
    """

    def __init__(self, superlink: SuperLink, keys: Mapping[str, bytes], lifetime: float) -> None:
        self.superlink, self.keys, self.lifetime = superlink, keys, lifetime
        self._nodes: dict[str, tuple[int, str]] = {}
        self._looked = float("-inf")
        self._sent: dict[str, _Sent] = {}
        self._notices: list[str] = []

    def reachable(self) -> set[str]:
        """Return the names of the nodes that are connected."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return set(self._nodes)
        self._nodes = {node.name: (node.node_id, node.last_activated_at) for node in self.superlink.nodes()}
        self._looked = time.monotonic()
        return set(self._nodes)

    def identity(self, name: str) -> str:
        """Return a hash of the node's public key."""
        return hashlib.sha256(self.keys[name].strip()).hexdigest()

    def session(self, name: str) -> str:
        """Return when a node that is connected was activated; empty where none is."""
        return self._nodes[name][1] if name in self._nodes else ""

    def asked(self, name: str) -> bool:
        """Return whether a request is pending at a node that has not restarted; a restart loses requests."""
        sent, node = self._sent.get(name), self._nodes.get(name)
        return sent is not None and (node is None or node[1] == sent.activated)

    def ask(self, name: str, request: Request) -> None:
        """Send a request to a node that is reachable."""
        node, activated = self._nodes[name]
        if identifier := self.superlink.push(pack_request(request), node, "train", self.lifetime):
            self._sent[name] = _Sent(identifier, request, activated)

    def tell(self, name: str, missing: Sequence[str]) -> None:
        """Send a node the names of those that are not connected."""
        if identifier := self.superlink.push(pack_notice(missing), self._nodes[name][0], "query", NOTICE_SECONDS):
            self._notices.append(identifier)

    def collect(self) -> list[Answer | Refusal]:
        """Return the answers that have arrived. Those to notices say nothing."""
        if not (self._sent or self._notices):
            return []
        by_message = {sent.message: (name, sent) for name, sent in self._sent.items()}
        replies = []
        for message in self.superlink.pull([*by_message, *self._notices]):
            answered = message.metadata.reply_to_message_id
            if answered in self._notices:
                self._notices.remove(answered)
                continue
            name, sent = by_message.pop(answered)
            del self._sent[name]
            reply = self._reply(name, sent, message)
            if reply is not None:
                replies.append(reply)
        return replies

    def _reply(self, name: str, sent: _Sent, message: Message) -> Answer | Refusal | None:
        """Return what a message says; None where a message got lost and the request may be sent again."""
        failed = Refusal(name, sent.request.attempt, sent.request.round, Reason.FAILED, sent.request.number)
        if message.has_error():
            logger.debug("%s: %s", name, message.error.reason)
            logger.warning("a message to or from %s was lost; the request is sent again", name)
            return None
        try:
            reply = unpack_reply(message.content)
        except WrongEnvelopeError as error:
            logger.warning("%s sent what is no answer: %s", name, shown(str(error)))
            return failed
        if reply.name != name:
            logger.warning("the node with the key of %s calls itself %s", name, shown(reply.name))
            return failed
        return reply
