from __future__ import annotations

from dataclasses import replace

from federation.sites import make_plan


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
