from __future__ import annotations

from dataclasses import replace

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from zetadp.federation.flower.protocol import (
    FACTS,
    VECTORS,
    Answer,
    Reason,
    Refusal,
    Request,
    WrongEnvelopeError,
    pack_reply,
    pack_request,
    unpack_reply,
    unpack_request,
)

REQUEST = Request("plan", "attempt", 3, 1, "", b"weights")
REPLIES = [
    Answer("node", "attempt", 3, b"update", ["one", "two"]),
    Answer("node", "attempt", 3, b"update", []),
    *(Refusal("node", "attempt", 3, reason) for reason in Reason),
]


def test_a_request_arrives_as_it_was_sent():
    assert unpack_request(pack_request(REQUEST)) == REQUEST


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_a_reply_arrives_as_it_was_sent(reply):
    assert unpack_reply(pack_reply(reply)) == reply


def test_nothing_else_is_in_an_answer():
    content = pack_reply(REPLIES[0])
    assert set(content) == {FACTS, VECTORS}
    values = {"members", "fresh", "signatures"}  # lists of fresh values of masked sums
    assert set(content[FACTS]) == {"name", "attempt", "round", "number", "lines"} | values
    assert not any(content[FACTS][key] for key in values)
    assert {name: array.data for name, array in content[VECTORS].items()} == {"update": b"update"}
    assert not content.metric_records


def changed(content: RecordDict, **facts: object) -> RecordDict:
    content[FACTS] = ConfigRecord({**content[FACTS], **facts})
    return content


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        RecordDict({FACTS: ArrayRecord({})}),
        changed(pack_reply(REPLIES[0]), round="3"),
        changed(pack_reply(REPLIES[0]), lines=[1, 2]),
        changed(pack_reply(REPLIES[2]), refused="because"),
        RecordDict({FACTS: pack_reply(REPLIES[0])[FACTS]}),
        RecordDict(
            {FACTS: pack_reply(REPLIES[0])[FACTS], VECTORS: ArrayRecord({"update": Array("f4", (1,), "numpy", b"")})}
        ),
        pack_request(REQUEST),
    ],
)
def test_what_is_no_reply_is_refused(content):
    with pytest.raises(WrongEnvelopeError):
        unpack_reply(content)


@pytest.mark.parametrize("attempt", ["../x", "a\n", "", "x" * 200])
def test_an_attempt_is_a_name(attempt):
    with pytest.raises(WrongEnvelopeError, match="attempt"):
        unpack_request(pack_request(replace(REQUEST, attempt=attempt)))


def test_what_is_no_request_is_refused():
    with pytest.raises(WrongEnvelopeError):
        unpack_request(pack_reply(REPLIES[0]))
