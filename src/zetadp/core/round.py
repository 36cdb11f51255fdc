"""One round: draw, sum clipped contributions, record, add noise, keep, release.

The nodes of a site share weights, so the clipped sums of all of them are computed in common passes; what is summed,
recorded and released is exactly what separate nodes would sum, record and release.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from zetadp.core.messages import Kept, MessageStore
from zetadp.core.records import Node, Records, choose_items, gather
from zetadp.nn.layers import knows_patients
from zetadp.nn.parameters import Layout
from zetadp.privacy.clipping import ClippedSums, clipped_sums
from zetadp.privacy.contributions import (
    Contribution,
    Drawn,
    Gradient,
    Losses,
    PatientStatistic,
    Statistic,
    cross_entropies,
)
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.mechanism import Draw
from zetadp.validation import UserError


@dataclass(frozen=True)
class Phase:
    """What every round of a training asks of the units.

    Attributes
    ----------
    model
        The network, which has the round's weights.
    layout
        The order of its parameters in a flat vector.
    items
        Items that make one contribution.
    contribution
        What is computed of them and clipped by the core: the gradient of the network, or a statistic in its place.
    rows
        Sums that a node releases together in a round.
    schedule
        Which rows are open to which class of unit, boolean of shape (row, class), public; None where all are to all.
    """

    model: nn.Module
    layout: Layout
    items: int
    contribution: Contribution
    rows: int = 1
    schedule: np.ndarray | None = None

    @classmethod
    def of(
        cls, model: nn.Module, items: int, losses: Losses = cross_entropies, statistic: PatientStatistic | None = None
    ) -> Phase:
        """Return the phase in which a network learns by its gradients, or by a statistic where there is one."""
        layout = Layout.of(model)
        contribution = Gradient(model, layout, losses) if statistic is None else Statistic(statistic)
        return cls(model, layout, items, contribution)

    @property
    def dimension(self) -> int:
        """Real numbers in a contribution."""
        return sum(self.contribution.sizes)

    @property
    def message(self) -> int:
        """Real numbers that a node sends in a round."""
        return self.rows * self.dimension

    def weights(self) -> Tensor:
        """Return the network's weights as they stand, flat and real, shape (dimension of the layout,)."""
        return self.layout.flatten(dict(self.model.named_parameters())).detach()


@dataclass(frozen=True)
class Site:
    """What one process of a training has: all nodes in a simulation, one at a hospital.

    Attributes
    ----------
    nodes
        The holders of units.
    records
        Items of all their units.
    ledger
        Where a round is recorded before anything is released.
    store
        Where messages are kept before they are sent. Nodes that cannot repeat their noise need one.
    chunk
        Items in one pass at most; None for as many as `images_in_a_pass` says. Exact mechanisms take one unit a
        pass, or, where at least `CHEAP` items fit, all units of the nodes, and drop those that were not drawn: so a
        contribution cannot depend, not even in its last bits, on who else was drawn.
    """

    nodes: Sequence[Node]
    records: Records
    ledger: Ledger
    store: MessageStore | None = None
    chunk: int | None = None

    @property
    def repeatable(self) -> bool:
        """Whether a round, computed again, releases the same bytes."""
        return all(node.mechanism.repeatable for node in self.nodes)

    def __post_init__(self) -> None:
        """Refuse noise that can neither be kept nor drawn again."""
        if self.store is None and not self.repeatable:
            raise ValueError("Expected a store of messages for noise that cannot be drawn again, found none.")


def do_round(phase: Phase, site: Site, number: int) -> tuple[Tensor, int]:
    """Compute, record, store and release one round of all nodes, or repeat the messages of an interrupted run.

    A round that is already in the ledger is not released a second time if possible: stored messages are sent unchanged,
    and seeded nodes compute the same bytes again. Otherwise the round is drawn again, with other noise, and counted as
    a further release.

    Parameters
    ----------
    phase
        Contribution of a patient. Its network has this round's weights.
    site
        Nodes, their units, ledger and store.
    number
        The round, counted from zero.

    Returns
    -------
    messages, not_finite
        Messages of the nodes, shape (node, dimension); and the number of patients that contributed zero because their
        gradient was not finite. A real node would never send this number.

    Raises
    ------
    UserError
        If the round was answered already for other weights, or if the ledger has lost the record of what was kept.
    """
    nodes, ledger, store = site.nodes, site.ledger, site.store

    def computed(again: int) -> tuple[list[Draw], ClippedSums]:
        draws = [node.mechanism.draw(number, again=again) for node in nodes]
        return draws, _clipped_sums(phase, site, draws)

    def released(draws: list[Draw], sums: Tensor, again: int) -> Tensor:
        def message(node: Node, draw: Draw, total: Tensor) -> Tensor:
            return node.mechanism.release(draw, total, again=again)

        # Each node draws its noise from a stream of its own: the bytes are those of one node after the other.
        return torch.stack(side_by_side(message, nodes, draws, sums))

    times = ledger.releases(number)
    weights = _digest(phase.weights()) if store is not None else ""
    if store is not None and (kept := store.find(number, weights, site.records.inputs.device)) is not None:
        _check_recorded(ledger, number, times, kept)
        return kept.messages, 0
    if times and site.repeatable:
        # Recorded and not noted as sent: it never was. Noted: the very bytes may be sent again.
        draws, result = computed(times - 1)
        messages = released(draws, result.sums, times - 1)
        digest, sent = _digest(messages), ledger.sent(number, times - 1)
        if sent in (None, digest):
            if store is not None:  # it died before it was kept, and may be asked for again
                store.keep(number, weights, messages, ledger.head)
            if sent is None:
                ledger.note_sent(number, times - 1, digest)
            return messages, int(result.not_finite)
    # Two releases of one draw would tell more than two that are independent, as the accountant takes them.
    draws, result = computed(times)
    ledger.record([draw.event for draw in draws])
    messages = released(draws, result.sums, times)
    if store is not None:
        store.keep(number, weights, messages, ledger.head)
    ledger.note_sent(number, times, _digest(messages))
    return messages, int(result.not_finite)


def _clipped_sums(phase: Phase, site: Site, draws: Sequence[Draw]) -> ClippedSums:
    """Sum the clipped contributions of the patients drawn, node by node."""
    nodes, records = site.nodes, site.records
    chunk = site.chunk or images_in_a_pass(phase, records.inputs)
    if any(draw.rows is not None for draw in draws):
        return _mixed_sums(phase, site, draws, chunk)
    groups = [np.full(len(draw.members), place) for place, draw in enumerate(draws)]
    if not (site.repeatable or all(node.mechanism.event.expected == node.mechanism.event.population for node in nodes)):
        # The shape of a pass makes the last bits of what is in it, so it must not follow from who was drawn.
        if chunk >= CHEAP:
            groups = [np.full(node.mechanism.event.population, len(nodes)) for node in nodes]
            for place, (own, draw) in enumerate(zip(groups, draws, strict=True)):
                own[draw.members] = place
            draws = [replace(draw, members=np.arange(len(own))) for draw, own in zip(draws, groups, strict=True)]
        else:
            chunk = phase.items
    choices = [choose_items(node, draw, records.strata, phase.items) for node, draw in zip(nodes, draws, strict=True)]
    inputs, targets = gather(records, np.concatenate(choices))
    drawn = Drawn(inputs, targets, torch.from_numpy(np.concatenate(groups)), len(nodes) + 1)
    found = _summed(phase, site, drawn, chunk)
    return replace(found, sums=found.sums[: len(nodes)])


def _mixed_sums(phase: Phase, site: Site, draws: Sequence[Draw], chunk: int) -> ClippedSums:
    """Sum the clipped contributions row by row: of each node, all rows one after the other.

    All units go through, whoever was drawn, and each is computed and clipped once.
    """
    nodes, records = site.nodes, site.records
    choices = []
    for node, draw in zip(nodes, draws, strict=True):
        everybody = replace(draw, members=np.arange(node.mechanism.event.population))
        choices.append(choose_items(node, everybody, records.strata, phase.items))
    inputs, targets = gather(records, np.concatenate(choices))
    rows = phase.rows
    starts = np.cumsum([0, *(len(choice) for choice in choices)])[:-1]
    groups = np.concatenate([place * rows + np.asarray(draw.rows) for place, draw in enumerate(draws)])
    members = np.concatenate([start + draw.members for start, draw in zip(starts, draws, strict=True)])
    if phase.schedule is not None:
        # A patient is never in a row that is closed to the patient's class.
        own = targets[:, 0].cpu().numpy()[members]
        within = phase.schedule[groups % rows, own]
        groups, members = groups[within], members[within]
    order = members.argsort(kind="stable")
    sums_of, who = torch.from_numpy(groups[order]), torch.from_numpy(members[order])
    found = _summed(phase, site, Drawn(inputs, targets, sums_of, rows * len(nodes), who), chunk)
    return replace(found, sums=found.sums.view(len(nodes), -1))


def _summed(phase: Phase, site: Site, drawn: Drawn, chunk: int) -> ClippedSums:
    mechanism = site.nodes[0].mechanism
    bound = mechanism.event.clip if np.isfinite(mechanism.event.clip) else None
    return clipped_sums(phase.contribution, drawn, bound=bound, chunk=chunk, grid=mechanism.grid)


def _check_recorded(ledger: Ledger, round_number: int, times: int, kept: Kept) -> None:
    """Refuse to go on where what was kept, and may have been sent, is not what the ledger holds."""
    if not ledger.knows(kept.ledger_head):
        raise UserError(
            f"The ledger {ledger.path} has lost lines: a message of round {round_number} was kept, and may have been "
            "sent, whose record it does not hold. Restore the ledger: without it no true epsilon can be stated. To "
            "start over, delete the checkpoint."
        )
    noted = ledger.sent(round_number, times - 1)
    if noted is not None and noted != _digest(kept.messages):
        raise UserError(
            f"The message kept of round {round_number} is not what was sent. Restore it, or delete the checkpoint."
        )


def _digest(messages: Tensor) -> str:
    return hashlib.sha256(messages.cpu().numpy().tobytes()).hexdigest()


Result = TypeVar("Result")


def side_by_side(function: Callable[..., Result], *sequences: Iterable[object]) -> list[Result]:
    """Return what a function gives for the first of each sequence, for the second, and so on: `map` in threads.

    Worth it where the function lets go of Python's lock. It must not call PyTorch on a CPU: each of the threads would
    start threads of its own.

    Parameters
    ----------
    function
        Called at once as often as PyTorch has threads (`torch.get_num_threads`).
    *sequences
        Its arguments, all of one length.
    """
    calls = list(zip(*sequences, strict=True))
    threads = min(len(calls), torch.get_num_threads())
    if threads <= 1:
        return [function(*arguments) for arguments in calls]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda arguments: function(*arguments), calls))


CHEAP = 1 << 14
"""Items of a pass, from which on contributions cost less than passes of their own."""
PASS_BYTES = 1 << 29
"""Bytes that a pass may hold between forward and backward, including the patients' gradients."""


def images_in_a_pass(phase: Phase, images: Tensor) -> int:
    """Return how many images a pass may have so that it holds `PASS_BYTES` at most, about; at least one.

    What an image holds is found by evaluating the network on zeros. It follows from the network and the size of
    images alone, so that every machine finds the same.

    Parameters
    ----------
    phase
        The network, the order of its trained parameters, and how many images share one patient's gradient.
    images
        Any images, shape (image, ...), of which only type, device and the shape of one count.
    """
    one, two = (torch.zeros(count, *images.shape[1:], dtype=images.dtype, device=images.device) for count in (1, 2))
    # The second image adds what every further one adds; the first comes with the weights.
    of_an_image = _held(phase, two) - _held(phase, one)
    of_a_gradient = phase.layout.dimension * torch.float32.itemsize
    return max(1, PASS_BYTES // (of_an_image + math.ceil(of_a_gradient / phase.items)))


def _held(phase: Phase, images: Tensor) -> int:
    """Return the bytes that are kept for the way back when a network is evaluated, each image being a patient."""
    model = phase.model
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage
        return tensor

    parameters = {name: model.get_parameter(name).detach() for name in phase.layout.names}
    if knows_patients(model):
        parameters = {name: p.unsqueeze(0).expand(len(images), *p.shape) for name, p in parameters.items()}
    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        functional_call(model, {name: p.requires_grad_() for name, p in parameters.items()}, (images,))
    return sum(storage.nbytes() for storage in storages.values())
