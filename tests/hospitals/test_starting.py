"""What is refused before anything starts: a port or folder in use, and files that cannot be what they should be."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from commanded import ended, logs_restored, mistake
from hospitals.sites import make_plan

from zetadp.base.tensors import save_tensors
from zetadp.base.validation import NEEDS_A_PERSON
from zetadp.cli import main
from zetadp.hospitals.certificates import make_credentials
from zetadp.hospitals.launcher import free_port

PLAN = make_plan(nodes=2, rounds=2, noise="os")
NAMES = [node.name for node in PLAN.nodes]


def put_settings(folder: Path, **changes: object) -> None:
    """Write the settings of a server whose plan and keys are in the same folder."""
    content = {
        "plan": "plan.json",
        "keys": {name: f"keys/{name}.pub.pem" for name in NAMES},
        **{name: f"out/{name}" for name in ("model", "history", "ledger", "ledger_file", "checkpoint")},
    }
    content = {key: value for key, value in (content | changes).items() if value is not None}
    (folder / "server.yaml").write_text(yaml.safe_dump(content))


@pytest.fixture
def site(tmp_path):
    """A folder with all that a server and a node need, patients aside."""
    PLAN.write(tmp_path / "plan.json")
    make_credentials(tmp_path / "keys", NAMES)
    put_settings(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_server_that_is_interrupted_says_so_and_a_second_one_is_refused(site, capsys, monkeypatch):
    monkeypatch.chdir(site)
    serve = ["serve", "server.yaml", "--credentials", "keys", "--port", str(free_port())]
    command = [sys.executable, "-m", "zetadp.cli", "federation", *serve]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as first:
        try:
            assert " INFO Serving at port" in first.stdout.readline()
            assert "not connected: node-01, node-02" in first.stdout.readline()
            assert f"port {serve[-1]} of 0.0.0.0" in mistake(capsys, "federation", *serve)
            first.send_signal(signal.SIGINT)
            said, _ = first.communicate(timeout=60)
        finally:
            first.kill()
    assert first.returncode == 1
    assert said.startswith("zetadp: Stopped before the end")


# Commands with a mistake in them: each ends in one message, which names the file or key, before a process is started.


def swap(site: Path, source: str, target: str) -> None:
    shutil.copy(site / source, site / target)


def put_model(site: Path) -> None:
    """Put a model of another training where the settings name theirs."""
    put_settings(site, model="model")
    save_tensors(site / "model", {"a": torch.zeros(1)}, {"ledger_head": "0" * 64})


FAULTS_OF_SERVERS = {
    "server.yaml": lambda site: (site / "server.yaml").unlink(),
    "server.yaml ": lambda site: (site / "server.yaml").write_text(""),
    "['node-01', 'node-02']": lambda site: put_settings(site, keys=None),
    "plan.json": lambda site: (site / "plan.json").unlink(),
    "keys/server.pem": lambda site: (site / "keys/server.pem").unlink(),
    "keys/authority.pem": lambda site: (site / "keys/authority.pem").write_text("nothing"),
    "keys/server.key": lambda site: shutil.copy(make_credentials(site / "others", NAMES).server[1], site / "keys"),
    "certificate": lambda site: shutil.copy(make_credentials(site / "others", NAMES).authority, site / "keys"),
    "keys/node-02.pub.pem": lambda site: swap(site, "keys/node-02.key", "keys/node-02.pub.pem"),
    "keys/node-02.pub.pem ": lambda site: (site / "keys/node-02.pub.pem").unlink(),
    "the same one at ['node-01', 'node-02']": lambda site: swap(site, "keys/node-01.pub.pem", "keys/node-02.pub.pem"),
    "'node-02'": lambda site: put_settings(site, keys={"node-01": "keys/node-01.pub.pem"}),
    "does not come from": put_model,
    "modle": lambda site: put_settings(site, modle="a"),
    "'tires' at patience": lambda site: put_settings(site, patience={"tires": 3}),
    "evaluate_every": lambda site: put_settings(site, evaluate_every=0),
}


@pytest.mark.parametrize("named", FAULTS_OF_SERVERS)
def test_what_a_server_lacks_is_one_message_before_it_starts(named, site, capsys):
    FAULTS_OF_SERVERS[named](site)
    serve = ["serve", site / "server.yaml", "--credentials", site / "keys"]
    serve += ["--host", "127.0.0.1", "--port", free_port()]
    assert named.strip() in mistake(capsys, "federation", *serve, code=NEEDS_A_PERSON)
    assert not (site / "out").exists()


def test_wrong_test_patients_of_a_server_need_a_person(site, capsys):
    put_settings(site, watched="nowhere", watched_patients=6)
    serve = ["serve", site / "server.yaml", "--credentials", site / "keys", "--host", "127.0.0.1"]
    with logs_restored():
        code, _, error = ended(capsys, "federation", *serve, "--port", free_port())
    assert code == NEEDS_A_PERSON
    assert "nowhere" in error


FAULTS_OF_NODES = [
    ("name of a node", {"name": "node-07"}),
    ("no.json", {"plan": "no.json"}),
    ("attempts", {"attempts": 0}),
    ("imagse", {"imagse": "b"}),
    ("simulation", {"simulation": "no"}),
    ("cap", {"cap": 0}),
    ("cap", {"cap": {"epsilon": 8}}),
    ("The cap is 0.1", {"cap": 0.1}),
    ("`cap` in node.yaml, which must cover this run and all earlier ones", {"cap": 0.1}),
    *(("delta", {"delta": delta}) for delta in (0, 1)),
    ("answer_seconds of at least 0.1", {"answer_seconds": 1e-300}),
    ("device", {"device": "gpu"}),
    *(
        ("--server", {"--server": server})
        for server in ("server.example", ":9443", "a:70000", "a:٩٤٤٣", "2001:db8::1:9443", "a:9443/", "ä.example:9443")
    ),
    ("keys/no.pem", {"--authority": "keys/no.pem"}),
    ("keys/node-01.pub.pem", {"--key": "keys/node-01.pub.pem"}),
    ("Nobody has approved", {}),
]


@pytest.mark.parametrize(("named", "changes"), FAULTS_OF_NODES)
def test_what_a_node_lacks_is_one_message_before_it_starts(named, changes, site, capsys, monkeypatch):
    monkeypatch.chdir(site)
    content = {"name": "node-01", "plan": "plan.json", "images": "images", "state": "state"}
    given = {"--server": "[2001:db8::1]:9443", "--authority": "keys/authority.pem", "--key": "keys/node-01.key"}
    options = given | {key: value for key, value in changes.items() if key in given}
    content |= {key: value for key, value in changes.items() if key not in given}
    Path("node.yaml").write_text(yaml.safe_dump(content))
    command = ["federation", "node", "node.yaml", *(word for option in options.items() for word in option)]
    assert named in mistake(capsys, *command, code=NEEDS_A_PERSON)
    assert not Path("state").exists()


def test_what_cannot_be_written_or_read_is_one_message(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert "file" in mistake(capsys, "federation", "certificates", tmp_path / "file/keys")
    assert "no/a.pem" in mistake(capsys, "federation", "key", tmp_path / "no/a.pem", tmp_path / "a.key")
    assert "no/a.key" in mistake(capsys, "federation", "key", tmp_path / "a.pem", tmp_path / "no/a.key")
    assert not [*tmp_path.glob("a.*")], "half a pair"
    assert main(["federation", "key", str(tmp_path / "a.pem"), str(tmp_path / "a.key")]) == 0
    capsys.readouterr()
    assert "a.pem" in mistake(capsys, "federation", "key", tmp_path / "a.pem", tmp_path / "b.key")
    (tmp_path / "list.yaml").write_text("[1, 2]")
    for name, found in (("file", "NoneType"), ("list.yaml", "list")):
        message = mistake(capsys, "federation", "plan", tmp_path / name, "--network", "complex", "--epsilon", "8")
        assert f"Expected sections in the configuration {tmp_path / name}, found {found}" in message
