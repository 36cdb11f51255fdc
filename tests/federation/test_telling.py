"""What a hospital and a server read on their terminals, from logs as Flower and this package write them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from federation.sites import DirectLine, make_hospital, make_plan, random_records

from zetadp.base.epsilon import rounded_up
from zetadp.base.validation import UserError
from zetadp.core.training import TrainingFiles
from zetadp.federation.flower import coordinator as server
from zetadp.federation.flower.coordinator import Coordinator
from zetadp.federation.flower.processes import Processes
from zetadp.federation.flower.settings import HospitalSettings, Patience, ledger_of
from zetadp.federation.flower.telling import Log, NodeTold
from zetadp.privacy.calibration import promise_of
from zetadp.privacy.ledger import Ledger

PLAN = make_plan(nodes=2, rounds=2, noise="os")
NAME = "node-01"


@pytest.fixture
def node(tmp_path):
    """A node whose two processes are stood in for by this one, and what it says."""
    processes = Processes(tmp_path / "logs", {})
    processes.folder.mkdir()
    processes._running = dict.fromkeys((NAME, f"{NAME}-worker"), os.getpid())
    settings = HospitalSettings(NAME, tmp_path / "plan.json", tmp_path / "images", tmp_path / "state")
    said: list[str] = []
    told = NodeTold(processes, settings, PLAN, "server.example:9443", tmp_path / "number", said.append)

    def end(name: str) -> None:
        with subprocess.Popen([sys.executable, "-c", ""]) as dead:
            pass
        processes._running[name] = dead.pid

    def write(name: str, text: str) -> None:
        with processes.log(name).open("a") as file:
            file.write(text)

    return SimpleNamespace(
        told=told, said=said, write=write, end=end, folder=tmp_path, ledger=ledger_of(settings, PLAN)
    )


def test_a_node_says_that_it_is_connected_and_what_each_round_has_cost(node):
    node.told.look()
    assert node.said == []
    (node.folder / "number").write_text("7")
    node.told.look()
    node.told.look()
    assert node.said == ["node-01: connected to server.example:9443; waiting for requests"]
    with Ledger(node.ledger) as ledger:
        ledger.start(PLAN.header())
        for number in range(2):
            ledger.record([PLAN.event(NAME, number)])
            node.told.look()
    spent = rounded_up(promise_of(PLAN, NAME).epsilon)
    assert len(node.said) == 4
    assert node.said[1].startswith("node-01: round 1 of 2 recorded; epsilon spent so far ")
    assert float(node.said[1].split()[10]) < float(spent)
    assert f"round 2 of 2 recorded; epsilon spent so far {spent} per patient" in node.said[2]
    assert "finished" in node.said[3]


def test_a_server_that_does_not_answer_is_said_once_and_that_it_is_back(node):
    for _ in range(3):
        node.write(NAME, "[WARNING]:   Connection attempt failed, retrying in 0.42 seconds\n")
        node.told.look()
    assert len(node.said) == 1
    assert "no connection to server.example:9443: no server answers at this address" in node.said[0]
    node.write(NAME, "[INFO]:      Connection successful after 3.00 seconds\n")
    node.told.look()
    assert node.said[1].startswith("node-01: connected to")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get issuer", "Ask the coordinator for"),
        (
            "[code: 2004] Failed to activate SuperNode",
            r"the server does not know this node's key, .* Send the public key",
        ),
        ("SSL/TLS handshake error detected.\n[SSL: WRONG_VERSION_NUMBER] wrong version", "another program than a"),
    ],
)
def test_what_ends_a_node_is_said_in_our_words(line, words, node):
    node.write(NAME, f"Failed to initialize the connection to the SuperLink.\n{line}\n")
    node.end(NAME)
    with pytest.raises(UserError, match=f"node-01 cannot connect to server.example:9443: .*{words}") as ended:
        node.told.look()
    assert "SuperLink" not in str(ended.value)


def test_a_node_that_is_about_to_end_is_not_said_to_try_again_and_its_reason_is_kept(node):
    node.write(NAME, "Exit Code: 305\nFailed to initialize the connection.\n[code: 2004] Failed to activate\n")
    node.told.look()
    assert node.said == []
    node.write(NAME, "INFO:     Finished server process\n")
    node.end(NAME)
    with pytest.raises(UserError, match=r"node-01 cannot connect to .*: the server does not know this node's key"):
        node.told.look()


def test_what_is_wrong_with_the_patients_ends_a_node_with_that_message_alone(node):
    node.write(f"{NAME}-worker", "2026-11-23 07:08:13,831 INFO prepared 3 records\n")
    node.write(f"{NAME}-worker", "2026-11-23 07:08:14,831 DEBUG [flwr-clientapp] Start FAB installation.\n")
    node.write(f"{NAME}-worker", "2026-11-23 07:08:14,832 INFO Task stopped by user.\n")
    node.told.look()
    assert node.said == ["node-01: prepared 3 records"]
    node.write(f"{NAME}-worker", "2026-11-23 07:08:15,831 ERROR Expected 3 training patients, found 2.\n")
    node.end(f"{NAME}-worker")
    with pytest.raises(UserError, match=r"^node-01 cannot take part: Expected 3 training patients, found 2\.$"):
        node.told.look()


def test_an_error_is_said_once_whether_it_ends_the_node_or_not(node):
    for number in (1, 2):
        node.write(f"{NAME}-worker", f"2026-11-23 07:08:1{number},831 ERROR round {number}: a reason\n")
        node.told.look()
    node.told.look()
    assert node.said == ["node-01: round 1: a reason", "node-01: round 2: a reason"]
    node.write(f"{NAME}-worker", "2026-11-23 07:08:15,831 ERROR Expected 3 training patients, found 2.\n")
    node.told.look()
    node.end(f"{NAME}-worker")
    with pytest.raises(UserError, match=r"^node-01 cannot take part: Expected 3 training patients, found 2\.$"):
        node.told.look()
    assert len(node.said) == 2


def test_a_list_of_problems_is_one_message_and_what_else_follows_is_not(node):
    problems = "Found 2 problems in the cohort:\n1. Expected 6 patients, found 9.\n2. A volume cannot be read."
    node.write(f"{NAME}-worker", f"2026-11-23 07:08:15,831 WARNING {problems}\nTraceback\n3. not ours\n")
    node.told.look()
    assert node.said == [f"node-01: {problems}"]
    node.write(f"{NAME}-worker", f"2026-11-23 07:08:16,831 ERROR {problems}\n")
    node.end(f"{NAME}-worker")
    with pytest.raises(UserError) as ended:
        node.told.look()
    assert str(ended.value) == f"node-01 cannot take part: {problems}"


def test_a_log_is_read_from_where_it_was_and_in_whole_lines(tmp_path):
    path = tmp_path / "some.log"
    path.write_text("2026-11-23 07:08:13,831 INFO before\n")
    log = Log(path)
    with path.open("a") as file:
        file.write("2026-11-23 07:08:13,831 INFO first\n2026-11-23 07:08:13,831 INFO sec")
    assert list(log.own("INFO")) == [("INFO", "first")]
    with path.open("a") as file:
        file.write("ond\n")
    assert list(log.own("INFO")) == [("INFO", "second")]


def test_a_server_says_who_is_there_whom_it_waits_for_and_what_was_spent(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(server, "REMINDER_SECONDS", 0.0)
    line = DirectLine([make_hospital(PLAN, place, tmp_path / "sites") for place in range(2)])
    line.away = {"node-02"}
    monkeypatch.setattr(server.time, "sleep", lambda _: line.away.clear())
    files = TrainingFiles(tmp_path / "ledger.jsonl", tmp_path / "checkpoint")
    Coordinator(PLAN, Patience(poll_seconds=0.01), line, random_records(0), files).run()
    said = caplog.messages
    assert "connected nodes: node-01; not connected: node-02" in said
    assert "round 1 of 2 waits for node-01 (at work), node-02 (not connected)" in said
    assert "connected nodes: node-01, node-02; not connected: none" in said
    spent = max(promise_of(PLAN, name).epsilon for name in ("node-01", "node-02"))
    assert f"round 2 of 2 is done; epsilon spent so far {rounded_up(spent)} per patient, at delta 0.001" in said
