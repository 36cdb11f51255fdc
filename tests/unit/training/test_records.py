from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_builder import poisson

from zetadp.accounting.events import Event
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.validation import UserError
from zetadp.mechanism.release import Draw, NodeMechanism
from zetadp.nn.settings import NetworkSettings
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.records import (
    LabelledItems,
    Node,
    checked_units,
    choose_items,
    items_of,
    single_items,
    units_by_node,
)
from zetadp.training.settings import TrainingSettings


@dataclass
class NoLedger:
    def holds(self, event: Event) -> bool:
        return True


def node(own: list[list[int]], place: int = 0, seed: int = 1) -> Node:
    event = poisson("a", population=len(own), expected=1, noise_multiplier=0, clip=1)
    return Node(NodeMechanism(event, node_index=place, seed=seed, ledger=NoLedger()), own)


def draw_of(holder: Node, members: list[int], number: int = 0) -> Draw:
    return Draw(holder.mechanism.draw(number).event, np.array(members, dtype=np.int64))


KINDS = np.repeat(np.arange(4), 5)
"""Strata of a record."""


def chosen_of(holder: Node, members: list[int], count: int, number: int = 0) -> np.ndarray:
    """Return the items chosen at a node whose units hold whole records."""
    records = 1 + max(int(max(own)) // len(KINDS) for own in holder.units)
    return choose_items(holder, draw_of(holder, members, number), np.tile(KINDS, records), count)[0]


def of_records(own: list[list[int]], **more: int) -> Node:
    return node(items_of(own, len(KINDS)), **more)


@settings(max_examples=50)
@given(
    per_class=st.integers(1, 5),
    members=st.lists(st.integers(0, 5), max_size=6, unique=True),
    number=st.integers(0, 50),
)
def test_every_unit_gives_equally_many_items_of_every_stratum_each_once(per_class, members, number):
    own = [[10], [11, 12], [13], [14, 15, 16], [17], [18]]
    chosen = chosen_of(of_records(own), members, 4 * per_class, number)
    assert chosen.shape == (len(members), 4 * per_class)
    for member, row in zip(members, chosen, strict=True):
        assert np.bincount(KINDS[row % 20]).tolist() == [per_class] * 4
        assert len(set(row)) == len(row)
        assert set(row // 20) <= set(own[member])


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5), count=st.integers(1, 7), number=st.integers(0, 9))
def test_units_of_unequal_size_give_as_many_items_as_asked_and_spread_them(sizes, count, number):
    ends = np.cumsum(sizes)
    holder = node([list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)])
    members = list(range(len(sizes)))
    chosen, _ = choose_items(holder, draw_of(holder, members, number), np.zeros(ends[-1]), count)
    for own, row in zip(holder.units, chosen, strict=True):
        times = np.array([np.sum(row == item) for item in own])
        assert times.sum() == count
        assert times.max() - times.min() <= 1


def test_the_choice_differs_between_units_rounds_nodes_and_runs():
    holder = of_records([[0], [1]])
    choices = [*chosen_of(holder, [0, 1], 8), chosen_of(holder, [0, 1], 8, 1)[0]]
    choices += [
        chosen_of(other, [0, 1], 8)[0] for other in (of_records([[0], [1]], place=1), of_records([[0], [1]], seed=2))
    ]
    assert len({tuple(sorted(choice % 20)) for choice in choices}) == 5
    assert np.array_equal(chosen_of(holder, [0, 1], 8)[0], choices[0])


def test_every_item_of_a_stratum_is_as_likely():
    holder = of_records([[record] for record in range(50)])
    counts = np.zeros(20)
    rounds = 40
    for number in range(rounds):
        counts += np.bincount(chosen_of(holder, list(range(50)), 4, number).ravel() % 20, minlength=20)
    trials, p = 50 * rounds, 1 / 5
    assert np.abs(counts - trials * p).max() < 5 * (trials * p * (1 - p)) ** 0.5


def test_items_that_are_not_equal_parts_of_all_strata_are_refused():
    for count in (0, 6):
        with pytest.raises(UserError, match=f"training.images_per_patient to be a multiple of 4 .* found {count}"):
            checked_units([[list(range(20))]], KINDS, count)


def test_a_unit_with_fewer_items_than_asked_is_the_mean_of_all_of_them():
    strata = np.array([0, 0, 0, 1])
    checked_units([[[0, 1, 2, 3]]], strata, 8)
    holder = node([[0, 1, 2, 3]])
    chosen, weights = (own[0] for own in choose_items(holder, draw_of(holder, [0]), strata, 8))
    # Strata weigh the same, and so do the items of each.
    assert [weights[chosen == item].sum() for item in range(4)] == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])
    assert all((weights[chosen == item] > 0).sum() == 1 for item in range(4))
    enough = node([[0, 1, 2], [3, 4]])
    assert choose_items(enough, draw_of(enough, [1]), np.zeros(5, int), 2)[1] is None


def test_a_unit_without_a_stratum_is_the_mean_of_those_that_it_has():
    strata = np.tile([0, 0, 1, 1, 2, 2], 2)
    units = [list(range(6)), [6, 7, 10, 11], [8, 9]]
    checked_units([units], strata, 6)
    holder = node(units)
    chosen, weights = choose_items(holder, draw_of(holder, [0, 1, 2]), strata, 6)
    for unit, row, shares in zip(units, chosen, weights, strict=True):
        assert set(row) <= set(unit)
        assert [shares[row == item].sum() for item in unit] == pytest.approx([1 / len(unit)] * len(unit))


@given(others=st.lists(st.integers(1, 9), min_size=1, max_size=3), number=st.integers(0, 9))
def test_a_unit_of_exactly_the_asked_items_gives_them_whatever_others_have(others, number):
    """If it gave other items next to units of other sizes, these units would change its contribution."""
    ends = 6 + np.cumsum(others)
    strata = np.array([0] * 6 + [item % 3 for item in range(sum(others))])
    strata[:6] = (0, 0, 0, 0, 1, 1)
    holder = node([list(range(6)), *(list(range(end - size, end)) for size, end in zip(others, ends, strict=True))])
    chosen, weights = choose_items(holder, draw_of(holder, [0], number), strata, 6)
    assert chosen[0].tolist() == list(range(6))
    assert weights is None or weights[0].tolist() == [np.float32(1 / 6)] * 6


def test_absent_items_are_in_no_unit():
    table = pd.DataFrame({"patient": ["b", "a", "a", "b", "c"]})
    present = np.array([True, False, True, True, False])
    records = LabelledItems(torch.zeros(5, 1), torch.zeros(5), items=table, present=present)
    assert records.units() == [[2], [0, 3]]
    assert records.units(table["patient"] == "b") == [[0, 3]]


def test_items_of_a_unit_of_its_own_are_all_items_of_declared_number():
    assert single_items([[4, 5], [0, 1]], 2) == [[4], [5], [0], [1]]
    with pytest.raises(UserError, match="one record of 2 images a patient"):
        single_items([[4, 5], [0, 1, 2]], 2)


@pytest.mark.parametrize(
    ("threat", "unit", "expected"),
    [
        ("local", "patient", [[[0, 1], [4, 5]], [[2, 3]]]),
        ("central", "patient", [[[0, 1], [2, 3], [4, 5]]]),
        ("local", "image", [[[0], [1], [4], [5]], [[2], [3]]]),
    ],
)
def test_units_are_those_that_the_plan_protects_at_each_of_its_nodes(threat, unit, expected):
    owners = {"patient": list("aabbcc"), "node": ["north", "north", "south", "south", "north", "north"]}
    records = LabelledItems(torch.zeros(6, 1), torch.zeros(6), items=pd.DataFrame(owners))
    names = ["central"] if threat == "central" else ["north", "south"]
    nodes = tuple(NodeConstants(name, len(units), 1.0) for name, units in zip(names, expected, strict=True))
    images = {"unit": "image", "units_of_a_person": 2} if unit == "image" else {}
    run = RunName("linear", threat, Target(math.inf), 0)
    plan = Plan(run, NetworkSettings("linear"), TrainingSettings(1), nodes, threat=threat, **images)
    assert units_by_node(plan, records) == expected


def test_parts_of_records_have_one_length():
    with pytest.raises(UserError, match="found 3, 2, 3"):
        LabelledItems(torch.zeros(3, 1), torch.zeros(2), np.zeros(3))


ITEMS = 12
MASK = np.arange(ITEMS) < 4

REFUSED = {
    "in two patients": ([[range(4), range(3, 8)]], "item 3"),
    "at two nodes": ([[range(4)], [range(4, 6), [0]]], "item 0"),
    "a mask": ([[MASK, ~MASK]], "unit 0.*flatnonzero"),
    "a mask as a tensor": ([[torch.from_numpy(MASK)]], "flatnonzero"),
    "negative": ([[range(-4, 0)]], "-4"),
    "beyond the end": ([[range(8, 13)]], "12"),
    "fractions": ([[[0.5, 1.5]]], "whole number"),
    "two axes": ([[np.arange(4).reshape(2, 2)]], "unit 0"),
    "nobody's": ([[range(4), []]], "unit 1"),
    "one flat list": ([[0, 1, 2]], "positions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_units_that_are_no_units_are_refused(name):
    units, words = REFUSED[name]
    with pytest.raises(UserError, match=words):
        checked_units(units, np.zeros(ITEMS), 1)


@pytest.mark.parametrize(
    "units",
    [
        [range(4), range(4, 8)],  # the items of nobody are left out
        [np.arange(4), np.arange(4, 12, dtype=np.uint8)],
        [torch.arange(4), torch.tensor([7])],
        [(0, 5), [np.int64(3)]],
        np.arange(12).reshape(4, 3),
    ],
)
def test_positions_of_any_whole_kind_are_taken(units):
    (held,) = checked_units([units], np.zeros(ITEMS), 1)
    assert [list(map(int, own)) for own in held] == [list(map(int, own)) for own in units]
