"""Flower's SuperLink as a part of the server: messages wait in it until nodes, which sign every request, fetch them.

Flower's own program serves nodes, operators and its apps at one port, and asks operators for no credentials. Here only
the interface for nodes (Fleet) exists, and no code travels.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from fastapi import FastAPI
from flwr.app import Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.error import ApiErrorCode, http_error_translator
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from zetadp.base.validation import UserError, shown
from zetadp.hospitals.certificates import Credentials, public_bytes
from zetadp.hospitals.protocol import (
    LIFE_SECONDS,
    Reply,
    Request,
    Unreadable,
    WrongEnvelopeError,
    pack,
    unpack,
)

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Minimum number of seconds between two checks of which nodes are connected."""
REFUSAL_SECONDS = 60.0
"""Least seconds between two log lines about messages that are too large."""
END_SECONDS = 5.0
"""A connection that does not end after so long must not keep the server from writing the model."""


def is_news(record: logging.LogRecord) -> bool:
    """Return whether a line of Flower's log needs a reader: all do but one.

    While a killed node still counts as connected, Flower writes an error each time that its next process tries to
    connect, which is every two seconds. The log of that process gives the reason, and the server's says when it is
    back.
    """
    return f"[ApiError:{ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED}]" not in record.getMessage()


class SizeLimit:
    """Middleware that refuses a body above a limit while it arrives, before anything keeps or parses it.

    Anybody who reaches the port can send a body, with or without a key: signatures are checked after reading.

    Parameters
    ----------
    app
        The application.
    limit
        Most bytes of a body.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self.limit = app, limit
        self._logged = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and end it with status 413 where its body is too large."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if any(not value.isdigit() or int(value) > self.limit for value in lengths):
            await self._refuse(scope, receive, send)
            return
        # The whole body is read here, before any other code can answer, since it may prove too large.
        body, unfinished = bytearray(), True
        while unfinished:
            part = await receive()
            if part["type"] != "http.request":
                return  # the sender has gone
            body += part.get("body", b"")
            unfinished = part.get("more_body", False)
            if len(body) > self.limit:
                await self._refuse(scope, receive, send)
                return
        whole: list[ASGIMessage] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> ASGIMessage:
            return whole.pop() if whole else await receive()

        await self.app(scope, replay, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        if time.monotonic() - self._logged >= REFUSAL_SECONDS:  # an attacker must not fill the log either
            self._logged = time.monotonic()
            logger.warning("a message of more than %d bytes was refused", self.limit)
        await Response(status_code=413, headers={"connection": "close"})(scope, receive, send)


@dataclass(frozen=True)
class _Sent:
    """A request under way."""

    message: str
    request: Request
    activated: str


class SuperLink:
    """A SuperLink at a port, over TLS, for nodes whose keys are known; all that it holds is gone with the block.

    Parameters
    ----------
    credentials
        With the server's certificate and private key.
    host, port
        Address at which it listens.
    keys
        Public key of each node. The key alone identifies a node, not the name that it sends.
    lifetime
        Seconds after which a request that nobody fetched is dropped.
    limit
        Most bytes of a message from a node (`zetadp.hospitals.protocol.longest_message`).

    Attributes
    ----------
    keys
        Public key of each node, which also checks what is signed in its name.
    """

    def __init__(
        self,
        credentials: Credentials,
        host: str,
        port: int,
        keys: Mapping[str, EllipticCurvePublicKey],
        lifetime: float,
        limit: int = 1 << 24,
    ) -> None:
        self.keys = dict(keys)
        self._keys = {name: public_bytes(key) for name, key in keys.items()}
        self._lifetime = lifetime
        self._nodes: dict[str, tuple[int, str]] = {}
        self._checked_at = float("-inf")
        self._sent: dict[str, _Sent] = {}
        store = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), store)
        self._state, self._store = factory.state(), store.store()
        for name, public in self._keys.items():
            self._state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public, LIFE_SECONDS, name=name)
        self._run = self._state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        (run,) = self._state.get_run_info(run_ids=[self._run])
        self._task = int(run.primary_task_id or 0)
        self._state.claim_task(self._task)
        self._state.activate_task(self._task)
        app = FastAPI(
            openapi_url=None,
            middleware=[
                Middleware(SizeLimit, limit=limit),
                Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
                Middleware(ProtobufTranslationMiddleware),
                Middleware(NodeAuthMiddleware),
            ],
        )
        app.state.linkstate_factory, app.state.enable_supernode_auth = factory, True
        app.include_router(router)
        certificate, secret = credentials.server
        config = uvicorn.Config(
            app,
            host,
            port,
            ssl_certfile=certificate,
            ssl_keyfile=secret,
            ws="none",
            lifespan="off",
            log_config=None,  # its lines go where all others go
            log_level="warning",
            callback_notify=self._show_life,
            timeout_notify=int(LIFE_SECONDS),
            timeout_graceful_shutdown=1,
        )
        logging.getLogger("flwr").addFilter(is_news)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    async def _show_life(self) -> None:
        """Keep the run going: Flower takes one without a sign of life for failed."""
        self._state.acknowledge_task_heartbeat(self._task)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.05)
        if not self._server.started:
            raise UserError("The server did not start. The lines above say why.")
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join(END_SECONDS)

    def reachable(self) -> set[str]:
        """Return the names of the nodes that are connected."""
        if time.monotonic() - self._checked_at < LOOK_SECONDS:
            return set(self._nodes)
        nodes = self._state.get_node_info(node_ids=list(self._state.get_nodes(self._run)))
        self._nodes = {node.name: (node.node_id, node.last_activated_at) for node in nodes}
        self._checked_at = time.monotonic()
        return set(self._nodes)

    def identity(self, name: str) -> str:
        """Return a hash of the node's public key, which tells it from others in all trainings, under any name."""
        return hashlib.sha256(self._keys[name].strip()).hexdigest()

    def session(self, name: str) -> str:
        """Return when a node that is connected was activated; empty where none is."""
        return self._nodes[name][1] if name in self._nodes else ""

    def is_pending(self, name: str) -> bool:
        """Return whether a request is pending at a node that has not restarted; a restart loses requests."""
        sent, node = self._sent.get(name), self._nodes.get(name)
        return sent is not None and (node is None or node[1] == sent.activated)

    def ask(self, name: str, request: Request) -> None:
        """Leave a request for a node that is reachable to fetch."""
        node, activated = self._nodes[name]
        metadata = Metadata(
            run_id=self._run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=self._lifetime,
            message_type="train",
        )
        message = make_message(metadata, pack(request))
        vars(metadata)["_message_id"] = message.object_id
        # Flower can also store the parts of a message one by one. Ours come with it, and only its name is registered.
        self._store.preregister(self._run, ObjectTree(object_id=message.object_id))
        if identifier := self._state.store_message_ins(message):
            self._sent[name] = _Sent(identifier, request, activated)

    def collect(self) -> list[Reply | Unreadable]:
        """Return the answers that have arrived, and forget their messages."""
        by_message = {sent.message: (name, sent) for name, sent in self._sent.items()}
        replies = []
        for message in self._state.get_message_res(message_ids=set(by_message), run_id=self._run) if by_message else ():
            answered = message.metadata.reply_to_message_id
            name, sent = by_message.pop(answered)
            del self._sent[name]
            self._state.delete_messages({answered})
            self._store.delete(answered)
            self._store.delete(message.metadata.message_id)
            if (reply := self._reply(name, sent, message)) is not None:
                replies.append(reply)
        return replies

    def _reply(self, name: str, sent: _Sent, message: Message) -> Reply | Unreadable | None:
        """Return the reply in a message; None if a message was lost and the request may be sent again."""
        failed = Unreadable(name, sent.request.place)
        if message.has_error():
            logger.debug("%s: %s", name, message.error.reason)
            logger.warning("a message to or from %s was lost; the request is sent again", name)
            return None
        try:
            reply: Reply = unpack(message.content, Reply)
        except WrongEnvelopeError as error:
            logger.warning("%s sent a message that is not an answer: %s", name, shown(str(error)))
            return failed
        if reply.name != name:
            logger.warning("the node with the key of %s calls itself %s", name, shown(reply.name))
            return failed
        return reply
