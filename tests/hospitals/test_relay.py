"""Whoever can connect in a node's name, without its key, says nothing that a server uses or records."""

from __future__ import annotations

import ssl
import threading
import time
from dataclasses import replace

import httpx
import pytest
import torch
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from hospitals.sites import (
    KEY,
    OFTEN,
    QUICK,
    DirectLine,
    coordinator,
    hospitals,
    make_hospital,
    make_plan,
    random_records,
)

from zetadp.account.register import START, Link
from zetadp.accounting.events import entries_of
from zetadp.base.validation import UserError
from zetadp.hospitals.certificates import make_credentials, public_bytes
from zetadp.hospitals.coordinator import Coordinator
from zetadp.hospitals.launcher import free_port
from zetadp.hospitals.masks import Place
from zetadp.hospitals.node import Message, Uplink
from zetadp.hospitals.protocol import Answer, Refusal, Request, encode, pack, signed_reply, unpack
from zetadp.hospitals.superlink import SuperLink
from zetadp.training.checkpoint import RunFiles
from zetadp.training.settings import Patience

NAME, ADDRESS = "node-01", "127.0.0.1"
REFUSED = "its answer is refused: it was altered after it was signed, or signed with another key"


def with_ones(request, reply):
    return replace(reply, update=encode(torch.ones(len(reply.update) // 4)))


CHANGES = {
    "another update": with_ones,
    "a line less": lambda request, reply: replace(reply, lines=reply.lines[:-1]),
    "no signature": lambda request, reply: replace(reply, signature=""),
    "a refusal with the signature of an answer": lambda request, reply: Refusal(
        reply.name, reply.place, "the plan has no such round", reply.signature
    ),
    "signed for another plan": lambda request, reply: signed_reply(reply, replace(request, plan="other"), KEY),
    "signed for another training": lambda request, reply: signed_reply(
        reply, replace(request, place=Place("other", request.place.round)), KEY
    ),
    "signed for another round": lambda request, reply: signed_reply(
        reply, replace(request, place=Place(request.place.training, 1)), KEY
    ),
    "signed for other weights": lambda request, reply: signed_reply(reply, replace(request, weights=b"other"), KEY),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_answer_counts_only_as_its_node_signed_it(change, tmp_path):
    plan = make_plan(nodes=2)
    line = DirectLine(
        hospitals(plan, tmp_path), lambda *sent: change(*sent) if sent[1].name == NAME else sent[1], signs=False
    )
    with pytest.raises(UserError, match=f"{NAME} failed 3 times .{REFUSED}"):
        coordinator(plan, line, tmp_path, replace(QUICK, give_up_seconds=60)).run()
    assert not (tmp_path / f"server/ledger.nodes/{NAME}.jsonl").exists()


class Impostor:
    """Speaks to a server with the headers that a node signed for another one."""

    def __init__(self, address, authority, headers):
        self.headers = headers
        self.client = httpx.Client(
            verify=ssl.create_default_context(cafile=authority), base_url=f"https://{address}", trust_env=False
        )

    def post(self, path, content, answer):
        found = self.client.post(f"/v1/fleet/{path}", content=content.SerializeToString(), headers=self.headers)
        found.raise_for_status()
        return answer.FromString(found.content)

    def sign_on(self):
        request = ActivateNodeRequest(public_key=public_bytes(KEY.public_key()), heartbeat_interval=10)
        self.node = Node(node_id=self.post("activate-node", request, ActivateNodeResponse).node_id)

    def pull(self):
        found = self.post("pull-messages", PullMessagesRequest(node=self.node), PullMessagesResponse).messages_list
        return message_from_proto(found[0]) if found else None

    def push(self, reply):
        vars(reply.metadata)["_message_id"] = reply.object_id
        tree = ObjectTree(object_id=reply.object_id)
        push = PushMessagesRequest(node=self.node, messages_list=[message_to_proto(reply)], message_object_trees=[tree])
        self.post("push-messages", push, PushMessagesResponse)


def invented(plan, request: Request) -> Answer:
    """Return an update without noise, with the ledger lines that it should have."""
    header = {"kind": "start", "format": 3, "attempt": 1, "nonce": "0", "register": START}
    begun = Link.after(START, {**header, "federation": request.place.training, **plan.declaration().to_json()})
    released = {"kind": "round", "releases": entries_of([plan.event(NAME, request.place.round)])}
    lines = (begun.text, Link.after(begun.head, released).text)
    return Answer(NAME, request.place, encode(torch.ones(len(request.weights) // 4)), lines)


def test_the_server_of_another_training_cannot_speak_as_a_hospital(tmp_path):
    """It has what the node's connection with it shows: signed headers, which name no server."""
    plan = make_plan(nodes=1, rounds=2)
    attacked, hostile = make_credentials(tmp_path / "attacked"), make_credentials(tmp_path / "hostile")
    ports, keys, ended = [free_port(), free_port()], {NAME: KEY.public_key()}, []
    with (
        SuperLink(attacked, ADDRESS, ports[0], keys, 60.0) as line,
        SuperLink(hostile, ADDRESS, ports[1], keys, 60.0),
        Uplink(f"{ADDRESS}:{ports[1]}", hostile.authority, KEY) as uplink,
    ):
        seen = []
        uplink._client._client.event_hooks["request"].append(seen.append)
        uplink.sign_on()
        headers = {name: text for name, text in seen[0].headers.items() if name not in {"host", "content-length"}}
        impostor = Impostor(f"{ADDRESS}:{ports[0]}", attacked.authority, headers)
        impostor.sign_on()
        files = RunFiles(tmp_path / "server/ledger.jsonl", tmp_path / "server/checkpoint")
        patience = Patience(poll_seconds=0.01, give_up_seconds=30)
        server = Coordinator(plan, patience, line, random_records(2, 99), files, performance=OFTEN)

        def serve():
            try:
                server.run()
            except UserError as error:
                ended.append(str(error))

        serving = threading.Thread(target=serve)
        serving.start()
        while serving.is_alive():
            if (message := impostor.pull()) is not None:
                request = unpack(message.content, Request)
                impostor.push(Message(pack(invented(plan, request)), reply_to=message))
            time.sleep(0.05)
        serving.join()
        impostor.client.close()
    assert REFUSED in ended[0]
    assert not server.mirrors[NAME].path.exists()
    # The hospital itself is not harmed: its own answer is accepted later.
    coordinator(plan, DirectLine([make_hospital(plan, 0, tmp_path)]), tmp_path).run()
