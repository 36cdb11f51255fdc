from __future__ import annotations

import json
import logging
import re
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from commanded import logs_restored
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from hospitals.sites import make_hospital, make_plan
from hypothesis import given
from hypothesis import strategies as st

from zetadp.base.logs import PlainLines
from zetadp.base.validation import UserError
from zetadp.cli.arguments import log_to_terminal
from zetadp.hospitals import node
from zetadp.hospitals.masks import FreshValue, Place
from zetadp.hospitals.protocol import (
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
    Request("plan", Place("training", 3, 2), 1, "0" * 64, b"weights", ("f" * 64,), VALUES),
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
    assert set(json.loads(content[FACTS][FACTS])) == {"name", "place", "update", "lines", "value", "signature"}


def changed(of=ANSWER, **facts: object) -> RecordDict:
    record = pack(of)[FACTS]
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


FORGED = "\x1b[2J\x1b[1;1Hround 3 of 3 is recorded; epsilon spent so far 0.001\n"


@pytest.mark.parametrize("facts", [{"seen": [FORGED]}, {"seen": ["0" * 63]}, {"head": FORGED}, {FORGED: 1}])
def test_a_server_writes_nothing_of_its_own_into_the_log_of_a_hospital(facts, tmp_path, monkeypatch, capsys):
    """It names heads of ledgers, which are hashes."""
    hospital = make_hospital(make_plan(noise="os"), 0, tmp_path, answer_seconds=0)
    monkeypatch.setattr(node, "Message", lambda content, reply_to: content)
    monkeypatch.setattr(node, "faulthandler", Mock())  # it needs a file, and pytest captures
    with logs_restored():
        log_to_terminal("node-01")
        reply = node.reply_to(hospital, SimpleNamespace(content=changed(MESSAGES[0], **facts)))
    assert unpack(reply, Refusal).reason == Reason.PLAN
    (line,) = capsys.readouterr().out.splitlines()
    assert re.match(r"\S+ WARNING node-01: not a request: ", line)
    assert line.isprintable()


def test_control_characters_of_anybody_are_escaped_in_a_log():
    record = logging.makeLogRecord({"msg": "%s", "args": (FORGED,)})
    assert PlainLines("%(message)s").format(record).split("\n")[0].isprintable()


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
