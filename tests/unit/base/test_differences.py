from __future__ import annotations

import pytest

from zetadp.base.differences import differences

PLAN = {"nodes": [{"name": "a", "population": 3}, {"name": "b", "population": 4}], "delta": 1e-3, "sums": None}


@pytest.mark.parametrize(
    ("now", "keys"),
    [
        (PLAN, []),
        ({**PLAN, "delta": 1e-5, "clip": 2}, ["delta", "clip"]),
        ({**PLAN, "nodes": [PLAN["nodes"][0], {"name": "c", "population": 4}]}, ["nodes[1].name"]),
        ({**PLAN, "nodes": PLAN["nodes"][:1]}, ["nodes"]),
        ({key: value for key, value in PLAN.items() if key != "sums"}, []),
        ({**PLAN, "sums": {"missing": 0}}, ["sums"]),
        ({**PLAN, "nodes": [{"name": "a", "population": 3.0}, PLAN["nodes"][1]]}, ["nodes[0].population"]),
    ],
)
def test_each_difference_is_found_once_by_its_key(now, keys):
    assert [change.key for change in differences(PLAN, now)] == keys
    assert [change.key for change in differences(now, PLAN)] == keys
