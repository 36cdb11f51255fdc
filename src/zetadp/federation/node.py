"""A hospital's node as the server meets it: it fetches requests, has them computed, and sends the answers.

Flower's own node, the SuperNode, starts a further Python for every message, unpacks the app that the server sends, and
reports how long a computation took, which tells how many patients were drawn. This node speaks Flower's interface for
nodes (Fleet) itself. It is one process, reads its patients once, and never fetches code.

A round is computed in a child, which is ended when it takes too long. Threads do not survive a fork, so this process
never starts any that outlive a message.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

import httpx
import torch
from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import RetryInvoker, RetryState, constant
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from zetadp.core.progress import seconds_to_tick
from zetadp.federation.certificates import check_connection, read_node_key
from zetadp.federation.hospital import Hospital, load_hospital
from zetadp.federation.launcher import die_with_parent, ended_by_signal
from zetadp.federation.masks import FreshValue
from zetadp.federation.protocol import (
    LIFE_SECONDS,
    Answer,
    Reason,
    Refusal,
    Request,
    WrongEnvelopeError,
    pack,
    unpack,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

logger = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
RETRY_SECONDS = 2.0
"""Seconds between two attempts to reach a server that does not answer."""
PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"
PART_BYTES = 1 << 16
MALFORMED = Request(plan="", attempt="unknown", round=0, checkpointed=0, head="", weights=b"")
"""What is refused in place of a message that is no request."""


class _Transfer(httpx.SyncByteStream):
    """The body of a message, which may take long; ``meanwhile`` is called before each part of it."""

    def __init__(self, body: httpx.SyncByteStream, meanwhile: Callable[[], None]) -> None:
        self.body, self.meanwhile = body, meanwhile

    def __iter__(self) -> Iterator[bytes]:
        for content in self.body:
            for first in range(0, len(content), PART_BYTES):
                self.meanwhile()
                yield content[first : first + PART_BYTES]

    def close(self) -> None:
        self.body.close()


def _may_have_lost(error: Exception) -> bool:
    """Return whether a message was lost: Flower hands one out once, also on a connection that breaks meanwhile."""
    if not isinstance(error, httpx.TransportError) or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return False
    return error.request.url.path == PULL


class Uplink:
    """A node's connection with the server, over TLS, in which the node's key signs every request.

    A request is repeated while no server answers. The node shows that it lives also while a message travels.

    Parameters
    ----------
    server
        ``host:port``.
    authority
        Certificate that the server's certificate must go back to.
    key
        The node's private key.
    """

    def __init__(self, server: str, authority: Path, key: Path) -> None:
        private = read_node_key(key)
        self.server, self.authority, self.public = server, authority, private.public_key()
        self._retries = RetryInvoker(
            lambda: constant(RETRY_SECONDS),
            httpx.TransportError,
            None,
            None,
            on_backoff=self._tell,
            should_giveup=_may_have_lost,
        )
        self._client = FleetHttpClient.from_server_address(
            server,
            insecure=False,
            root_certificates=authority.read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, self.public),
            ],
            retry_invoker=self._retries,
        )
        self._client._client.event_hooks = {"request": [self._watch], "response": [self._watch]}
        self._node = Node()
        self._shown = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Sign off, if the server is there, so that the next process of this node need not wait."""
        self._retries.max_tries = 1
        if self._node.node_id:
            self._sign_off()
        self._client.close()

    def _sign_off(self) -> None:
        try:
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        except httpx.HTTPError as failure:
            logger.debug("not signed off: %s", failure)

    def _watch(self, transfer: httpx.Request | httpx.Response) -> None:
        """Have a body that may be large shown as a sign of life."""
        path = (transfer.request if isinstance(transfer, httpx.Response) else transfer).url.path
        if path == (PULL if isinstance(transfer, httpx.Response) else PUSH):
            assert isinstance(transfer.stream, httpx.SyncByteStream)  # as in every client that is not asynchronous
            transfer.stream = _Transfer(transfer.stream, self.show_life)

    def _tell(self, state: RetryState) -> None:
        """Log once that a request is repeated."""
        if state.tries == 1:
            logger.warning("no answer from %s; it is asked again and again", self.server)

    def sign_on(self) -> None:
        """Connect, as soon as a server is there that knows this node.

        A server that was just started may learn the node's key later. It takes a node whose process was killed for
        connected for a while.

        Raises
        ------
        UserError
            If what answers is not the server.
        """
        told = ""
        request = ActivateNodeRequest(public_key=public_key_to_bytes(self.public), heartbeat_interval=LIFE_SECONDS)
        while True:
            trouble = check_connection(self.server, self.authority)
            if not trouble:
                try:
                    self._node = Node(node_id=self._client.ActivateNode(request).node_id)
                except httpx.HTTPStatusError:
                    trouble = (
                        "it does not know this node's public key (.pub.pem), or takes an earlier process of this node "
                        "for connected"
                    )
                else:
                    self._shown = time.monotonic()
                    logger.info("connected to the server; waiting for requests")
                    return
            if trouble != told:
                told = trouble
                logger.warning("not connected to %s yet: %s. It is asked again and again", self.server, trouble)
            time.sleep(RETRY_SECONDS)

    def show_life(self) -> None:
        """Show the server that this node lives, if it is time."""
        if time.monotonic() - self._shown >= LIFE_SECONDS:
            self._shown = time.monotonic()
            self._client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=LIFE_SECONDS))

    def sign_on_anew(self) -> None:
        """Sign off, if the server still knows this node, and on again: then it asks again what is unanswered."""
        self._sign_off()
        time.sleep(RETRY_SECONDS)
        self.sign_on()

    def fetch(self) -> Message | None:
        """Return the next message for this node; None where there is none."""
        response = self._client.PullMessages(PullMessagesRequest(node=self._node))
        return message_from_proto(response.messages_list[0]) if response.messages_list else None

    def send(self, reply: Message) -> None:
        """Send a message. How long it took to compute is not in it."""
        vars(reply.metadata)["_message_id"] = reply.object_id
        tree = ObjectTree(object_id=reply.object_id)  # its only part, which comes with it
        self._client.PushMessages(
            PushMessagesRequest(node=self._node, messages_list=[message_to_proto(reply)], message_object_trees=[tree])
        )


def run_node(
    settings: Path | str, server: str, authority: Path | str, key: Path | str, idle_seconds: float = IDLE_SECONDS
) -> NoReturn:
    """Read and check a hospital's patients, connect, and answer until this process is ended.

    Parameters
    ----------
    settings
        The hospital's settings file.
    server
        ``host:port``.
    authority
        File of the certificate that the server's certificate must go back to.
    key
        File of the node's private key.
    idle_seconds
        How long to wait before it looks for a message again.

    Raises
    ------
    UserError
        If the node cannot take part.
    """
    hospital = load_hospital(Path(settings), Path(key))
    with Uplink(server, Path(authority), Path(key)) as uplink:
        uplink.sign_on()
        while True:
            answer_next(hospital, uplink, idle_seconds)


def answer_next(hospital: Hospital, uplink: Uplink, idle_seconds: float) -> None:
    """Answer the next message, or wait where there is none.

    After any error the server may believe that this node is at work on a message that it does not have, or has an
    answer that was not sent, and wait for it. So sign on anew; also where the server itself was started anew.
    """
    try:
        uplink.show_life()
        message = uplink.fetch()
        if message is None:
            time.sleep(idle_seconds)
        else:
            uplink.send(reply_to(hospital, message, uplink.show_life))
    except httpx.HTTPError as error:
        logger.warning("a message may have been lost (%s); signing on anew", error)
        uplink.sign_on_anew()


def run_until_stopped(**arguments: object) -> None:
    """Run a node until SIGTERM, at which it signs off."""
    with ended_by_signal():
        run_node(**arguments)  # type: ignore[arg-type]


def reply_to(hospital: Hospital, message: Message, meanwhile: Callable[[], None]) -> Message:
    """Return a hospital's reply to a message, at a whole multiple of ``answer_seconds`` after it came.

    Parameters
    ----------
    hospital
        The hospital.
    message
        A request for a round.
    meanwhile
        Called at least every second.
    """
    begun = time.monotonic()
    try:
        request = unpack(message.content, Request)
        reply = hospital.exchange(request, lambda asked, own: computed(hospital, asked, own, meanwhile))
    except WrongEnvelopeError as error:
        logger.warning("not a request: %s", error)
        reply = hospital.refuse(MALFORMED, Reason.PLAN)
    if isinstance(reply, Answer) and not reply.update:
        return Message(pack(reply), reply_to=message)  # a fresh value, which has nothing to do with patients
    if isinstance(reply, Answer):
        hospital.report(reply.round)
    left = seconds_to_tick(begun, hospital.settings.answer_seconds)
    while left > 0:
        meanwhile()
        time.sleep(min(left, 1.0))
        left -= 1.0
    return Message(pack(reply), reply_to=message)


def computed(
    hospital: Hospital,
    request: Request,
    own: FreshValue | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Answer | Refusal:
    """Return the hospital's reply, computed in a child that is ended when its time is up.

    ``own`` is that of `Hospital.reply`.
    """
    forking = multiprocessing.get_context("fork")
    receiver, sender = forking.Pipe(duplex=False)
    child = forking.Process(target=_compute, args=(hospital, request, own, sender), daemon=True)
    child.start()
    sender.close()
    end = time.monotonic() + hospital.settings.limit_seconds
    try:
        while (left := end - time.monotonic()) > 0:
            meanwhile()
            if receiver.poll(min(left, 1.0)):
                reply: Answer | Refusal = receiver.recv()
                return reply
        logger.error("round %d took longer than %g s", request.round + 1, hospital.settings.limit_seconds)
        return hospital.refuse(request, Reason.TIME)
    except EOFError:
        logger.error("round %d: the computation died", request.round + 1)
        return hospital.refuse(request, Reason.FAILED)
    finally:
        receiver.close()
        child.kill()
        child.join()


def _compute(hospital: Hospital, request: Request, own: FreshValue | None, sender: Connection) -> None:
    die_with_parent()
    torch.set_num_threads(hospital.settings.threads or os.cpu_count() or 1)
    sender.send(hospital.reply(request, own))
