"""Requests of the server and answers of the nodes, which hold only the privatised sum and public facts.

Requests and answers travel as Flower's records: vectors as raw bytes, everything else in one small record. Updates are
real vectors in which every real and every imaginary part has its place, so no aggregation rule can lose a phase, and a
message is four bytes a part and nothing more. They travel exactly, or rounded after the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from zetadp.base.validation import UserError, checked_name
from zetadp.federation.masks import FreshValue

LIFE_SECONDS = 10.0
"""A node shows every few seconds that it lives; after twice this time without a sign it counts as away."""
FIRST_SECONDS = 0.05
"""First wait for a part of a message that has not come; each wait is twice the one before."""
FACTS, VECTORS = "facts", "vectors"
WEIGHTS, UPDATE = "weights", "update"
RAW = "zetadp.flat"
"""Name of the serialisation: the bytes of the flat vector, without a header."""


@dataclass(frozen=True)
class Request:
    """A request for a round.

    Attributes
    ----------
    plan
        Hash of the plan that the server follows.
    attempt
        What the server's training is known by; another one is another attempt, which a node has to permit.
    round
        The round, counted from zero.
    checkpointed
        Rounds that the server will never ask for again.
    head
        Last head of the node's ledger that the server has seen; empty where it has seen none.
    weights
        The weights, as `encode` gives them in float32.
    seen
        Last heads of the node's other ledgers, of trainings that this server ran before. A node that lacks one of them
        has put back an older copy of its ledgers.
    number
        With masked sums, the try of the round, counted from zero.
    values
        With masked sums, the fresh values of the members of the try (`zetadp.federation.masks.Try`). Without any, and
        without weights, the request asks for the node's own value for this try.
    """

    plan: str
    attempt: str
    round: int
    checkpointed: int
    head: str
    weights: bytes
    seen: Sequence[str] = ()
    number: int = 0
    values: Sequence[FreshValue] = ()


@dataclass(frozen=True)
class Answer:
    """A node's answer: its privatised mean gradient, and the lines that its ledger gained.

    Attributes
    ----------
    name
        The node.
    attempt, round
        What it answers.
    update
        The privatised mean gradient, as `encode` wrote it; with masked sums, the masked words. Empty if only a fresh
        value was asked for.
    lines
        The lines of the node's ledger after the head that the request named: public constants of releases.
    number
        With masked sums, the try of the round.
    value
        With masked sums, the node's fresh value: for the try that was asked about, or for the first one of the next
        round.
    """

    name: str
    attempt: str
    round: int
    update: bytes
    lines: Sequence[str]
    number: int = 0
    value: FreshValue | None = None


class Reason(StrEnum):
    """Why a node sends no update. Only these words are sent: an error's text could reveal facts about patients."""

    PLAN = "the node follows another plan"
    ROUND = "the plan has no such round"
    SHAPE = "the weights are not those of the plan's network"
    ATTEMPTS = "the node permits no further training from the start"
    ANSWERED = "the node has answered this round, for other weights or too long ago"
    LEDGER = "the node's ledger lacks lines that the server has seen"
    TRY = "the try is not one that the node may take part in"
    VALUE = "the node did not give this fresh value, or has used it"
    TRIES = "the plan's rounds and spare tries are used up"
    CAP = "the node's cap on what its patients may pay would be crossed"
    BUSY = "the node is at work on an earlier request"
    TIME = "the node's computation took too long and was ended"
    FAILED = "the node failed; its own log says why"


@dataclass(frozen=True)
class Refusal:
    """A node's answer that there will be no update.

    Attributes
    ----------
    name
        The node.
    attempt, round
        What it answers.
    reason
        Why.
    number
        With masked sums, the try of the round.
    """

    name: str
    attempt: str
    round: int
    reason: Reason
    number: int = 0

    @property
    def final(self) -> bool:
        """Whether asking again, with nothing changed, can only bring the same."""
        return self.reason not in (Reason.BUSY, Reason.TIME, Reason.FAILED, Reason.VALUE)


class Line(Protocol):
    """How the server reaches its nodes."""

    def reachable(self) -> set[str]:
        """Return the names of the nodes that are connected."""

    def identity(self, name: str) -> str:
        """Return what tells a node from every other, also in trainings where it has another name."""

    def ask(self, name: str, request: Request) -> None:
        """Send a request to a node."""

    def session(self, name: str) -> str:
        """Return what tells a node's process from the next one; empty where the node is not connected."""

    def asked(self, name: str) -> bool:
        """Return whether a request to a node is pending; an answer or a restart of the node ends it."""

    def collect(self) -> list[Answer | Refusal]:
        """Return what has arrived."""

    def tell(self, name: str, missing: Sequence[str]) -> None:
        """Tell a node which other nodes are not connected; it need not answer."""


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
        "seen": list(request.seen),
        "number": request.number,
        **_told(request.values),
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
        attempt=_name(facts, "attempt"),
        round=_fact(facts, "round", int),
        checkpointed=_fact(facts, "checkpointed", int),
        head=_fact(facts, "head", str),
        weights=_vector(content, WEIGHTS),
        seen=_texts(facts, "seen"),
        number=_fact(facts, "number", int),
        values=_values(facts),
    )


def pack_notice(missing: Sequence[str]) -> RecordDict:
    """Return the names of nodes that are not connected as the content of a message."""
    return RecordDict({FACTS: ConfigRecord({"missing": list(missing)})})


def unpack_notice(content: RecordDict) -> Sequence[str]:
    """Return the names that a message of `pack_notice` carries.

    Raises
    ------
    WrongEnvelopeError
        If it carries anything else.
    """
    return _texts(_facts(content), "missing")


def pack_reply(reply: Answer | Refusal) -> RecordDict:
    """Return an answer or a refusal as the content of a message."""
    facts: dict[str, Any] = {"name": reply.name, "attempt": reply.attempt, "round": reply.round, "number": reply.number}
    if isinstance(reply, Refusal):
        return RecordDict({FACTS: ConfigRecord({**facts, "refused": reply.reason.name})})
    values = [] if reply.value is None else [reply.value]
    return _packed({**facts, "lines": list(reply.lines), **_told(values)}, UPDATE, reply.update)


def unpack_reply(content: RecordDict) -> Answer | Refusal:
    """Return the answer or the refusal that a message carries.

    Raises
    ------
    WrongEnvelopeError
        If it carries anything else.
    """
    facts = _facts(content)
    name, attempt, number = _fact(facts, "name", str), _fact(facts, "attempt", str), _fact(facts, "round", int)
    again = _fact(facts, "number", int)
    if "refused" in facts:
        reason = _fact(facts, "refused", str)
        if reason not in Reason.__members__:
            raise WrongEnvelopeError(f"a refusal for the reason {reason!r}")
        return Refusal(name, attempt, number, Reason[reason], again)
    update, lines, values = _vector(content, UPDATE), list(_texts(facts, "lines")), _values(facts)
    return Answer(name, attempt, number, update, lines, again, values[0] if values else None)


def _told(values: Sequence[FreshValue]) -> dict[str, list[str]]:
    """Return fresh values as lists of equal length: of members, of values, of signatures."""
    return {
        "members": [value.name for value in values],
        "fresh": [value.value for value in values],
        "signatures": [value.signature for value in values],
    }


def _values(facts: Mapping[str, Any]) -> tuple[FreshValue, ...]:
    parts = [_texts(facts, key) for key in ("members", "fresh", "signatures")]
    if len({len(part) for part in parts}) > 1:
        raise WrongEnvelopeError("fresh values without a member or a signature")
    return tuple(FreshValue(*each) for each in zip(*parts, strict=True))


def _packed(facts: dict[str, Any], name: str, vector: bytes) -> RecordDict:
    array = Array(dtype="uint8", shape=(len(vector),), stype=RAW, data=vector)
    return RecordDict({FACTS: ConfigRecord(facts), VECTORS: ArrayRecord({name: array})})


def _facts(content: RecordDict) -> Mapping[str, Any]:
    record = content.get(FACTS)
    if not isinstance(record, ConfigRecord):
        raise WrongEnvelopeError(f"no record {FACTS!r}")
    return record


def _fact(facts: Mapping[str, Any], key: str, kind: type) -> Any:  # noqa: ANN401  (the kind is checked here)
    value = facts.get(key)
    if type(value) is not kind:
        raise WrongEnvelopeError(f"{key} is {type(value).__name__}, not {kind.__name__}")
    return value


def _name(facts: Mapping[str, Any], key: str) -> str:
    """Return a name, which the receiver stores in its ledger."""
    try:
        return checked_name(facts.get(key), key)
    except UserError as error:
        raise WrongEnvelopeError(str(error)) from error


def _texts(facts: Mapping[str, Any], key: str) -> Sequence[str]:
    found = _fact(facts, key, list)
    if not all(isinstance(text, str) for text in found):
        raise WrongEnvelopeError(f"{key} that are not text")
    return tuple(found)


def _vector(content: RecordDict, name: str) -> bytes:
    record = content.get(VECTORS)
    if not isinstance(record, ArrayRecord) or list(record) != [name] or record[name].stype != RAW:
        raise WrongEnvelopeError(f"no raw vector {name!r}")
    return record[name].data


class WrongUpdateError(ValueError):
    """Bytes that are no vector of the length that was agreed on."""


def encode(vector: Tensor) -> bytes:
    """Return a finite real vector of shape (dimension,) as little-endian float32, bit for bit."""
    return bytes(vector.detach().cpu().numpy().astype("<f4", copy=False).tobytes())


def decode(content: bytes, dimension: int) -> Tensor:
    """Return the float32 tensor of shape (dimension,) that `encode` was given.

    Raises
    ------
    WrongUpdateError
        If the length is another, as with an update of real weights only or with one that goes on too long, or if
        anything in it is NaN or infinite.
    """
    if len(content) != 4 * dimension:
        expected = f"{4 * dimension} bytes ({dimension} real numbers)"
        raise WrongUpdateError(f"expected {expected}, found {len(content)}")
    values = np.frombuffer(content, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise WrongUpdateError(f"expected finite numbers, found {int((~np.isfinite(values)).sum())} that are not")
    return torch.from_numpy(values.copy())
