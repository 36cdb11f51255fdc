"""All nodes in one process: the engine for experiments.

Nodes share the weights within a round, so the clipped sums of all nodes are computed in common chunks; what is summed,
recorded and released is exactly what separate nodes would sum, record and release.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.federation.node import Node, Records, choose_images, gather
from zetadp.privacy.clipping import ClippedSums, clipped_sums
from zetadp.privacy.fixed_passes import FixedPasses, patients_a_pass
from zetadp.privacy.pass_size import images_in_a_pass
from zetadp.threads import side_by_side
from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from zetadp.federation.messages import Kept, MessageStore
    from zetadp.nn.parameters import Layout
    from zetadp.privacy.clipping import PatientStatistic
    from zetadp.privacy.ledger import Ledger
    from zetadp.privacy.mechanism import Draw


def simulate_round(
    nodes: Sequence[Node],
    model: nn.Module,
    layout: Layout,
    records: Records,
    ledger: Ledger,
    round_number: int,
    *,
    images_per_patient: int,
    chunk: int | None,
    store: MessageStore | None = None,
    statistic: PatientStatistic | None = None,
    passes: FixedPasses | None = None,
) -> tuple[Tensor, int]:
    """Compute, record, keep and release one round of all nodes; or send again what an interrupted run had sent.

    A round that the ledger holds already is not released a second time if that can be had: what was kept is sent as it
    is; seeded nodes compute the same bytes again. Where neither is possible, the round is drawn anew, with other noise,
    and counted as a further release.

    Parameters
    ----------
    nodes
        The holders of patients.
    model, layout
        The network with this round's weights, and the order of its parameters.
    records
        Images of all patients.
    ledger
        Where the round is recorded before anything is released.
    round_number
        The round, counted from zero.
    images_per_patient
        Images that make one patient's gradient.
    chunk
        Images in one pass at most; None for as many as `images_in_a_pass` says. Exact mechanisms take one patient a
        pass: so a contribution cannot depend, not even in its last bits, on who else was drawn.
    store
        Where messages are kept before they are sent. Nodes that cannot repeat their noise need one.
    statistic
        What a patient contributes in place of its gradient.
    passes
        Passes of fixed shape, kept from round to round by the caller (`passes_for`), in place of ``chunk``.

    Returns
    -------
    messages, not_finite
        What the nodes send, shape (node, dimension); and the number of patients whose gradient was not finite and who
        contributed zero, which a real node would keep to itself.

    Raises
    ------
    UserError
        If the round was answered already for other weights, or if the ledger has lost the record of what was kept.
    """
    seeded = all(node.mechanism.repeatable for node in nodes)
    if store is None and not seeded:
        msg = "Expected a store of messages for noise that cannot be drawn again, found none."
        raise ValueError(msg)
    if not seeded:
        together = images_per_patient
        if passes is not None and passes.patients != 1:
            msg = f"Expected passes of one patient where noise is exact, found {passes.patients}."
            raise ValueError(msg)
    else:
        together = chunk or images_in_a_pass(model, layout, records.images, images_per_patient)

    def computed(again: int) -> tuple[list[Draw], ClippedSums]:
        draws = [node.mechanism.draw(round_number, again=again) for node in nodes]
        found = _clipped_sums(
            nodes, draws, model, layout, records, images_per_patient, together, statistic=statistic, passes=passes
        )
        return draws, found

    def released(draws: list[Draw], sums: Tensor, again: int) -> Tensor:
        def message(node: Node, draw: Draw, total: Tensor) -> Tensor:
            return node.mechanism.release(draw, total, again=again)

        # Each node draws its noise from a stream of its own: the bytes are those of one node after the other.
        return torch.stack(side_by_side(message, nodes, draws, sums))

    times = ledger.releases(round_number)
    weights = _digest(layout.flatten(dict(model.named_parameters())).detach()) if store is not None else ""
    if store is not None and (kept := store.find(round_number, weights, records.images.device)) is not None:
        _check_recorded(ledger, round_number, times, kept)
        return kept.messages, 0
    if times and seeded:
        # Recorded and not noted as sent: it never was. Noted: the very bytes may be sent again.
        draws, result = computed(times - 1)
        messages = released(draws, result.sums, times - 1)
        digest, sent = _digest(messages), ledger.sent(round_number, times - 1)
        if sent in (None, digest):
            if store is not None:  # it died before it was kept, and may be asked for again
                store.keep(round_number, weights, messages, ledger.head)
            if sent is None:
                ledger.note_sent(round_number, times - 1, digest)
            return messages, int(result.not_finite)
    # Two releases of one draw would tell more than two that are independent, as the accountant takes them.
    draws, result = computed(times)
    ledger.record([draw.event for draw in draws])
    messages = released(draws, result.sums, times)
    if store is not None:
        store.keep(round_number, weights, messages, ledger.head)
    ledger.note_sent(round_number, times, _digest(messages))
    return messages, int(result.not_finite)


def passes_for(
    nodes: Sequence[Node], device: torch.device, *, images_per_patient: int, chunk: int
) -> FixedPasses | None:
    """Return the passes of fixed shape that a GPU takes through the rounds of a training; none for a CPU.

    Parameters
    ----------
    nodes, images_per_patient, chunk
        As in `simulate_round`. The shape follows from public constants.
    device
        Where the network is.
    """
    if device.type != "cuda":
        return None
    if not all(node.mechanism.repeatable for node in nodes):
        return FixedPasses(1)
    chances = [(node.mechanism.population, node.mechanism.expected) for node in nodes]
    return FixedPasses(patients_a_pass(chances, max(1, chunk // images_per_patient)))


def _clipped_sums(
    nodes: Sequence[Node],
    draws: Sequence[Draw],
    model: nn.Module,
    layout: Layout,
    records: Records,
    images_per_patient: int,
    chunk: int,
    *,
    statistic: PatientStatistic | None,
    passes: FixedPasses | None,
) -> ClippedSums:
    """Sum the clipped gradients, or what stands for them, of the patients drawn, node by node."""
    labels = records.known_labels
    choices = [choose_images(node, draw, labels, images_per_patient) for node, draw in zip(nodes, draws, strict=True)]
    chosen_records, chosen_images = (np.concatenate(part) for part in zip(*choices, strict=True))
    members = [len(draw.members) for draw in draws]
    groups = torch.from_numpy(np.repeat(np.arange(len(nodes)), members))
    clip = nodes[0].mechanism.clip
    images, image_labels = gather(records, chosen_records, chosen_images)
    return clipped_sums(
        model,
        layout,
        images,
        image_labels,
        groups,
        count=len(nodes),
        bound=clip if np.isfinite(clip) else None,
        chunk=chunk,
        grid=nodes[0].mechanism.grid,
        statistic=statistic,
        passes=passes,
    )


def _check_recorded(ledger: Ledger, round_number: int, times: int, kept: Kept) -> None:
    """Refuse to go on where what was kept, and may have been sent, is not what the ledger holds."""
    if not ledger.knows(kept.ledger_head):
        msg = (
            f"The ledger {ledger.path} has lost lines: a message of round {round_number} was kept, and may have been "
            "sent, whose record it does not hold. Restore the ledger: without it no true epsilon can be stated. To "
            "start over, delete the checkpoint."
        )
        raise UserError(msg)
    noted = ledger.sent(round_number, times - 1)
    if noted is not None and noted != _digest(kept.messages):
        msg = f"The message kept of round {round_number} is not what was sent. Restore it, or delete the checkpoint."
        raise UserError(msg)


def _digest(messages: Tensor) -> str:
    return hashlib.sha256(messages.cpu().numpy().tobytes()).hexdigest()
