"""Requests of the server and answers of the nodes, which hold only the privatised sum and public facts.

A node signs each answer as a whole. A header that identifies a connection proves nothing about the content sent over
it: the server of another run, to which the same node is connected, could use the header too.

A message travels as one of Flower's records: a vector as raw bytes, everything else as JSON, which is read as strictly
as settings are. Updates are real vectors in which every real and every imaginary part has its place, so no aggregation
rule can lose a phase, and a message is four bytes a part and nothing more. They travel exactly.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from zetadp.base.reading import read
from zetadp.base.validation import Checked, Spelled, UserError
from zetadp.hospitals.certificates import check_signature, signature
from zetadp.hospitals.masks import FreshValue, Place

LIFE_SECONDS = 10.0
"""A node shows every few seconds that it lives; after twice this time without a sign it counts as away."""
FACTS = "facts"
LINE_BYTES, ATTEMPTS_AT_ONCE = 4096, 8
"""Most bytes of the lines of a release in a ledger, with its signature, and most attempts that one message holds."""
ANSWER = "zetadp answer 1"
"""Purpose and version of the signature of an answer."""


Head = Annotated[str, Spelled("[0-9a-f]{64}")]
"""Head of a ledger's chain, which nodes print."""


@dataclass(frozen=True)
class Request(Checked):
    """A request for a round.

    Attributes
    ----------
    plan
        Hash of the plan that the server follows.
    place
        Position of the requested update or fresh value.
    checkpointed
        Rounds that the server will never ask for again.
    head
        Last head of the node's ledger that the server has seen; empty where it has seen none.
    weights
        The weights, as `encode` gives them in float32.
    seen
        Last heads of the node's other ledgers, of trainings that this server ran before. A node that lacks one of them
        has put back an older copy of its ledgers.
    values
        With masked sums, the fresh values of the members of the try (`zetadp.hospitals.masks.Try`). Without any, and
        without weights, the request asks for the node's own value for this try.
    """

    plan: str
    place: Place
    checkpointed: int
    head: Annotated[str, Spelled("([0-9a-f]{64})?")]
    weights: bytes
    seen: tuple[Head, ...] = ()
    values: tuple[FreshValue, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A node's answer: its privatised mean gradient, and the lines that its ledger gained.

    Attributes
    ----------
    name
        The node.
    place
        Position of the request.
    update
        The privatised mean gradient, as `encode` wrote it; with masked sums, the masked words. Empty if only a fresh
        value was asked for.
    lines
        The lines of the node's ledger after the head that the request named: public constants of releases.
    value
        With masked sums, the node's fresh value: for the try that was asked about, or for the first one of the next
        round.
    signature
        Signature by the node's key of all this and of the request that is answered (`signed_reply`).
    """

    name: str
    place: Place
    update: bytes
    lines: tuple[str, ...]
    value: FreshValue | None = None
    signature: str = ""


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
    ENDED = "the node's process ended while it was at work on this round"
    BUSY = "the node is at work on an earlier request"
    FAILED = "the node failed; its own log says why"


@dataclass(frozen=True)
class Refusal:
    """A node's answer that it will not send an update.

    Attributes
    ----------
    name
        The node.
    place
        Position of the request.
    reason
        Why.
    signature
        As that of an `Answer`.
    """

    name: str
    place: Place
    reason: Reason
    signature: str = ""

    @property
    def final(self) -> bool:
        """Whether asking again, with nothing changed, can only bring the same."""
        return self.reason not in (Reason.ENDED, Reason.BUSY, Reason.FAILED, Reason.VALUE)


@dataclass(frozen=True)
class Unreadable:
    """Note of the server in place of a message that is not a reply.

    Attributes
    ----------
    name
        The node that sent it, or somebody in its name.
    place
        Position of the request.
    """

    name: str
    place: Place


Reply: TypeAlias = Answer | Refusal
"""What a node sends in answer to a request."""


def signed_reply(reply: Reply, request: Request, key: EllipticCurvePrivateKey) -> Reply:
    """Return a node's reply to a request, signed with the node's key."""
    return replace(reply, signature=signature(_signed_content(reply, request), key))


def check_reply(reply: Reply, request: Request, key: EllipticCurvePublicKey) -> None:
    """Check that a node signed a reply to a request, as a whole.

    A reply that was sent before, to the same request, passes. It holds nothing that the node did not answer to it.

    Raises
    ------
    UserError
        If the reply was altered, or signed with another key or for another plan, training, round, try or weights.
    """
    check_signature(_signed_content(reply, request) | {"signature": reply.signature}, key)


def _signed_content(reply: Reply, request: Request) -> dict[str, Any]:
    """Return the signed content of a reply: the reply, and the plan, place and weights of the request."""
    facts: dict[str, Any] = {"purpose": ANSWER, "kind": type(reply).__name__, "plan": request.plan}
    facts |= {"asked": asdict(request.place), **asdict(reply)}
    del facts["signature"]
    if isinstance(reply, Answer):
        facts["update"] = hashlib.sha256(reply.update).hexdigest()
        # A late answer to a request for a fresh value arrives when the weights have been sent.
        facts["weights"] = hashlib.sha256(request.weights if reply.update else b"").hexdigest()
    return facts


class WrongEnvelopeError(ValueError):
    """Records that are not the message that was expected."""


def pack(message: Request | Reply) -> RecordDict:
    """Return a message as the content of one of Flower's."""
    facts = asdict(message)
    vectors = {name: value for name, value in facts.items() if isinstance(value, bytes)}
    return RecordDict({FACTS: ConfigRecord({FACTS: json.dumps(facts | dict.fromkeys(vectors, "")), **vectors})})


def unpack(content: RecordDict, kind: Any) -> Any:  # noqa: ANN401  (the kind, or the union of kinds, that is asked for)
    """Return the message of a kind that `pack` made.

    Raises
    ------
    WrongEnvelopeError
        If the records hold anything else.
    """
    record = content.get(FACTS)
    if not isinstance(record, ConfigRecord) or not isinstance(record.get(FACTS), str):
        raise WrongEnvelopeError(f"no record {FACTS!r}")
    try:
        message, _, faults = read(kind, json.loads(str(record[FACTS])))
        if faults:
            raise WrongEnvelopeError(" ".join(faults))
        vectors: dict[str, Any] = {name: value for name, value in record.items() if name != FACTS}
        expected = {name for name, value in vars(message).items() if isinstance(value, bytes)}
        if vectors.keys() != expected or not all(isinstance(value, bytes) for value in vectors.values()):
            raise WrongEnvelopeError(f"expected {FACTS} and the bytes of {sorted(expected)}, found {sorted(record)}")
        return replace(message, **vectors)
    except (TypeError, ValueError, UserError, RecursionError) as error:
        raise WrongEnvelopeError(str(error)) from error


def longest_message(numbers: int, releases: int) -> int:
    """Return the most bytes of a message from a node.

    A node whose lines the server has never seen sends its whole ledger, which may hold several attempts.

    Parameters
    ----------
    numbers
        Length of an update.
    releases
        Number of declared releases of the node in one attempt.
    """
    return 8 * numbers + ATTEMPTS_AT_ONCE * releases * LINE_BYTES + (1 << 20)


class WrongUpdateError(ValueError):
    """Bytes that are not a vector of the expected length."""


NUMBERS = {torch.float32: "<f4", torch.int64: "<i8"}
"""Types of vectors that travel, and how they are written: updates and weights, and the words of masked sums."""


def encode(vector: Tensor) -> bytes:
    """Return a vector of shape (dimension,), of float32 or int64, as little-endian numbers, bit for bit."""
    return bytes(vector.detach().cpu().numpy().astype(NUMBERS[vector.dtype], copy=False).tobytes())


def decode(content: bytes, dimension: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the vector of shape (dimension,) that `encode` was given.

    Raises
    ------
    WrongUpdateError
        If the length is another, as with an update of real weights only or with a longer one, or if
        anything in it is NaN or infinite.
    """
    if len(content) != dtype.itemsize * dimension:
        expected = f"{dtype.itemsize * dimension} bytes ({dimension} numbers)"
        raise WrongUpdateError(f"expected {expected}, found {len(content)}")
    written = np.dtype(NUMBERS[dtype])
    values = np.frombuffer(content, written).astype(written.newbyteorder("="))  # a copy, which may be written to
    if not np.isfinite(values).all():
        raise WrongUpdateError(f"expected finite numbers, found {int((~np.isfinite(values)).sum())} that are not")
    return torch.from_numpy(values)
