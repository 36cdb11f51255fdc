from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from zetadp.base.validation import UserError
from zetadp.federation.masks import FreshValue, Place
from zetadp.federation.protocol import (
    FACTS,
    Answer,
    Reason,
    Refusal,
    Request,
    WrongEnvelopeError,
    WrongUpdateError,
    decode,
    encode,
    pack,
    unpack,
)

VALUES = FreshValue("node", "00", "ff"), FreshValue("other", "11", "ee")
MESSAGES = [
    Request("plan", Place("training", 3), 1, "", b"\x00\xff"),
    Request("plan", Place("training", 3, 2), 1, "head", b"weights", ("seen",), VALUES),
    Answer("node", Place("training", 3), b"update", ("one", "two")),
    Answer("node", Place("training", 3, 2), b"", (), VALUES[0]),
    *(Refusal("node", Place("training", 3), reason) for reason in Reason),
]
ANSWER = MESSAGES[2]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent_and_as_no_other(message):
    assert unpack(pack(message), type(message)) == message
    for other in {Request, Answer, Refusal} - {type(message)}:
        with pytest.raises(WrongEnvelopeError):
            unpack(pack(message), other)
    if isinstance(message, Answer | Refusal):
        assert unpack(pack(message), Answer | Refusal) == message


def test_nothing_else_is_in_an_answer():
    content = pack(ANSWER)
    assert set(content) == {FACTS}
    assert content[FACTS]["update"] == b"update"
    assert set(content[FACTS]) == {FACTS, "update"}
    assert set(json.loads(content[FACTS][FACTS])) == {"name", "place", "update", "lines", "value"}


def changed(**facts: object) -> RecordDict:
    record = pack(ANSWER)[FACTS]
    told = json.loads(record[FACTS]) | facts
    return RecordDict({FACTS: ConfigRecord({**record, FACTS: json.dumps(told)})})


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        RecordDict({FACTS: ArrayRecord({})}),
        RecordDict({FACTS: ConfigRecord({FACTS: "[" * 100_000})}),
        RecordDict({FACTS: ConfigRecord({**pack(ANSWER)[FACTS], "more": b"bytes"})}),
        changed(place={"training": "training", "round": "three"}),
        changed(lines=[1, 2]),
        changed(value={"name": "node"}),
        changed(more=1),
    ],
)
def test_what_is_no_answer_is_refused(content):
    with pytest.raises(WrongEnvelopeError):
        unpack(content, Answer | Refusal)


@pytest.mark.parametrize(
    "message", [MESSAGES[1], ANSWER, MESSAGES[4], MESSAGES[-1]], ids=lambda each: type(each).__name__
)
@pytest.mark.parametrize("value", [5, 0.0, True, "../x", b"x", [1], [0.5], ["x"], [b"x"]], ids=repr)
def test_beside_its_facts_a_message_holds_its_bytes_and_nothing_else(message, value):
    """What travels outside the text that is read strictly cannot replace a field of it, nor be left out."""
    record = pack(message)[FACTS]
    for name, sent in vars(message).items():
        if not (isinstance(sent, bytes) and isinstance(value, bytes)):
            with pytest.raises(WrongEnvelopeError):
                unpack(RecordDict({FACTS: ConfigRecord({**record, name: value})}), type(message))
        if isinstance(sent, bytes):
            less = {key: each for key, each in record.items() if key != name}
            with pytest.raises(WrongEnvelopeError):
                unpack(RecordDict({FACTS: ConfigRecord(less)}), type(message))


@pytest.mark.parametrize("training", ["../x", "a\n", "", "x" * 200])
def test_a_training_has_a_name(training):
    with pytest.raises(UserError, match="training"):
        Place(training, 0)
    with pytest.raises(WrongEnvelopeError, match="training"):
        unpack(changed(place={"training": training, "round": 3}), Answer)


def vector(dimension: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(dimension, generator=torch.Generator().manual_seed(seed))


@given(dimension=st.integers(1, 1000), seed=st.integers(0, 99))
def test_an_update_travels_bit_for_bit_in_four_bytes_a_part(dimension, seed):
    sent = vector(dimension, seed)
    sent[0] = -0.0
    content = encode(sent)
    assert len(content) == 4 * dimension
    assert torch.equal(decode(content, dimension).view(torch.int32), sent.view(torch.int32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad):
    content = bytearray(encode(vector(300)))
    content[:4] = np.array([bad], "<f4").tobytes()
    with pytest.raises(WrongUpdateError, match="that are not"):
        decode(bytes(content), 300)
