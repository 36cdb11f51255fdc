"""Masked sums between three real processes over TLS, with noise from the operating system and real deaths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import warm
from federation.consortium import Consortium
from federation.sites import sums_plan
from federation.test_faults import wait_until, weights

from zetadp.core.promise import promise_of
from zetadp.federation.flower.protocol import Reason
from zetadp.privacy.accounting import compose, epsilon

pytestmark = pytest.mark.slow


@pytest.fixture
def three(tmp_path, monkeypatch):
    """Three nodes with exact noise and four spare tries."""
    here = str(Path(__file__).parent)
    monkeypatch.setenv("FAULTS", str(tmp_path / "state" / "server"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")])))
    plan = sums_plan(spare=4, rounds=3, noise="os")
    with Consortium(tmp_path, plan, "faulty", python=warm.python()) as running:
        running.start_nodes()
        yield running


def test_a_training_goes_through_the_death_of_a_node_and_of_the_server(three):
    """kill -9 of a node after its release, of one that loses its message as well, and of the server in a try."""
    settings = three.server()
    three.spoil("node-02", "dawdle")
    three.federation.begin(settings)
    wait_until((three.state("node-02") / "released").exists)
    three.federation.processes.kill("node-02")
    three.federation.processes.kill("server")
    three.mend()
    three.start_nodes("node-02")
    # The recorded try is asked again, and all three send the words that they stored.
    again = three.server_again()
    three.federation.begin(again)
    wait_until(lambda: '"round": 1' in again.ledger_file.read_text())
    assert [event.round for event in three.own_account("node-02").releases()].count(0) == 1
    three.spoil("node-03", "die")
    wait_until(lambda: "void" in (three.federation.folder / "logs/server.log").read_text())
    three.mend()
    three.federation.wait()
    assert torch.isfinite(weights(settings)).all()
    for name in three.names:
        own = three.own_account(name).releases()
        assert {event.round for event in own} == {0, 1, 2}
        assert three.plan.training.rounds <= len(own) <= three.plan.tries
        assert epsilon(compose(own), three.plan.delta) <= promise_of(three.plan, name).epsilon
        assert sum(event.node == name for event in three.account().releases()) >= len(own)


def test_a_node_that_is_killed_before_its_release_makes_one_try_void(three):
    settings = three.server()
    three.spoil("node-01", "hang")
    three.federation.begin(settings)
    own = three.state("node-02") / "ledgers" / f"{three.plan.label}.jsonl"
    wait_until(lambda: own.exists() and '"kind": "signed"' in own.read_text())
    three.federation.processes.kill("node-01")
    three.mend()
    three.start_nodes("node-01")
    three.federation.wait()
    log = (three.federation.folder / "logs/server.log").read_text()
    assert f"node-01, round 1: {Reason.VALUE}" in log
    assert [len(three.own_account(name).releases()) for name in three.names] == [3, 4, 4]
