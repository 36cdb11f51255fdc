from __future__ import annotations

from dataclasses import replace

from federation.sites import SEED, assembly, make_plan

from zetadp.privacy.ledger import Ledger


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
        replace(plan, task={**plan.task, "slices": 3}),
        replace(plan, delta=1e-5),
    ]
    assert len({plan.digest, *(other.digest for other in others)}) == len(others) + 1


def test_the_event_is_the_one_that_the_mechanism_emits(tmp_path):
    for plan in (make_plan(), make_plan(noise="os")):
        with Ledger(tmp_path / "ledger.jsonl") as ledger:
            mechanism = assembly(plan).mechanism("node-02", SEED, ledger)
            assert mechanism.draw(3).event == plan.event("node-02", 3)
