"""The first line of an attempt in a ledger."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ledger_builder import DECLARATION, EVENT, HEADER

from zetadp.account.declaration import Declaration, Limit, Series
from zetadp.accounting.threat import Sums
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.nn.settings import NetworkSettings
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.settings import TrainingSettings

NODES = tuple(NodeConstants(f"node-{number}", 44, 24.0, 9.0) for number in range(5))
PLAN = Plan(
    RunName("own", "federated", Target(8), 0), NetworkSettings("own"), TrainingSettings(3), NODES, public={"start": "s"}
)
OF_PLAN = ["run", "network", "training", "nodes", "releases", "noise", "delta", "cohort", "task", "partition"]
OF_PLAN += ["unit", "threat", "plan", "start"]


@pytest.mark.parametrize(
    ("changes", "further"),
    [
        ({}, {}),
        ({"threat": "masked_sums", "sums": Sums(1, 1, 2)}, {"sums": {"colluding": 1, "missing": 1, "spare": 2}}),
        ({"unit": "image", "units_of_a_person": 4}, {"images_of_a_patient": 4}),
    ],
)
def test_a_plan_declares_the_same_keys_in_one_order_and_is_read_again(changes, further):
    declaration = replace(PLAN, **changes).declaration()
    content = declaration.to_json()
    assert list(content) == [*OF_PLAN, *further]
    assert further.items() <= content.items()
    again = Declaration.from_json(json.loads(json.dumps(content)))
    assert json.dumps(again.to_json()) == json.dumps(content)
    assert (again.cohort_unit, again.sums, again.releases) == ("patient", declaration.sums, declaration.releases)


def test_what_a_hospital_and_a_cap_add_follows_in_order():
    further = {"series": Series("both", 2), "cap": Limit(8, 1e-3), "node": "a", "attempts": 2, "engine": "flower"}
    declaration = replace(PLAN.declaration(), dimension=6, **further)
    added = ["grid_bits", "dimension", "node", "attempts", "series", "engine", "cap"]
    assert list(declaration.to_json()) == OF_PLAN + added
    again = Declaration.from_json(json.loads(json.dumps(declaration.to_json())))
    assert (again.series, again.cap, again.grid_bits) == (Series("both", 2), Limit(8, 1e-3), None)


@pytest.mark.parametrize("key", ["noise", "delta", "unit", "training"])
def test_a_declaration_without_what_a_statement_needs_is_refused(key):
    assert DECLARATION.releases == (EVENT,)
    with pytest.raises(KeyError, match=key):
        Declaration.from_json({name: value for name, value in HEADER.items() if name != key})
