"""Items and their owners, nodes, and the choice of the items that make a contribution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from zetadp.base.validation import UserError, shown
from zetadp.mechanism.release import Draw, NodeMechanism

if TYPE_CHECKING:
    from zetadp.training.plan import Plan

Positions: TypeAlias = Sequence[int] | np.ndarray
"""Positions of the items of one unit in the records."""


@dataclass(frozen=True)
class LabelledItems:
    """Items, such as images, with their targets and owners, in one flat list on one device.

    Attributes
    ----------
    inputs
        Inputs of the network, shape (item, ...), complex64 or float32; images have shape (item, 1, row, column).
    targets
        Correct output for each item, shape (item, ...); for a classification, its class, shape (item,).
    strata
        Stratum of each item, shape (item,), in the processor's memory. A unit's items are chosen equally from every
        stratum. By default all items are in one.
    items
        One row per item, with columns ``patient`` (or the unit), ``node`` if there is a partition, and those that
        distinguish the items of a patient. By default it has no columns: only positions are known.
    present
        Whether there is an item, shape (item,), in the processor's memory; by default always. Where records share a
        layout, one may lack some items, such as a sequence that was not acquired. Their inputs are NaN, and they belong
        to no unit and have no prediction.
    """

    inputs: Tensor
    targets: Tensor
    strata: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    items: pd.DataFrame = field(default_factory=pd.DataFrame)
    present: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def __post_init__(self) -> None:
        """Fill in defaults, and refuse parts of different lengths."""
        if not len(self.strata):
            object.__setattr__(self, "strata", np.zeros(len(self.inputs), dtype=np.int64))
        if not len(self.items.columns):
            object.__setattr__(self, "items", pd.DataFrame(index=range(len(self.inputs))))
        if not len(self.present):
            object.__setattr__(self, "present", np.ones(len(self.inputs), dtype=bool))
        lengths = [len(part) for part in (self.inputs, self.targets, self.strata, self.items, self.present)]
        if len(set(lengths)) > 1:
            raise UserError(
                f"Expected as many inputs as targets, strata and rows, found {', '.join(map(str, lengths))}."
            )

    @classmethod
    def stacked(cls, inputs: Tensor, targets: Tensor) -> Self:
        """Return the items of records that share their targets, one record after the other; the targets are the strata.

        Parameters
        ----------
        inputs
            Shape (record, item, ...).
        targets
            Targets of every record, shape (item,).
        """
        kinds = np.zeros(len(targets), int) if targets.device.type == "meta" else targets.cpu().numpy()
        return cls(inputs.flatten(0, 1), targets.repeat(len(inputs)), np.tile(kinds, len(inputs)))

    def to(self, device: torch.device) -> Self:
        """Return the same records on a device."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def units(self, of: pd.Series[bool] | None = None) -> list[list[int]]:
        """Return the positions of each patient's items, in the order of the patients' names.

        Parameters
        ----------
        of
            For each item, whether to include it. None includes all.
        """
        positions = np.flatnonzero(self.present if of is None else self.present & of.to_numpy())
        owners = self.items["patient"].to_numpy()[positions]
        order = owners.argsort(kind="stable")
        _, starts = np.unique(owners[order], return_index=True)
        return [unit.tolist() for unit in np.split(positions[order], starts[1:])]


@dataclass(frozen=True)
class Node:
    """A data holder: its units, such as patients, and its mechanism.

    Attributes
    ----------
    mechanism
        Sampling and noise of the node.
    units
        For each unit of the node, the positions of its items.
    """

    mechanism: NodeMechanism
    units: Sequence[Positions]
    _by_stratum: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of items of each unit."""
        return np.array([len(unit) for unit in self.units])

    @cached_property
    def table(self) -> np.ndarray:
        """Positions of each unit's items, shape (unit, item); -1 where a unit has fewer items than others."""
        table = np.full((len(self.units), self.lengths.max()), -1, dtype=np.int64)
        table[np.arange(table.shape[1]) < self.lengths[:, None]] = np.concatenate([*map(np.asarray, self.units)])
        return table

    def by_stratum(self, strata: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each stratum which columns of `table` hold its items, and how many items each unit has of it.

        It is computed once for the same array: all rounds choose among the same items, and a GPU would wait for it.

        Parameters
        ----------
        strata
            As in `LabelledItems`.

        Returns
        -------
        For each stratum, columns of shape (unit, column), those with its items first, and counts of shape (unit, 1).
        """
        if not self._by_stratum or self._by_stratum[0] is not strata:
            per_stratum = []
            for kind in np.unique(strata):
                of_kind = (self.table >= 0) & (strata[self.table] == kind)
                counts = of_kind.sum(axis=1, keepdims=True)
                columns = (~of_kind).argsort(axis=1, kind="stable")[:, : max(1, counts.max())]
                per_stratum.append((columns, counts))
            self._by_stratum[:] = strata, per_stratum
        return list(self._by_stratum[1])


def choose_items(node: Node, draw: Draw, strata: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Choose the items that make each drawn unit's contribution: equally many of every stratum, at random.

    The choice needs no accounting: whatever the items are, the unit's clipped contribution has norm at most B. It
    depends on the items of the unit alone: other units may have fewer items, or lack a stratum.

    Parameters
    ----------
    node, draw
        The node and its draw.
    strata
        As in `LabelledItems`.
    count
        Number of items of each unit, a multiple of the number of strata. Of a unit with exactly this number, each item
        is chosen once.

    Returns
    -------
    positions, weights
        Positions of the items, shape (drawn unit, count), and the weight of each in the mean of its unit, float32 of
        that shape; each row sums to one. If a unit has too few items of a stratum, all of them are chosen, and the rest
        of its places holds some of them again, which weigh nothing: no item counts twice. All strata that the unit has
        weigh the same. No weights, if every unit of the node has enough items: then all weigh the same.
    """
    if (node.lengths == count).all():
        return node.table[draw.members], None
    random = node.mechanism.item_choices(draw.event.round)
    # Choose for all units of the node, then look up those drawn. A unit's items must not depend on which other units
    # were drawn: the accountant assumes that a unit changes its own contribution only.
    by_stratum = node.by_stratum(strata)
    turns = np.arange(count // len(by_stratum))
    chosen, distinct = [], []
    for columns, counts in by_stratum:
        distinct.append(np.minimum(counts, len(turns)))
        # A unit without the stratum has another of its items in these columns, which weighs nothing.
        counts = np.maximum(counts, 1)
        # Sorting random keys shuffles the items of all units in one operation. Columns beyond a unit's items come last,
        # and are not reached: where the items are too few, the turns begin again with the first.
        keys = random.random(columns.shape)
        keys[np.arange(columns.shape[1]) >= counts] = np.inf
        order = np.take_along_axis(keys.argsort(axis=1), turns % counts, axis=1)
        chosen.append(np.take_along_axis(node.table, np.take_along_axis(columns, order, axis=1), axis=1))
    strata_of_unit = np.sum([number > 0 for number in distinct], axis=0)
    weights = [(turns < number) / (np.maximum(number, 1) * strata_of_unit).astype(np.float32) for number in distinct]
    positions, item_weights = np.concatenate(chosen, axis=1), np.concatenate(weights, axis=1, dtype=np.float32)
    # A unit with exactly this number contributes every item once, even if its strata are of different sizes.
    whole = np.flatnonzero(node.lengths == count)
    if len(whole):
        positions[whole], item_weights[whole] = node.table[whole, :count], np.float32(1) / np.float32(count)
    return positions[draw.members], None if (item_weights > 0).all() else item_weights[draw.members]


def items_of(units: Iterable[Sequence[int]], n_items: int) -> list[list[int]]:
    """Return the positions of the items of units that hold whole records, in the order of `LabelledItems.stacked`.

    Parameters
    ----------
    units
        For each unit, the numbers of its records.
    n_items
        Number of items of a record.
    """
    return [[n_items * record + item for record in records for item in range(n_items)] for records in units]


def units_by_node(plan: Plan, records: LabelledItems) -> list[list[list[int]]]:
    """Return the units of each node of a plan, of records that know their nodes; a central holder holds all of them.

    Raises
    ------
    UserError
        As `units_among`.
    """
    everything = [None if plan.threat == "central" else records.items["node"] == node.name for node in plan.nodes]
    return [units_among(plan, records.units(of_node)) for of_node in everything]


def units_among(plan: Plan, patients: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the units that a plan protects, of patients by the positions of their items: these, or single images.

    Raises
    ------
    UserError
        If single images are protected, and a patient does not have the declared number of them.
    """
    if plan.unit == "image":
        return single_items(patients, plan.units_of_a_person)
    return [[*positions] for positions in patients]


def single_items(units: Sequence[Sequence[int]], declared: int) -> list[list[int]]:
    """Return every item of some units as a unit of its own.

    Raises
    ------
    UserError
        If a unit does not have the declared number of items. The guarantee for a whole patient relies on this number.
    """
    if any(len(unit) != declared for unit in units):
        raise UserError(
            f"Expected one record of {declared} images a patient with training.unit image, found a patient with "
            "several records, or with another number of images. Use training.unit patient."
        )
    return [[item] for unit in units for item in unit]


def checked_units(nodes: Sequence[Sequence[Positions]], strata: np.ndarray, count: int) -> list[list[np.ndarray]]:
    """Return the positions of the items of every unit of every node as integers.

    Parameters
    ----------
    nodes
        For each node and each of its units, the positions of the unit's items.
    strata, count
        Stratum of each item, and the number of items that make a contribution, as in `choose_items`.

    Raises
    ------
    UserError
        If a unit has no items, if its positions are not a list of whole numbers from 0, if an item belongs to two
        units, at one node or at two, or does not exist, or if ``count`` items are not equal parts of all strata.
    """
    checked = [_whole_positions(units) for units in nodes]
    units = [(node, index, unit) for node, units in enumerate(checked) for index, unit in enumerate(units)]
    if not units:
        return checked
    owner = np.repeat(np.arange(len(units)), [len(unit) for *_, unit in units])
    position = np.concatenate([unit for *_, unit in units])
    if position.max() >= len(strata):
        node, index, _ = units[owner[position.argmax()]]
        raise UserError(
            f"Expected positions below {len(strata)}, the number of items, found {position.max()} for unit {index} of "
            f"node {node}."
        )
    order = position.argsort(kind="stable")
    twice = np.flatnonzero(np.diff(position[order]) == 0)
    if len(twice):
        (node, index, _), (other_node, other, _) = (units[owner[order[twice[0] + step]]] for step in range(2))
        raise UserError(
            f"Expected every item in one unit, once, found item {position[order[twice[0]]]} in unit {index} of node "
            f"{node} and in unit {other} of node {other_node}. Persons who share an item are one unit: join their "
            "lists, or leave the item out."
        )
    for of_node in checked:
        _check_strata(of_node, strata, count)
    return checked


def _whole_positions(units: Sequence[Positions]) -> list[np.ndarray]:
    """Return the positions of each unit's items as integers; refuse what is not a list of whole numbers from 0."""
    positions = [np.asarray(unit) for unit in units]
    for index, unit in enumerate(positions):
        if unit.ndim != 1 or not unit.size or unit.dtype.kind not in "iu" or unit.min() < 0:
            raise UserError(
                f"Expected a list of positions for the items of unit {index}: at least one whole number, counted from "
                f"0, found {shown(repr(units[index]))[:80]}. Leave a unit without items out. Of a mask, give "
                "numpy.flatnonzero(mask)."
            )
    return [unit.astype(np.int64) for unit in positions]


def _check_strata(units: Sequence[np.ndarray], strata: np.ndarray, count: int) -> None:
    """Raise `UserError` if ``count`` items are not equal parts of all strata, and not all items of every unit."""
    kinds = np.unique(strata)
    if (count % len(kinds) or count < 1) and any(len(unit) != count for unit in units):
        raise UserError(
            f"Expected training.images_per_patient to be a multiple of {len(kinds)} (equally many of every class), "
            f"found {count}."
        )
