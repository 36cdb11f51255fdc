"""Who is let in, what travels, and what a server offers."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from types import SimpleNamespace
from typing import NoReturn

import httpx
import pytest
from commanded import logs_restored
from fastapi.routing import iter_route_contexts
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.supernode.fleet_http_client import FleetHttpClient

from zetadp.base.validation import NEEDS_A_PERSON, UserError
from zetadp.cli.arguments import log_to_terminal
from zetadp.hospitals import node
from zetadp.hospitals.certificates import make_credentials, make_node_key, read_node_key, read_public_key
from zetadp.hospitals.launcher import free_port
from zetadp.hospitals.masks import Place
from zetadp.hospitals.node import Uplink
from zetadp.hospitals.protocol import Answer, Request, Unreadable, pack, unpack
from zetadp.hospitals.superlink import SizeLimit, SuperLink

NAMES, PLACE, LIMIT = ("a", "b"), Place("training", 0), 1 << 20
UNFINISHED = SimpleNamespace(is_finished=False)
PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return make_credentials(tmp_path_factory.mktemp("superlink") / "keys", NAMES)


@pytest.fixture(scope="module")
def served(keys):
    """A SuperLink that knows two nodes, and its address."""
    port = free_port()
    public = {name: read_public_key(keys.node(name)[0]) for name in NAMES}
    with SuperLink(keys, "127.0.0.1", port, public, 60.0, LIMIT) as superlink:
        yield superlink, f"127.0.0.1:{port}"


def uplink(address, keys, name: str) -> Uplink:
    return Uplink(address, keys.authority, read_node_key(keys.node(name)[1]))


def test_a_request_reaches_its_node_alone_and_its_answer_comes_back_as_a_whole(keys, served):
    line, address = served
    assert not line.reachable()
    request = Request("plan", PLACE, 0, "", bytes(100_000))
    with uplink(address, keys, "a") as a, uplink(address, keys, "b") as b:
        a.sign_on()
        b.sign_on()
        line._checked_at = 0.0
        assert line.reachable() == {"a", "b"}
        line.ask("a", request)
        assert line.is_pending("a")
        assert b.fetch() is None
        message = a.fetch()
        assert unpack(message.content, Request) == request
        assert line.collect() == []
        answers = [Answer(name, PLACE, bytes(50_000), ("line",)) for name in NAMES]
        a.send(node.Message(pack(answers[0]), reply_to=message))
        assert line.collect() == [answers[0]]
        assert not line.is_pending("a")
        line.ask("a", request)
        a.send(node.Message(pack(answers[1]), reply_to=a.fetch()))  # in another's name
        (refused,) = line.collect()
        assert refused == Unreadable("a", PLACE)
    line._checked_at = 0.0
    assert not line.reachable()


def cut(response: httpx.Response) -> NoReturn:
    raise httpx.ReadError("cut", request=response.request)


def fail(response: httpx.Response) -> None:
    response.status_code = 500


@pytest.mark.parametrize(("fault", "path"), [(cut, PULL), (fail, PULL), (fail, PUSH)])
def test_what_was_lost_on_its_way_is_asked_for_again(fault, path, keys, served, monkeypatch):
    """A server that hands a message out, and fails then, believes that the node is at work on it."""
    line, address = served
    request = Request("plan", PLACE, 0, "", bytes(100_000))
    monkeypatch.setattr(node, "RETRY_SECONDS", 0)

    def once(response: httpx.Response) -> None:
        if response.request.url.path == path:
            client.event_hooks["response"].remove(once)
            fault(response)

    answers = []

    def reply_to(_, message):
        answers.append(unpack(message.content, Request))
        return node.Message(pack(Answer("a", PLACE, b"update", ())), reply_to=message)

    monkeypatch.setattr(node, "reply_to", reply_to)
    with uplink(address, keys, "a") as a:
        client = a._client._client
        a.sign_on()
        line._checked_at = 0.0
        assert line.reachable() == {"a"}
        line.ask("a", request)
        client.event_hooks["response"].append(once)
        node.answer_next(UNFINISHED, a, 0)
        line._checked_at = 0.0
        assert line.reachable() == {"a"}
        assert not line.is_pending("a")
        line.ask("a", request)
        node.answer_next(UNFINISHED, a, 0)
        assert set(answers) == {request}
        assert [answer.update for answer in line.collect()][-1:] == [b"update"]


@pytest.mark.timeout(120)
def test_a_node_shows_that_it_lives_without_keeping_itself_out(served, keys, monkeypatch):
    monkeypatch.setattr(node, "BEAT_SECONDS", 0.01)
    with uplink(served[1], keys, "a") as a:
        shown, send, activate = [], a._client.SendNodeHeartbeat, a._client.ActivateNode
        # A sign of life between signing off and on would connect the old session again.
        monkeypatch.setattr(a._client, "ActivateNode", lambda request: (time.sleep(0.1), activate(request))[1])
        monkeypatch.setattr(a._client, "SendNodeHeartbeat", lambda sign: (shown.append(sign), send(sign)))
        for _ in range(3):
            a.sign_on()
            connected, before = a._node, len(shown)
            while len(shown) < before + 3:
                time.sleep(0.01)
            assert connected.node_id
            assert shown[-1].node == connected


def test_strangers_are_refused(keys, served, tmp_path, monkeypatch, caplog):
    """Without the key, with a server of another authority, or without a key at all."""
    superlink, address = served
    theirs = make_credentials(tmp_path / "theirs", ["stranger"])
    public, private = theirs.node("stranger")

    def sleep(_: float) -> NoReturn:
        raise StopIteration

    monkeypatch.setattr(node.time, "sleep", sleep)  # before it asks again
    stranger = read_node_key(private)
    with pytest.raises(StopIteration), Uplink(address, keys.authority, stranger) as own:
        own.sign_on()
    assert "does not know this node's public key" in caplog.text
    with (
        pytest.raises(UserError, match=r"not the server: .*certificate") as refused,
        Uplink(address, theirs.authority, stranger) as own,
    ):
        own.sign_on()
    assert refused.value.exit_code == NEEDS_A_PERSON
    with pytest.raises(StopIteration), Uplink(f"127.0.0.1:{free_port()}", keys.authority, stranger) as own:
        own.sign_on()
    assert "Connection refused" in caplog.text
    keyless = FleetHttpClient.from_server_address(address, False, keys.authority.read_bytes(), [])
    known = superlink._state.get_node_id_by_public_key(keys.node("a")[0].read_bytes())
    for key in (public, keys.node("a")[0]):
        request = {"public_key": key.read_bytes()}
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            keyless.ActivateNode(ActivateNodeRequest(**request, heartbeat_interval=10))
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            keyless.RegisterNode(RegisterNodeFleetRequest(**request))
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        keyless.PullMessages(PullMessagesRequest(node=node.Node(node_id=known)))
    keyless._client.close()
    superlink._checked_at = 0.0
    assert not superlink.reachable()


def test_a_second_process_of_a_node_leaves_no_line_of_flowers_in_the_log(keys, served, monkeypatch, capsys):
    """Flower writes an error each time that it tries to connect; other errors are lines like all others."""

    def sleep(_: float) -> NoReturn:
        raise StopIteration

    with logs_restored():
        log_to_terminal("server", as_json=True)
        with uplink(served[1], keys, "a") as first:
            first.sign_on()
            monkeypatch.setattr(node.time, "sleep", sleep)  # before it tries again
            with pytest.raises(StopIteration), uplink(served[1], keys, "a") as second:
                second.sign_on()
        logging.getLogger("flwr").error("of Flower")
    lines = [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "connected to the server; waiting for requests"
    assert "takes an earlier process of this node for connected" in lines[1]
    assert lines[2:] == ["of Flower"]


@pytest.mark.parametrize(("finished", "level"), [(True, "INFO"), (False, "WARNING")])
def test_a_server_that_ends_after_the_last_round_is_no_warning(finished, level, keys, monkeypatch, caplog):
    caplog.set_level("INFO", logger="zetadp")
    gone, slept = uplink(f"127.0.0.1:{free_port()}", keys, "a"), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:  # after the message was lost, and before it connects again
            raise StopIteration

    monkeypatch.setattr(node.time, "sleep", sleep)
    with pytest.raises(StopIteration):
        node.answer_next(SimpleNamespace(is_finished=finished), gone, 0)
    lines = [(record.levelname, record.message) for record in caplog.records if record.name == node.__name__]
    assert [line[0] for line in lines] == [level, level]
    assert "not connected to" in lines[1][1]


@pytest.mark.parametrize("content", [bytes(LIMIT + 1), [bytes(LIMIT), b"x"]], ids=["told", "not told"])
def test_a_body_above_the_limit_is_refused_before_any_signature_is_looked_at(content, keys, served):
    with httpx.Client(verify=ssl.create_default_context(cafile=keys.authority), trust_env=False) as stranger:
        assert stranger.post(f"https://{served[1]}{PUSH}", content=content).status_code == 413


def test_of_an_endless_body_no_more_than_the_limit_is_read():
    read, sent = [], []

    async def receive():
        read.append(1 << 18)
        return {"type": "http.request", "body": bytes(1 << 18), "more_body": True}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": PUSH, "headers": []}
    asyncio.run(SizeLimit(None, LIMIT)(scope, receive, send))
    assert sum(read) == LIMIT + (1 << 18)
    assert sent[0]["status"] == 413


def test_nothing_is_served_except_the_interface_for_nodes(served):
    superlink, address = served
    paths = {route.path for route in iter_route_contexts(superlink._server.config.app.routes)}
    assert "/v1/fleet/pull-messages" in paths
    assert all(path.startswith("/v1/fleet/") for path in paths)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{address}/", trust_env=False)


def test_secrets_are_readable_by_their_owner_alone_and_never_overwritten(tmp_path):
    made = make_credentials(tmp_path / "keys", NAMES, ["server.example"])
    for secret in (made.server[1], made.node("a")[1], made.node("b")[1]):
        assert secret.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="Expected a new folder"):
        make_credentials(tmp_path / "keys", ["a"])
    with pytest.raises(FileExistsError):
        make_node_key(tmp_path / "a.pub.pem", tmp_path / "keys/a.key")
