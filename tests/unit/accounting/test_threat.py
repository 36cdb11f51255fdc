"""Threat models: what each audience sees of local noise, and that nothing counts on noise that may cancel."""

from __future__ import annotations

import json
import math

import pytest
import torch
from ledger_builder import DECLARATION, poisson

from zetadp.account.declaration import Declaration
from zetadp.account.exposure import Run, declared_run, seen_by
from zetadp.account.ledger import Ledger
from zetadp.accounting import composition
from zetadp.accounting.events import Event, histories
from zetadp.accounting.kinds import NoisySum
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.mechanism.release import NodeMechanism
from zetadp.nn.settings import NetworkSettings
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.settings import TrainingSettings

DELTA = 1e-3
UNEQUAL = ((4, 2.0), (6, 3.0), (10, 5.0), (12, 12.0))
"""Patients and expected patients of four nodes."""


def rounds_of(nodes, sigma, rounds, clip=1.0):
    return [
        Event(f"node-{place}", number, size, expected, clip, NoisySum(expected / size, sigma))
        for number in range(rounds)
        for place, (size, expected) in enumerate(nodes)
    ]


def run(nodes, sigma, rounds=20, clip=1.0):
    return Run("local", histories(rounds_of(nodes, sigma, rounds, clip)), rounds)


@pytest.mark.parametrize(("audience", "known"), [("reader", 0), ("node", 1)])
def test_the_effective_noise_is_what_the_shipped_mechanism_leaves_in_the_mean_of_unequal_nodes(
    tmp_path, audience, known
):
    """Release noise alone, average as the server does without the loudest others, and measure it in contributions."""
    sigma, clip, dimension = 1.7, 0.5, 100_000
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.start(DECLARATION)
        messages = []
        for place, (size, expected) in enumerate(UNEQUAL):
            event = poisson(f"node-{place}", population=size, expected=expected, noise_multiplier=sigma, clip=clip)
            mechanism = NodeMechanism(event, node_index=place, seed=5, ledger=ledger)
            draw = mechanism.draw(0)
            ledger.record([draw.event])
            messages.append(mechanism.release(draw, torch.zeros(dimension)))
    found = torch.stack(messages).double().numpy() / len(messages)
    seen = seen_by(run(UNEQUAL, sigma, 1, clip), audience)
    for place, (_, expected) in enumerate(UNEQUAL):
        others = sorted((p for p in range(4) if p != place), key=lambda p: found[p].std())
        left = found[[place, *others[: 3 - known]]].sum(axis=0).std()
        (kind,) = seen[f"node-{place}"]
        # Four standard errors of a standard deviation of so many draws.
        assert kind.noise_multiplier == pytest.approx(left / (clip / expected / 4), rel=4 / math.sqrt(2 * dimension))


@pytest.mark.parametrize(
    ("sigma", "node", "reader"), [(42.567, 0.25, 0.24), (17.157, 0.75, 0.71), (7.956, 1.88, 1.77), (6.736, 2.30, 2.17)]
)
def test_audiences_of_eleven_nodes_have_their_published_epsilons(sigma, node, reader):
    of = run([(44, 24.0)] * 11, sigma, 917)
    for audience, published in (("node", node), ("reader", reader)):
        assert composition.epsilon(seen_by(of, audience)["node-3"], DELTA) == pytest.approx(published, abs=0.006)


def test_an_unclipped_node_hides_nobody_and_is_hidden_by_nobody():
    unclipped = Event("a", 0, 44, 24.0, math.inf, NoisySum(24 / 44))
    (bare,), (noisy,) = seen_by(
        Run("two", histories([unclipped, Event("b", 0, 44, 24.0, 1.0, NoisySum(24 / 44, 5.0))]), 1), "reader"
    ).values()
    assert bare.noise_multiplier == 0
    assert noisy.noise_multiplier == pytest.approx(5.0)


@pytest.mark.parametrize("threat", ["local", "central"])
def test_a_ledger_says_what_its_plan_was_calibrated_for_whatever_its_node_is_called(threat):
    node = NodeConstants({"local": "central", "central": "clinic"}[threat], 8, 4.0, 2.0)
    plan = Plan(
        RunName("own", "any", Target(8), 0), NetworkSettings("own"), TrainingSettings(3), (node,), threat=threat
    )
    assert (
        declared_run("run", Declaration.from_json(json.loads(json.dumps(plan.declaration().to_json())))).threat
        == threat
    )


def test_a_central_holder_is_alone():
    two = histories(rounds_of(UNEQUAL[:2], 2.0, 3))
    with pytest.raises(ValueError, match="one node with threat central"):
        Run("two", two, 3, threat="central")
