"""Who is let in, what a node lets a server do to it, and who may reach the server's other interfaces."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import nullcontext
from typing import Any

import httpx
import pytest
from cryptography import x509
from federation.consortium import Consortium
from flwr.cli.build import build_fab_from_files
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.supercore.protobuf.client import ProtobufRequestContext

from zetadp.base.validation import UserError
from zetadp.federation.flower import control
from zetadp.federation.flower.certificates import make_credentials, make_node_key
from zetadp.federation.flower.patches import OPERATOR, AsOperator, NodesOnlyFromOutside
from zetadp.federation.flower.processes import free_port


def start_stranger(consortium: Consortium, name: str, *arguments: str) -> None:
    """Start a SuperNode with arguments of its own."""
    port = str(free_port())
    consortium.federation.processes.start(
        name,
        "supernode",
        ["--superlink", consortium.federation.address, "--port", port, "--isolation", "process", *arguments],
    )


@pytest.mark.slow
def test_strangers_are_refused(consortium, tmp_path):
    """Without the key, with another's certificate, without a key at all, or in plain text."""
    federation, ours = consortium.federation, consortium.credentials
    theirs = make_credentials(tmp_path / "theirs", ["stranger"])
    trusted = ("--root-certificates", str(ours.authority))
    key = ("--auth-supernode-private-key", str(theirs.node("stranger")[1]))
    own_key = ("--auth-supernode-private-key", str(ours.node("node-01")[1]))
    authenticated = r"SuperNode authentication is enabled\. All SuperNodes must be registered"
    strangers = {
        "unknown-key": ([*trusted, *key], r"\[code: 2004\] Failed to activate SuperNode"),
        "no-key": ([*trusted], rf"\[code: 2001\] {authenticated}"),
        "wrong-authority": (
            ["--root-certificates", str(theirs.authority), *own_key],
            "CERTIFICATE_VERIFY_FAILED.*unable to get local issuer certificate",
        ),
        "plain-text": (["--insecure"], "Server disconnected without sending a response|Connection reset by peer"),
    }
    logs = federation.folder / "logs"
    known = (logs / "superlink.log").stat().st_size
    with federation.control() as operator:
        before = operator.online()
        for name, (arguments, _) in strangers.items():
            start_stranger(consortium, name, *arguments, "--max-retries", "1")
        try:
            end = time.monotonic() + 60
            while any(federation.processes.runs(name) for name in strangers) and time.monotonic() < end:
                assert operator.online() <= before
                time.sleep(0.2)
            assert not [name for name in strangers if federation.processes.runs(name)]
            assert operator.online() == before
        finally:
            federation.processes.kill(*strangers)
    for name, (_, reason) in strangers.items():
        log = (logs / f"{name}.log").read_text()
        refusal = log.partition("Failed to initialize the connection to the SuperLink.")[2]
        assert re.match(rf"\n.*({reason})", refusal), (name, refusal[:800])
    # A node that is known may fail to be activated for other reasons: the server says which key it did not know.
    said = (logs / "superlink.log").read_bytes()[known:].decode()
    unknown = repr(theirs.node("stranger")[0].read_bytes())
    assert f"with public key: {unknown}, exception: No SuperNode found with the given public key." in said


@pytest.mark.slow
def test_the_server_speaks_no_plain_text(consortium):
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{consortium.federation.address}/health", trust_env=False)


@pytest.mark.slow
def test_code_that_a_server_sends_is_not_run_by_nodes(consortium, tmp_path, monkeypatch):
    mark = tmp_path / "was-here"
    evil = f"open({str(mark)!r}, 'w').close()\nfrom zetadp.federation.flower.hospital import bundled as app\n"
    project = control.BUNDLE.replace("zetadp.federation.flower.hospital:bundled", "evil:app")
    assert project != control.BUNDLE

    def bundle() -> bytes:
        return build_fab_from_files({"evil.py": evil.encode(), "pyproject.toml": project.encode()})[0]

    monkeypatch.setattr(control, "app_bundle", bundle)
    with pytest.warns(DeprecationWarning, match="gitwildmatch"):
        consortium.federation.run(consortium.server())
    assert len(consortium.account().releases()) == 3 * consortium.plan.training.rounds
    assert not mark.exists()


@pytest.mark.parametrize(
    ("client", "path", "passes"),
    [
        ("127.0.0.1", "/v1/control/start-run", True),
        ("::1", "/v1/runtime/acquire-task", True),
        ("192.0.2.1", "/v1/fleet/pull-messages", True),
        ("192.0.2.1", "/v1/control/start-run", False),
        ("192.0.2.1", "/v1/control/register-node", False),
        ("192.0.2.1", "/v1/runtime/acquire-task", False),
        ("2001:db8::1", "/docs", False),
        ("192.0.2.1", "/v1/fleet/../control/start-run", True),  # a path as it is; Starlette resolves none
        (None, "/v1/control/start-run", False),
    ],
)
def test_other_machines_reach_the_interface_for_nodes_alone(client, path, passes):
    passed, sent = ask(client, path, [(OPERATOR.encode(), b"secret")])
    assert passed == passes
    assert passes or sent[0]["status"] == 403


@pytest.mark.parametrize(
    ("path", "secret", "passes"),
    [
        ("/v1/control/stop-run", b"secret", True),
        ("/v1/control/stop-run", b"another", False),
        ("/v1/control/stop-run", None, False),
        ("/v1/runtime/acquire-task", None, True),
        ("/v1/fleet/pull-messages", None, True),
    ],
)
def test_operators_need_the_secret_of_the_superlink(path, secret, passes):
    passed, sent = ask("127.0.0.1", path, [] if secret is None else [(OPERATOR.encode(), secret)])
    assert passed == passes
    assert sent[0]["status"] == (200 if passes else 403)


@pytest.mark.parametrize(("status", "accepted"), [(200, True), (403, False)])
def test_an_operator_whom_a_superlink_refuses_has_called_another_federation(status, accepted):
    request = httpx.Request("POST", "https://127.0.0.1:1/v1/control/list-nodes")
    context = ProtobufRequestContext("/flwr.proto.Control/ListNodes", ListNodesRequest(), request)
    answer = httpx.Response(status)
    refused = nullcontext() if accepted else pytest.raises(UserError, match=r"Another server .* at 127\.0\.0\.1:1\.")
    with refused:
        assert AsOperator("127.0.0.1:1", "secret").intercept(context, lambda _: answer) is answer
    assert request.headers[OPERATOR] == "secret"


def ask(client: str | None, path: str, headers: list[tuple[bytes, bytes]]) -> tuple[bool, list[dict[str, Any]]]:
    """Return whether a request passes on to the SuperLink, and what is sent in answer."""
    seen, sent = [], []

    async def app(scope, receive, send):
        seen.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "client": client and (client, 1234), "method": "POST", "headers": headers}
    asyncio.run(NodesOnlyFromOutside(app, "secret")(scope, None, send))
    return bool(seen), sent


def test_secrets_are_readable_by_their_owner_alone(tmp_path):
    made = make_credentials(tmp_path / "keys", ["a", "b"], ["server.example"])
    for secret in (made.server[1], made.node("a")[1], made.node("b")[1]):
        assert secret.stat().st_mode & 0o777 == 0o600
    assert made.node("a")[0].read_bytes() != made.node("b")[0].read_bytes()
    certificate = x509.load_pem_x509_certificate(made.server[0].read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["server.example", "127.0.0.1", "localhost"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(made.authority.read_bytes()))


def test_keys_in_use_are_never_overwritten(tmp_path):
    make_credentials(tmp_path / "keys", ["a"])
    with pytest.raises(UserError, match="Expected a new folder"):
        make_credentials(tmp_path / "keys", ["a"])
    with pytest.raises(FileExistsError):
        make_node_key(tmp_path / "a.pub.pem", tmp_path / "keys/a.key")
