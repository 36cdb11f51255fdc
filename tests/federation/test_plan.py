from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from federation.sites import SEED, assembly, make_hospital, make_plan

from zetadp.core.plan import NodeConstants, Plan
from zetadp.privacy.exposure import recorded_runs
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.mechanism import ExactSampledGaussian


def test_a_plan_is_read_as_it_was_written(tmp_path):
    plan = make_plan(update="float16")
    plan.write(tmp_path / "plan.json")
    found = Plan.read(tmp_path / "plan.json")
    assert found == plan
    assert found.digest == plan.digest


def test_a_plan_of_an_earlier_version_keeps_its_hash_and_says_nothing_of_simulation():
    plan = make_plan()
    assert plan.simulated is None
    assert "simulated" not in plan.to_json()
    assert Plan.from_json(replace(plan, simulated=True).to_json()).simulated is True
    assert replace(plan, simulated=True).entropy() == plan.entropy(), "seeded draws of a run do not change"


def test_every_change_of_what_is_computed_changes_the_hash():
    plan = make_plan()
    noisier = replace(plan.nodes[0], noise_multiplier=9.0)
    others = [
        replace(plan, nodes=(noisier, *plan.nodes[1:])),
        replace(plan, nodes=plan.nodes[::-1]),
        replace(plan, training=replace(plan.training, clip=3.0)),
        replace(plan, training=replace(plan.training, rounds=5)),
        replace(plan, training=replace(plan.training, noise="os")),
        replace(plan, network=replace(plan.network, widths=(2, 8))),
        replace(plan, run=replace(plan.run, seed=1)),
        replace(plan, update="int8"),
        replace(plan, task={**plan.task, "slices": 3}),
        replace(plan, delta=1e-5),
        replace(plan, training=replace(plan.training, tf32=True)),
    ]
    assert len({plan.digest, *(other.digest for other in others)}) == len(others) + 1


def test_nodes_of_one_name_or_with_impossible_numbers_are_refused():
    node = NodeConstants("a", 3, 2, 1.0)
    with pytest.raises(ValueError, match="each with a different name"):
        replace(make_plan(), nodes=(node, node))
    with pytest.raises(ValueError, match="expected"):
        NodeConstants("a", 3, 4, 1.0)


def test_all_sites_start_from_the_same_weights():
    first, second = (assembly(make_plan()).phase.model.state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_noise_of_the_operating_system_is_exact_and_takes_no_seed(tmp_path):
    plan = make_plan(noise="os")
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        parts = assembly(plan)
        mechanism = parts.mechanism("node-02", SEED, ledger)
    assert isinstance(mechanism, ExactSampledGaussian)
    assert mechanism.grid == parts.grid


def test_the_event_is_the_one_that_the_mechanism_emits(tmp_path):
    for plan in (make_plan(), make_plan(noise="os")):
        with Ledger(tmp_path / "ledger.jsonl") as ledger:
            mechanism = assembly(plan).mechanism("node-02", SEED, ledger)
            assert mechanism.draw(3).event == plan.event("node-02", 3)


def test_accounting_reads_a_nodes_ledger_as_any_other(tmp_path):
    plan = make_plan()
    hospital = make_hospital(plan, 0, tmp_path)
    with Ledger(hospital.ledger_path) as ledger:
        ledger.start(plan.header())
        ledger.record([plan.event("node-01", 0)])
    (run,) = recorded_runs(hospital.ledger_path)
    assert run.declared_rounds == plan.training.rounds
    assert run.nodes["node-01"].population == plan.nodes[0].population
