"""A hospital's node as the server meets it: it fetches requests, computes, and sends the answers.

Flower's own node, the SuperNode, starts a further Python for every message, unpacks the app that the server sends, and
reports how long a computation took, which tells how many patients were drawn. This node speaks Flower's interface for
nodes (Fleet) itself. It is one process, reads its patients once, and never fetches code. A thread shows the server that
it lives, also while a message travels or a round is computed.
"""

from __future__ import annotations

import faulthandler
import logging
import signal
import time
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import NoReturn, Self

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
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
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from zetadp.base.validation import UserError, needs_a_person, shown
from zetadp.hospitals.certificates import public_bytes
from zetadp.hospitals.health import Health
from zetadp.hospitals.hospital import Hospital, load_hospital
from zetadp.hospitals.masks import Place
from zetadp.hospitals.participant import Participant
from zetadp.hospitals.protocol import (
    LIFE_SECONDS,
    Answer,
    Reason,
    Request,
    WrongEnvelopeError,
    pack,
    unpack,
)
from zetadp.training.progress import seconds_to_tick

logger = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
BEAT_SECONDS = LIFE_SECONDS / 2
"""Seconds between two signs of life."""
RETRY_SECONDS = 2.0
"""Seconds between two attempts to reach a server that does not answer."""
MALFORMED = Request(plan="", place=Place("unknown", 0), checkpointed=0, head="", weights=b"")
"""Request that an answer refuses if the message is not a request."""


class Uplink:
    """A node's connection with the server, over TLS, in which the node's key signs every request.

    Parameters
    ----------
    server
        ``host:port``.
    authority
        Certificate that the server's certificate must go back to.
    key
        The node's private key.
    health
        Counters to update.
    """

    def __init__(
        self, server: str, authority: Path, key: EllipticCurvePrivateKey, health: Health | None = None
    ) -> None:
        self.health = health or Health(0)
        self.server, self.authority, self.public = server, authority, key.public_key()
        self._client = FleetHttpClient.from_server_address(
            server,
            False,
            authority.read_bytes(),
            [RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(key, self.public)],
        )
        self._node = Node()
        self._signed_off = Event()
        self._heartbeats = Thread(target=self._send_heartbeats, daemon=True)

    def __enter__(self) -> Self:
        self._heartbeats.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Sign off, if the server is there, so that the next process of this node need not wait."""
        self._signed_off.set()
        self._heartbeats.join()
        self.sign_off()
        self._client.close()

    def _send_heartbeats(self) -> None:
        """Show the server that this node lives, until it signs off, also while another request is on its way."""
        while not self._signed_off.wait(BEAT_SECONDS):
            if self._node.node_id:
                sign = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=LIFE_SECONDS)
                try:
                    self._client.SendNodeHeartbeat(sign)
                except Exception as failure:  # noqa: BLE001  (whatever a proxy answers, the next sign may arrive)
                    logger.debug("no sign of life: %s", failure)

    def sign_off(self) -> None:
        """End the connection, if there is one and the server answers."""
        # A sign of life in between would connect the old session again, and the server would refuse a new one.
        old, self._node = self._node, Node()
        if old.node_id:
            try:
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=old.node_id))
            except httpx.HTTPError as failure:
                logger.debug("not signed off: %s", failure)

    def sign_on(self, *, finished: bool = False) -> None:
        """Connect, as soon as a server is there that knows this node. It then asks again what is unanswered.

        A server that was just started may learn the node's key later. It takes a node whose process was killed for
        connected for a while.

        Parameters
        ----------
        finished
            Whether the run has ended, after which it is normal that no server answers.

        Raises
        ------
        UserError
            If what answers is not the server.
        """
        logged = ""
        self.health.away.set(1)
        request = ActivateNodeRequest(public_key=public_bytes(self.public), heartbeat_interval=LIFE_SECONDS)
        self.sign_off()
        while True:
            try:
                self._node = Node(node_id=self._client.ActivateNode(request).node_id)
            except httpx.HTTPStatusError:
                problem = (
                    "it does not know this node's public key (.pub.pem), takes an earlier process of this node for "
                    "connected, or its clock differs from this machine's by more than a few seconds: compare the clocks"
                )
            except httpx.TransportError as error:
                problem = shown(str(error))
                if "[SSL" in problem:
                    self._refuse(problem, error)
            else:
                self.health.away.set(0)
                logger.info("connected to the server; waiting for requests")
                return
            if problem != logged:
                logged = problem
                level = logging.INFO if finished else logging.WARNING
                logger.log(level, "not connected to %s yet: %s. The node keeps trying", self.server, problem)
            time.sleep(RETRY_SECONDS)

    def _refuse(self, problem: str, error: Exception) -> NoReturn:
        """Refuse what answers in place of the server; only a person can give a node another authority or certificate.

        The clock of a machine that has just started may be wrong for a while, and other faults of TLS may pass, so a
        service manager starts the node again after these.
        """
        may_pass = "not yet valid" in problem or "CERTIFICATE_VERIFY_FAILED" not in problem
        with nullcontext() if may_pass else needs_a_person():
            if "not yet valid" in problem or "has expired" in problem:
                raise UserError(
                    f"The certificate of the server at {self.server} is not in force by the clock of this machine, "
                    f"which says {_utc()}: {problem}. Compare the clocks of both machines. Only if they agree, ask "
                    "the coordinator for a new authority.pem."
                ) from error
            raise UserError(
                f"What answers at {self.server} is not the server: {problem}. Ask the coordinator for authority.pem, "
                f"and for the name in the server's certificate; {self.authority} is what --authority names."
            ) from error

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
    participant: Participant,
    server: str,
    authority: Path,
    idle_seconds: float = IDLE_SECONDS,
    health: Health | None = None,
) -> None:
    """Read and check a hospital's patients, connect, and answer until SIGTERM or Ctrl-C, at which the node signs off.

    Parameters
    ----------
    participant
        The hospital in this training.
    server
        ``host:port``.
    authority
        File of the certificate that the server's certificate must go back to.
    idle_seconds
        Seconds between two requests for a message.
    health
        Counters to keep.

    Raises
    ------
    UserError
        If the node cannot take part.
    """

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    with suppress(KeyboardInterrupt):
        with needs_a_person():
            hospital = load_hospital(participant, health)
        with Uplink(server, authority, participant.key, hospital.health) as uplink:
            uplink.sign_on()
            while True:
                answer_next(hospital, uplink, idle_seconds)
    logger.info("stopped")


def _utc() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def answer_next(hospital: Hospital, uplink: Uplink, idle_seconds: float) -> None:
    """Answer the next message, or wait where there is none.

    After any error the server may believe that this node is at work on a message that it does not have, or has an
    answer that was not sent, and wait for it. The node therefore reconnects, also after a restart of the server.
    """
    try:
        message = uplink.fetch()
        if message is None:
            time.sleep(idle_seconds)
        else:
            uplink.send(reply_to(hospital, message))
    except httpx.HTTPError as error:
        if hospital.is_finished:
            logger.info("the server does not answer, as after the end of a run; the node waits until it is stopped")
        else:
            logger.warning("a message may have been lost (%s); connecting again", shown(str(error)))
        time.sleep(RETRY_SECONDS)
        uplink.sign_on(finished=hospital.is_finished)


def reply_to(hospital: Hospital, message: Message) -> Message:
    """Return a hospital's reply to a message, at a whole multiple of ``answer_seconds`` after it came.

    A computation that takes longer than ``limit_seconds`` ends the process, with what it was doing on standard error.
    """
    started = time.monotonic()
    faulthandler.dump_traceback_later(hospital.settings.limit_seconds, exit=True)
    try:
        reply = hospital.exchange(unpack(message.content, Request))
    except WrongEnvelopeError as error:
        logger.warning("not a request: %s", shown(str(error)))
        reply = hospital.sign(hospital.refuse(MALFORMED, Reason.PLAN), MALFORMED)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if isinstance(reply, Answer) and not reply.update:
        return Message(pack(reply), reply_to=message)  # a fresh value, which has nothing to do with patients
    seconds = time.monotonic() - started
    time.sleep(seconds_to_tick(started, hospital.settings.answer_seconds))
    # Only now: lines of a log have times, which must not show how long the round took.
    hospital.check_time(seconds)
    if isinstance(reply, Answer):
        hospital.report(reply.place.round)
    return Message(pack(reply), reply_to=message)
