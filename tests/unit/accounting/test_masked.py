"""Masked sums: the law of a sum of rounded shares, its figures for every audience, and what is refused."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from zetadp.account.attempts import Attempt
from zetadp.account.declaration import Series
from zetadp.account.exposure import Run, declared_run, over_runs, run_of, total
from zetadp.account.risk import Risk
from zetadp.account.statement import does_not_cover, run_statement, total_statement
from zetadp.accounting import composition, gaussian
from zetadp.accounting.events import Event, histories, kind_from_json
from zetadp.accounting.kinds import NoisySum
from zetadp.accounting.masked import MaskedSum
from zetadp.accounting.threat import Sums
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.storage import read_json, write_json
from zetadp.base.validation import UserError
from zetadp.nn.settings import NetworkSettings
from zetadp.report.riskpage import Evidence, headline, write_risk
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.promise import make_plan, noise_of_plan, promise_of, write_noise
from zetadp.training.settings import MixingSettings, TrainingSettings

DELTA, TARGET, ROUNDS, SHARE = 1e-3, 8.0, 20, 2.0
SUMS = Sums(colluding=1, missing=1, spare=2)
NODES = (NodeConstants("a", 4, 2.0), NodeConstants("b", 8, 2.0), NodeConstants("c", 40, 40.0), NodeConstants("d", 9, 3))
PLAN = Plan(
    RunName("linear", "sums", Target(TARGET), 0),
    NetworkSettings("linear"),
    TrainingSettings(ROUNDS),
    NODES,
    delta=DELTA,
    threat="masked_sums",
    sums=SUMS,
)


def run(sums: Sums = SUMS, nodes: int = 11, share: float = SHARE, name: str = "sums", rounds: int = ROUNDS) -> Run:
    kind = MaskedSum(1.0, share, sums.shares(nodes))
    events = [Event(f"node-{k}", r, 44, 44.0, 1.0, kind) for r in range(rounds) for k in range(nodes)]
    return Run(name, histories(events), rounds + sums.spare, threat="masked_sums", sums=sums, noise="os")


def state(of: Run, **changes) -> dict:
    return run_statement(of, target_epsilon=TARGET, **changes)


@pytest.mark.parametrize("probability", [1.0, 0.3])
@pytest.mark.parametrize("units", [1, 3])
def test_every_figure_is_that_of_a_sum_with_the_noise_of_all_shares(probability, units):
    masked = {MaskedSum(probability, 1.5, 4, units): 7}
    plain = {NoisySum(probability, 3.0, units): 7}
    assert composition.epsilon(masked, DELTA) == composition.epsilon(plain, DELTA)
    assert composition.epsilon_rdp(masked, DELTA) == composition.epsilon_rdp(plain, DELTA)
    assert composition.epsilon_group(masked, DELTA, 2) == composition.epsilon_group(plain, DELTA, 2)
    assert composition.trade_off(masked, [0.01, 0.3]) == composition.trade_off(plain, [0.01, 0.3])
    (kind,) = masked
    assert kind_from_json(kind.to_json()) == kind


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, threat="local", sums=None)], ids=["sums", "local"])
def test_of_unequal_nodes_the_one_that_draws_most_often_meets_the_target(plan):
    complete = make_plan(plan)
    costs = {node.name: promise_of(complete, node.name).epsilon for node in plan.nodes}
    assert 0.999 * TARGET < max(costs.values()) <= TARGET
    assert max(costs, key=lambda name: costs[name]) == "c"


def test_noise_is_for_all_tries_and_the_cost_of_single_messages_stands_beside_it():
    plan = make_plan(PLAN)
    assert plan.mechanisms("c").total() == ROUNDS + SUMS.spare
    promised = promise_of(plan, "c")
    own = composition.epsilon({NoisySum(1.0, plan.nodes[2].noise_multiplier): ROUNDS + 2}, DELTA)
    assert promised.alone == own > TARGET
    assert "without them" in str(promised)
    assert noise_of_plan(replace(PLAN, run=replace(PLAN.run, target=Target(math.inf)))) == 0.0
    fewer, more = (noise_of_plan(replace(PLAN, sums=Sums(*each))) for each in ((1, 0, 2), (1, 1, 3)))
    assert fewer < noise_of_plan(PLAN) < more


def test_every_ledger_composes_to_the_promise():
    plan = make_plan(PLAN)
    declaration = replace(plan.declaration(), noise="os")
    events = [plan.event(node.name, number) for number in range(ROUNDS) for node in plan.nodes]
    whole = state(run_of("all", Attempt(declaration, events)))
    for node in plan.nodes:
        own = run_of("own", Attempt(declaration, [event for event in events if event.node == node.name]))
        promised = promise_of(plan, node.name)
        assert state(own)["epsilon"] == whole["nodes"][node.name]["epsilon"] == promised.epsilon
        assert state(own)["threat"]["epsilon_single_messages"] == promised.alone
        assert declared_run("own", replace(declaration, node=node.name)).nodes[node.name].mechanisms == plan.mechanisms(
            node.name
        )


def test_totals_count_sums_as_servers_see_them_and_say_what_single_messages_cost():
    local_kind = NoisySum(1.0, 9.0)
    events = [Event(f"node-{k}", r, 44, 44.0, 1.0, local_kind) for r in range(ROUNDS) for k in range(11)]
    local = Run("local", histories(events), ROUNDS, noise="os")
    together = total_statement([replace(each, series=Series("both", 2)) for each in (run(), local)])
    tries = ROUNDS + 2

    def cost(shares):
        return gaussian.epsilon(DELTA, math.sqrt(tries / (shares * SHARE**2) + ROUNDS / 9.0**2))

    assert together["private_rows"]["epsilon"] == pytest.approx(cost(9), rel=1e-9)
    assert together["single_messages"] == {"runs": ["sums"], "epsilon": pytest.approx(cost(1), rel=1e-9)}
    assert total_statement([local])["single_messages"] is None
    assert set(over_runs([run()], DELTA, unmasked=True)["node-0"]) == {NoisySum(1.0, SHARE)}
    again = state(run(), earlier=[run()])["earlier_attempts"]["spent"]
    assert again == pytest.approx(gaussian.epsilon(DELTA, math.sqrt(2 * tries / 9) / SHARE), rel=1e-9)


def test_the_page_of_risks_says_that_its_figures_rely_on_the_masks(tmp_path):
    """Somebody who sees all messages and can undo the masks has a larger epsilon than the page's figures."""
    runs = (run(),)
    risk = Risk("sums", runs, tuple(over_runs(runs, DELTA).values())[:1], "holds")
    write_risk(risk, tmp_path, "ledger.jsonl", Evidence())
    page = (tmp_path / "risk.html").read_text()
    assert headline(risk).startswith("As long as masks hide single messages, someone who has")
    (undone,) = re.findall(r"undo the masks, epsilon is ([\d.]+) at", page)
    assert float(undone) == pytest.approx(total(runs, DELTA, unmasked=True), rel=0.01)
    assert float(undone) > 2 * risk.epsilon(DELTA)
    assert all(text in page for text in does_not_cover("patient", summed=True)[-2:])


def test_two_records_of_one_person_are_not_composed_where_both_lie_in_one_sum():
    stated = state(replace(run(), unit="record"))
    true = gaussian.epsilon(DELTA, 2 * gaussian.mu(stated["epsilon"], DELTA))
    assert all(row["epsilon"] >= true for row in stated["records_of_one_person"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sums": None}, "sums with threat"),
        ({"threat": "local"}, "sums with threat"),
        ({"sums": Sums(2, 1)}, "2 colluding - 1 missing = 1"),
        ({"nodes": (*NODES[:3], replace(NODES[3], noise_multiplier=1.0))}, "same noise"),
        ({"nodes": tuple(replace(node, noise_multiplier=1e9) for node in NODES)}, "range of whole numbers"),
        ({"training": TrainingSettings(1, mechanism="von_mises_fisher")}, "cost of a sum"),
        ({"network": NetworkSettings("head", "features"),
          "training": TrainingSettings(1, estimator="mixed_rows", mixing=MixingSettings(4))}, "mixed rows"),
    ],
)  # fmt: skip
def test_a_plan_without_what_masked_sums_need_is_refused(changes, words):
    with pytest.raises((UserError, ValueError), match=words):
        replace(PLAN, **changes)


def test_noise_that_was_computed_for_other_numbers_is_not_taken(tmp_path):
    other, file = replace(PLAN, sums=Sums(1, 1, 3)), tmp_path / "noise.json"
    write_noise(noise=file, plan=PLAN.for_calibration().to_json())
    write_json(file, {**read_json(file), "noise_multiplier": 7.0})
    assert [make_plan(each, [file]) for each in (PLAN, other)] == [PLAN.with_noise(7.0), make_plan(other)]


def test_a_training_cannot_choose_the_kind_of_which_several_nodes_make_one_release():
    with pytest.raises(ValueError, match=r"Expected mechanism .* found 'masked sum'"):
        TrainingSettings(ROUNDS, mechanism=MaskedSum.law)
