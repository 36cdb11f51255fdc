"""Requests and answers as Flower's records: vectors as raw bytes, everything else in one small record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from zetadp.federation.flower.protocol import Answer, Reason, Refusal, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

FACTS, VECTORS = "facts", "vectors"
WEIGHTS, UPDATE = "weights", "update"
RAW = "zetadp.flat"
"""Name of the serialisation: the bytes of the flat vector, without a header."""


class WrongEnvelopeError(ValueError):
    """Records that are no request or no answer."""


def pack_request(request: Request) -> RecordDict:
    """Return a request as the content of a message."""
    facts = {
        "plan": request.plan,
        "attempt": request.attempt,
        "round": request.round,
        "checkpointed": request.checkpointed,
        "head": request.head,
    }
    return _packed(facts, WEIGHTS, request.weights)


def unpack_request(content: RecordDict) -> Request:
    """Return the request that a message carries.

    Raises
    ------
    WrongEnvelopeError
        If it carries anything else.
    """
    facts = _facts(content)
    return Request(
        plan=_fact(facts, "plan", str),
        attempt=_fact(facts, "attempt", str),
        round=_fact(facts, "round", int),
        checkpointed=_fact(facts, "checkpointed", int),
        head=_fact(facts, "head", str),
        weights=_vector(content, WEIGHTS),
    )


def pack_reply(reply: Answer | Refusal) -> RecordDict:
    """Return an answer or a refusal as the content of a message."""
    facts: dict[str, Any] = {"name": reply.name, "attempt": reply.attempt, "round": reply.round}
    if isinstance(reply, Refusal):
        return RecordDict({FACTS: ConfigRecord({**facts, "refused": reply.reason.name})})
    return _packed({**facts, "lines": list(reply.lines)}, UPDATE, reply.update)


def unpack_reply(content: RecordDict) -> Answer | Refusal:
    """Return the answer or the refusal that a message carries.

    Raises
    ------
    WrongEnvelopeError
        If it carries anything else.
    """
    facts = _facts(content)
    name, attempt, number = _fact(facts, "name", str), _fact(facts, "attempt", str), _fact(facts, "round", int)
    if "refused" in facts:
        reason = _fact(facts, "refused", str)
        if reason not in Reason.__members__:
            msg = f"a refusal for the reason {reason!r}"
            raise WrongEnvelopeError(msg)
        return Refusal(name, attempt, number, Reason[reason])
    lines = _fact(facts, "lines", list)
    if not all(isinstance(line, str) for line in lines):
        msg = "lines that are not text"
        raise WrongEnvelopeError(msg)
    return Answer(name, attempt, number, _vector(content, UPDATE), lines)


def _packed(facts: dict[str, Any], name: str, vector: bytes) -> RecordDict:
    array = Array(dtype="uint8", shape=(len(vector),), stype=RAW, data=vector)
    return RecordDict({FACTS: ConfigRecord(facts), VECTORS: ArrayRecord({name: array})})


def _facts(content: RecordDict) -> Mapping[str, Any]:
    record = content.get(FACTS)
    if not isinstance(record, ConfigRecord):
        msg = f"no record {FACTS!r}"
        raise WrongEnvelopeError(msg)
    return record


def _fact(facts: Mapping[str, Any], key: str, kind: type) -> Any:  # noqa: ANN401  (the kind is checked here)
    value = facts.get(key)
    if type(value) is not kind:
        msg = f"{key} is {type(value).__name__}, not {kind.__name__}"
        raise WrongEnvelopeError(msg)
    return value


def _vector(content: RecordDict, name: str) -> bytes:
    record = content.get(VECTORS)
    if not isinstance(record, ArrayRecord) or list(record) != [name] or record[name].stype != RAW:
        msg = f"no raw vector {name!r}"
        raise WrongEnvelopeError(msg)
    return record[name].data
