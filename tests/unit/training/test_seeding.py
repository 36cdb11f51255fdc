"""Seeded draws follow from every declared value: what two runs shared would not compose as independent."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from papers.directions.mechanism import Direction
from zetadp.accounting.threat import Sums
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.nn.settings import NetworkSettings
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.seeding import entropy_of
from zetadp.training.settings import MixingSettings, OptimiserSettings, TrainingSettings

PLAN = Plan(
    run=RunName("head", "federated", Target(8), 3),
    network=NetworkSettings("head", "features", components=3),
    training=TrainingSettings(rounds=1),
    nodes=(NodeConstants("north", 3, 2.0, 0.7), NodeConstants("south", 3, 2.0, 0.7)),
    cohort="one",
)
OTHER = {
    "run": [{"network": "other"}, {"arm": "other"}, {"target": Target(3)}, {"seed": 4}],
    "network": [
        {"family": "linear", "domain": "kspace", "components": 0},
        {"domain": "study"},
        {"widths": (16,)},
        {"convolutions": 3},
        {"head": "pooled"},
        {"hidden": 64},
        {"groups": 8},
        {"activation": "crelu"},
        {"family": "complex", "domain": "kspace", "transform": "fourier"},
        {"components": 2},
        {"taper": 0.5},
        {"taper": 1.0},
        {"start": "public"},
        {"trained": "norms"},
    ],
    "training": [
        {"rounds": 2},
        {"images_per_patient": 3},
        {"clip": 0.5},
        {"estimator": "class_means"},
        {"feature_norm": 0.5},
        {"estimator": "mixed_rows", "mixing": MixingSettings(4)},
        {"estimator": "mixed_rows", "mixing": MixingSettings(8)},
        {"mechanism": Direction.law},
        *(
            {"optimiser": OptimiserSettings(**own)}
            for own in (
                {"learning_rate": 0.1},
                {"drop_after": 0.5},
                {"drop_factor": 2},
                {"name": "sgd"},
                {"momentum": 0.5},
                {"averaged": 0.5},
                {"recipe": {"optimiser": "Adam", "groups": []}},
            )
        ),
    ],
    "nodes": [{"name": "east"}, {"population": 4}, {"expected": 1.5}, {"noise_multiplier": 0.9}],
    "": [
        {"cohort": "other"},
        {"unit": "image"},
        {"units_of_a_person": 2},
        {"nodes": PLAN.nodes[:1]},
        {"nodes": PLAN.nodes[:1], "threat": "central"},
        {"threat": "masked_sums", "sums": Sums(0, 0)},
        {"threat": "masked_sums", "sums": Sums(0, 0, 1)},
        {"partition": {"seed": 1}},
    ],
}
WITHOUT = {"delta", "task", "public", "simulated", "cohort_unit", "noise"}
"""Values that draws do not follow: what says nothing of a release, and what is computed from data."""


def changed(part: str, values: dict[str, object]) -> Plan:
    if part == "nodes":
        first, *others = PLAN.nodes
        return replace(PLAN, nodes=(replace(first, **values), *others))
    return replace(PLAN, **({part: replace(getattr(PLAN, part), **values)} if part else values))


def test_plans_that_differ_in_any_declared_value_share_no_draw():
    plans = [PLAN, *(changed(part, values) for part, several in OTHER.items() for values in several)]
    assert len({entropy_of(plan) for plan in plans}) == len({plan.digest for plan in plans}) == len(plans)
    assert len({entropy_of(PLAN, repeat) for repeat in range(3)}) == 3


def test_every_value_of_a_plan_is_among_them_or_named():
    parts = {"run": PLAN.run, "network": PLAN.network, "training": PLAN.training, "nodes": PLAN.nodes[0], "": PLAN}
    for part, of in parts.items():
        seen = {name for values in OTHER[part] for name in values}
        assert {field.name for field in fields(of)} - seen - WITHOUT - set(parts) == set(), part
    optimisers = [each["optimiser"] for each in OTHER["training"] if "optimiser" in each]
    for field in fields(OptimiserSettings):
        assert len({repr(getattr(each, field.name)) for each in optimisers}) > 1, field.name


@pytest.mark.parametrize("part", ["delta", "task", "public", "simulated", "cohort_unit"])
def test_values_that_say_nothing_of_a_release_change_no_draw(part):
    other = {
        "delta": 1e-5,
        "task": {"name": "classification"},
        "public": {"start": "a"},
        "simulated": True,
        "cohort_unit": "record",
    }
    assert entropy_of(replace(PLAN, **{part: other[part]})) == entropy_of(PLAN)
    assert replace(PLAN, **{part: other[part]}).digest != PLAN.digest
