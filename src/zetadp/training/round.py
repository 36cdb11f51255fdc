"""One round: draw, sum clipped contributions, record, add noise, store, release.

The nodes of a process share weights, so common passes compute the clipped sums of all nodes. Draws, ledger entries and
noise are those of separate nodes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from zetadp.accounting.masked import MaskedSum
from zetadp.base.randomness import Purpose
from zetadp.base.tensors import Layout, same_stream, side_stream, to_device
from zetadp.base.usercode import user_code
from zetadp.mechanism.clipping import ClippedSums, clipped_sums
from zetadp.mechanism.contributions import (
    Contribution,
    Contributors,
    Gradient,
    Losses,
    Statistic,
    cross_entropies,
    knows_units,
)
from zetadp.mechanism.dropout import drops
from zetadp.mechanism.release import Draw, NodeMechanism
from zetadp.training.outbox import Outbox
from zetadp.training.records import LabelledItems, Node, choose_items


@dataclass(frozen=True)
class Phase:
    """The contribution that every round of a run computes for each unit.

    Attributes
    ----------
    model
        The network, with the round's weights.
    layout
        The order of its parameters in a flat vector.
    items
        Number of items that make one contribution.
    contribution
        The contribution before clipping: the gradient of the network, or a statistic in its place.
    rows
        Number of sums that a node releases together in a round.
    schedule
        Which rows are open to which class of unit, boolean of shape (row, class); public. None if every row is open to
        all classes.
    chunk
        Largest number of items in one pass; None takes that of `items_in_a_pass`. With exact noise, a contribution
        must not depend even in its last bits on which other units were drawn. A pass is then one unit. Where at least
        `CHEAP` items fit, all units of the nodes are computed instead, and those that were not drawn are left out of
        the sums.
    """

    model: nn.Module
    layout: Layout
    items: int
    contribution: Contribution
    rows: int = 1
    schedule: np.ndarray | None = None
    chunk: int | None = None

    @classmethod
    def of(
        cls, model: nn.Module, items: int, losses: Losses = cross_entropies, statistic: Statistic | None = None
    ) -> Phase:
        """Return the phase whose contributions are a network's gradients or, if given, a statistic."""
        layout = Layout.of(model)
        return cls(model, layout, items, statistic or Gradient(model, layout, losses))

    @property
    def has_rules(self) -> bool:
        """Whether gradients follow the rules of PyTorch's layers."""
        return isinstance(self.contribution, Gradient) and self.contribution.rules

    def with_rules(self) -> Phase:
        """Return the phase whose gradients follow the rules of PyTorch's layers, which was checked."""
        contribution = self.contribution
        return (
            replace(self, contribution=replace(contribution, rules=True))
            if isinstance(contribution, Gradient)
            else self
        )

    @property
    def dimension(self) -> int:
        """Real numbers in a contribution."""
        return sum(self.contribution.sizes)

    @cached_property
    def drops(self) -> bool:
        """Whether the network has dropout, whose draws are the unit's own."""
        return isinstance(self.contribution, Gradient) and drops(self.model)

    @property
    def message(self) -> int:
        """Real numbers that a node sends in a round."""
        return self.rows * self.dimension

    def leaves(self, units: int) -> dict[str, Tensor]:
        """Return the trained parameters as leaves of a new graph, with a unit axis if the network's layers have one."""
        parameters = {name: self.model.get_parameter(name).detach() for name in self.layout.names}
        if knows_units(self.model):
            parameters = {name: p.unsqueeze(0).expand(units, *p.shape) for name, p in parameters.items()}
        return {name: p.requires_grad_() for name, p in parameters.items()}

    def weights(self) -> Tensor:
        """Return the network's current weights, flat and real, shape (dimension of the layout,)."""
        return self.layout.flatten(dict(self.model.named_parameters())).detach()


def do_round(
    phase: Phase,
    nodes: Sequence[Node],
    records: LabelledItems,
    outbox: Outbox,
    number: int,
    mask: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, int]:
    """Compute, record, store and release one round of all nodes, or repeat the messages of an interrupted run.

    A round that is already in the ledger is not released a second time if possible: stored messages are sent unchanged,
    and seeded nodes compute the same bytes again. If neither is possible, the round is drawn again, with other noise,
    and counts as a further release.

    Parameters
    ----------
    phase
        Contribution of a unit. Its network has this round's weights.
    nodes
        The nodes of this process with their units: all nodes in a simulation, one node at a hospital.
    records
        Items of all their units.
    outbox
        Ledger and stored messages. Nodes that cannot repeat their noise need one that stores.
    number
        The round, counted from zero.
    mask
        Adds the masks of one node to its part of a masked sum, shape (1, number), before anything is hashed, stored or
        sent. A simulation of all nodes has none, and adds up their parts instead.

    Returns
    -------
    messages, not_finite
        Messages of the nodes, of `Phase.message` numbers each, shape (node, number); of masked sums one row, in whole
        steps of the grid. And the number of units that contributed zero because their contribution was not finite; zero
        for stored messages. A real node never sends this number.

    Raises
    ------
    ValueError
        If noise can be neither stored nor drawn again, or a node's part of a masked sum would leave without masks.
    UserError
        If the round was answered already for other weights, if the ledger has lost the line of a stored message, or
        if a stored message is not the one that was sent.
    """
    repeatable = _repeatable(nodes)
    if outbox.folder is None and not repeatable:
        raise ValueError("Expected a store of messages for noise that cannot be drawn again, found none.")
    weights = phase.weights()
    kind = nodes[0].mechanism.event.kind
    shares = kind.shares if isinstance(kind, MaskedSum) else None
    if shares is not None and mask is None and len(nodes) < shares:
        raise ValueError(f"Expected masks for a part of a masked sum, or all its nodes, found {len(nodes)} nodes.")

    def computed(again: int) -> tuple[list[Draw], ClippedSums]:
        draws = [node.mechanism.draw(number, again=again) for node in nodes]
        mechanisms = [node.mechanism for node in nodes]
        with noise_meanwhile(mechanisms, number, phase.message, records.inputs.device, again=again):
            return draws, _clipped_sums(phase, nodes, records, draws)

    def released(draws: list[Draw], sums: Tensor, again: int) -> Tensor:
        after_the_sums = same_stream(sums.device)

        def message(node: Node, draw: Draw, total: Tensor) -> Tensor:
            with after_the_sums():
                return node.mechanism.release(draw, total, again=again)

        # Each node has its own stream of noise, so the bytes do not depend on the order of the nodes.
        messages = torch.stack(side_by_side(message, nodes, draws, sums))
        if shares is None:
            return messages
        return messages.sum(dim=0, keepdim=True) if mask is None else mask(messages)

    if (stored := outbox.replay(number, weights, records.inputs.device)) is not None:
        return stored, 0
    times = outbox.ledger.releases(number)
    if times and repeatable:
        # A recorded round that is not noted as sent was never sent. A noted one may be sent again with the same bytes.
        draws, result = computed(times - 1)
        messages = released(draws, result.sums, times - 1)
        if outbox.may_send(number, messages):
            outbox.keep(number, weights, messages)
            return messages, int(result.not_finite)
    # The accountant assumes independent releases; two releases of one draw would reveal more.
    draws, result = computed(times)
    outbox.ledger.record([draw.event for draw in draws])
    messages = released(draws, result.sums, times)
    outbox.keep(number, weights, messages)
    return messages, int(result.not_finite)


def _repeatable(nodes: Sequence[Node]) -> bool:
    """Return whether a round, computed again, releases the same bytes."""
    return all(node.mechanism.repeatable for node in nodes)


def draws_must_not_show(nodes: Sequence[Node]) -> bool:
    """Return whether passes must not depend on who was drawn: where draws are secret and not of everybody."""
    events = [node.mechanism.event for node in nodes]
    return not (_repeatable(nodes) or all(event.expected == event.population for event in events))


def _clipped_sums(phase: Phase, nodes: Sequence[Node], records: LabelledItems, draws: Sequence[Draw]) -> ClippedSums:
    """Sum the clipped contributions of the drawn units, node by node. Mixed rows of a node follow each other."""
    chunk = phase.chunk or items_in_a_pass(phase, records.inputs)
    everybody = any(draw.rows is not None for draw in draws)  # a unit in several rows is computed and clipped once
    if draws_must_not_show(nodes) and not everybody:
        # The last bits of a contribution depend on the shape of its pass, so the shape must not depend on the draw.
        everybody = chunk >= CHEAP
        chunk = chunk if everybody else phase.items
    rows = [np.zeros(len(draw.members), dtype=np.int64) if draw.rows is None else draw.rows for draw in draws]
    groups = np.concatenate([index * phase.rows + node_rows for index, node_rows in enumerate(rows)])
    sizes = [node.mechanism.event.population for node in nodes]
    starts = np.cumsum([0, *sizes])[:-1]
    members = np.concatenate([start + draw.members for start, draw in zip(starts, draws, strict=True)])
    if everybody:
        draws = [replace(draw, members=np.arange(size)) for draw, size in zip(draws, sizes, strict=True)]
    items, of_units = _chosen(phase, nodes, records, draws)
    if everybody:
        if phase.schedule is not None:
            # A unit is never in a row that is closed to its class.
            first = to_device(items[:, 0], records.targets.device)
            classes = records.targets[first].cpu().numpy()[members]
            within = phase.schedule[groups % phase.rows, classes]
            groups, members = groups[within], members[within]
        order = members.argsort(kind="stable")
        groups, members = groups[order], members[order]
        of_units["members"] = torch.from_numpy(members)
    count = phase.rows * len(nodes)
    contributors = Contributors(records.inputs, records.targets, items, torch.from_numpy(groups), count, **of_units)
    mechanism = nodes[0].mechanism
    bound = mechanism.event.clip if np.isfinite(mechanism.event.clip) else None
    with user_code("model: Expected a network that takes every item, found an error: "):
        clipped = clipped_sums(phase.contribution, contributors, bound=bound, chunk=chunk, grid=mechanism.grid)
    return replace(clipped, sums=clipped.sums.view(len(nodes), -1))


def _chosen(
    phase: Phase, nodes: Sequence[Node], records: LabelledItems, draws: Sequence[Draw]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the items that make the drawn units' contributions, and what else `Contributors` know of units."""
    chosen, weights, keys = [], [], []
    for node, draw in zip(nodes, draws, strict=True):
        items, item_weights = choose_items(node, draw, records.strata, phase.items)
        chosen.append(items)
        weights.append(item_weights)
        if phase.drops:
            random = node.mechanism.item_choices(draw.event.round, Purpose.DROPOUT)
            # For all units of the node: a unit's key must not depend on which other units were drawn.
            keys.append(random.integers(2**63, size=len(node.units))[draw.members])
    of_units = {}
    if any(w is not None for w in weights):
        equal = np.float32(1) / np.float32(phase.items)
        complete = [
            np.full(positions.shape, equal) if w is None else w for positions, w in zip(chosen, weights, strict=True)
        ]
        of_units["weights"] = np.concatenate(complete)
    if keys:
        of_units["keys"] = np.concatenate(keys)
    device = records.inputs.device
    return torch.from_numpy(np.concatenate(chosen)), {
        name: to_device(torch.from_numpy(values), device) for name, values in of_units.items()
    }


Result = TypeVar("Result")


def side_by_side(function: Callable[..., Result], *sequences: Iterable[object]) -> list[Result]:
    """Return what ``map`` returns, computed in as many threads as PyTorch has (`torch.get_num_threads`).

    It is faster where the function releases Python's lock. The function must not call PyTorch on a CPU, because each
    thread would start further threads.

    Parameters
    ----------
    function
        Function of one element of each sequence.
    *sequences
        Its arguments, all of one length.
    """
    calls = list(zip(*sequences, strict=True))
    threads = min(len(calls), torch.get_num_threads())
    if threads <= 1:
        return [function(*arguments) for arguments in calls]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda arguments: function(*arguments), calls))


@contextmanager
def noise_meanwhile(
    mechanisms: Sequence[NodeMechanism], number: int, size: int, device: torch.device, *, again: int = 0
) -> Iterator[None]:
    """Draw the noise of a round in other threads, and copy it to a GPU, while the block computes its sums there.

    The block ends when the noise is drawn. On a CPU nothing is drawn ahead: the sums need all threads. Nodes whose
    noise would exceed `AHEAD_BYTES` draw theirs when they release.

    Parameters
    ----------
    mechanisms
        Mechanisms of the nodes.
    number, again
        The round, and how often it was released before.
    size
        Real numbers in a node's message.
    device
        Device of the sums.
    """
    if device.type == "cpu":
        yield
        return
    nodes = mechanisms[: AHEAD_BYTES // (size * torch.int64.itemsize)]
    with side_stream(device) as copying, ThreadPoolExecutor(torch.get_num_threads()) as pool:

        def draw(node: NodeMechanism) -> None:
            with copying():
                node.draw_ahead(number, size, device, again=again)

        futures = [pool.submit(draw, node) for node in nodes]
        yield
    for future in futures:
        future.result()


AHEAD_BYTES = 1 << 30
"""Most bytes of noise that are drawn before their sums are known."""
CHEAP = 1 << 14
"""If a pass holds at least this many items, to compute all units is cheaper than one pass for each drawn unit."""
PASS_BYTES, PASS_BYTES_ELSEWHERE = 1 << 29, 1 << 32
"""Bytes that a pass may hold between forward and backward, including the units' gradients: on a CPU, and on a GPU."""


def items_in_a_pass(phase: Phase, items: Tensor) -> int:
    """Return how many items a pass may have so that it takes about `PASS_BYTES` at most; at least one.

    The bytes of an item are measured by evaluating a copy of the network on zeros. They depend only on the network and
    the size of items, so all CPUs find the same number, and all GPUs another, which is larger: a GPU would be idle most
    of the time in passes that fit into a CPU's cache.

    Parameters
    ----------
    phase
        The network, the order of its trained parameters, and the number of items of one unit.
    items
        Any items, shape (item, ...). Only their type, their device and the shape of one item are used.
    """
    phase = replace(phase, model=copy.deepcopy(phase.model))
    one, two = (torch.zeros(count, *items.shape[1:], dtype=items.dtype, device=items.device) for count in (1, 2))
    # The first item is counted together with the weights; every further one adds as much as the second.
    of_an_item = _saved_bytes(phase, two) - _saved_bytes(phase, one)
    of_a_gradient = phase.layout.dimension * torch.float32.itemsize
    most = PASS_BYTES if items.device.type == "cpu" else PASS_BYTES_ELSEWHERE
    return max(1, most // (of_an_item + math.ceil(of_a_gradient / phase.items)))


def _saved_bytes(phase: Phase, items: Tensor) -> int:
    """Return the bytes that a network saves for its backward pass, with each item as a unit."""
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        functional_call(phase.model, phase.leaves(len(items)), (items,))
    return sum(storage.nbytes() for storage in storages.values())
