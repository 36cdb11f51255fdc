"""A hospital's side of Flower: one action, which answers a request for a round.

Computing happens in a process of its own. It can be ended when it takes too long, and whatever becomes of it, the
server is answered, at a time that does not tell how long it took.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from zetadp.federation.flower.envelopes import WrongEnvelopeError, pack_reply, unpack_request
from zetadp.federation.flower.processes import die_with_parent
from zetadp.federation.flower.protocol import Answer, Reason, Refusal, Request
from zetadp.ticks import wait_for_tick

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from zetadp.federation.flower.hospital import Hospital

logger = logging.getLogger(__name__)

MALFORMED = Request(plan="", attempt="", round=0, checkpointed=0, head="", weights=b"")


def node_app(hospital: Hospital) -> ClientApp:
    """Return the app of a hospital's node."""
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        begun = time.monotonic()
        try:
            request = unpack_request(message.content)
        except WrongEnvelopeError as error:
            logger.warning("not a request: %s", error)
            reply: Answer | Refusal = hospital.refuse(MALFORMED, Reason.PLAN)
        else:
            reply = _computed(hospital, request)
        wait_for_tick(begun, hospital.settings.answer_seconds)
        return Message(pack_reply(reply), reply_to=message)

    return app


def _computed(hospital: Hospital, request: Request) -> Answer | Refusal:
    """Return the hospital's reply, computed in a child that is ended when its time is up."""
    forking = multiprocessing.get_context("fork")
    receiver, sender = forking.Pipe(duplex=False)
    child = forking.Process(target=_compute, args=(hospital, request, sender), daemon=True)
    child.start()
    sender.close()
    try:
        if receiver.poll(hospital.settings.limit_seconds):
            reply: Answer | Refusal = receiver.recv()
            return reply
        logger.error("round %d took longer than %g s", request.round, hospital.settings.limit_seconds)
        return hospital.refuse(request, Reason.TIME)
    except EOFError:
        logger.error("round %d: the computation died", request.round)
        return hospital.refuse(request, Reason.FAILED)
    finally:
        receiver.close()
        child.kill()
        child.join()


def _compute(hospital: Hospital, request: Request, sender: Connection) -> None:
    die_with_parent()
    sender.send(hospital.reply(request))
