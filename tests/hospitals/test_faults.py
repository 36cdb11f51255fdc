"""Every fault on real processes: a node dies, hangs, sends what it must not, joins late; the server restarts."""

from __future__ import annotations

import time

import pytest
import torch
from hospitals.consortium import Consortium

from zetadp.accounting.events import histories
from zetadp.base.tensors import load_tensors
from zetadp.base.validation import UserError

pytestmark = pytest.mark.slow


@pytest.fixture
def three(consortium):
    """The shared federation, with every node mended and present again afterwards."""
    yield consortium
    consortium.mend()
    absent = [name for name in consortium.names if not consortium.runs(name)]
    if absent:
        consortium.start_nodes(*absent)


def wait_until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def assert_every_release_is_accounted(three: Consortium) -> None:
    """What the server counts is never less than what a node's own ledger holds."""
    counted = histories(three.attempt().releases())
    for name in three.names:
        assert counted[name].releases >= len(three.own_attempt(name).releases())


def weights(settings) -> torch.Tensor:
    return torch.cat([value.abs().flatten() for value in load_tensors(settings.model)[0].values()])


def test_a_computation_that_hangs_ends_its_node(three):
    three.spoil("node-03", "hang")
    with pytest.raises(UserError, match=r"node-03 ended by itself. The end of (.*\n)*Timeout"):
        three.run(three.training())
    three.kill("server", "node-03")
    three.mend()
    three.start_nodes("node-03")
    three.run(three.training_again())
    assert_every_release_is_accounted(three)


def test_a_node_killed_between_release_and_answer_sends_the_same_bytes_when_it_is_back(three):
    three.spoil("node-02", "dawdle")
    settings = three.training()
    three.begin(settings)
    wait_until((three.state("node-02") / "released").exists)
    three.kill("node-02")
    three.mend()
    three.start_nodes("node-02")
    three.wait()
    # One release a round: the message that was kept was sent, and nothing drawn anew.
    assert len(three.own_attempt("node-02").releases()) == three.plan.training.rounds
    assert len(three.attempt().releases()) == 3 * three.plan.training.rounds


def test_a_server_that_is_killed_goes_on_from_its_checkpoint(three):
    three.forget()
    straight = three.training()
    three.run(straight)
    three.forget()
    settings = three.training()
    three.begin(settings)
    wait_until(lambda: settings.ledger_file.exists() and '"round": 1' in settings.ledger_file.read_text())
    three.kill("server")
    three.run(three.training_again())
    assert torch.equal(weights(settings), weights(straight))
    assert len(three.attempt().releases()) == 3 * three.plan.training.rounds
    for name in three.names:
        assert len(three.own_attempt(name).releases()) == three.plan.training.rounds
