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
from zetadp.privacy.clipping import clipped_sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from zetadp.nn.parameters import Layout
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
    chunk: int,
) -> tuple[Tensor, int]:
    """Compute, record and release one round of all nodes.

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
        Images in one pass.

    Returns
    -------
    messages, not_finite
        What the nodes send, shape (node, dimension); and the number of patients whose gradient was not finite and who
        contributed zero, which a real node would keep to itself.
    """
    draws = [node.mechanism.draw(round_number) for node in nodes]
    labels = records.labels.cpu().numpy()
    choices = [choose_images(node, draw, labels, images_per_patient) for node, draw in zip(nodes, draws, strict=True)]
    chosen_records, chosen_images = (np.concatenate(part) for part in zip(*choices, strict=True))
    members = [len(draw.members) for draw in draws]
    groups = torch.from_numpy(np.repeat(np.arange(len(nodes)), members)).to(records.images.device)
    clip = nodes[0].mechanism.clip
    images, image_labels = gather(records, chosen_records, chosen_images)
    result = clipped_sums(
        model,
        layout,
        images,
        image_labels,
        groups,
        count=len(nodes),
        bound=clip if np.isfinite(clip) else None,
        chunk=chunk,
        grid=nodes[0].mechanism.grid,
    )
    return _release(nodes, draws, result.sums, ledger, round_number), result.not_finite


def _release(nodes: Sequence[Node], draws: Sequence[Draw], sums: Tensor, ledger: Ledger, round_number: int) -> Tensor:
    """Record the round and return its messages; the very bytes that were sent before an interruption are sent again.

    Only where the repetition of a round differs from what was sent (another device, another library), or where the
    ledger does not know what was sent, is it a further release, with fresh noise and an entry of its own in the ledger.
    """
    events = [draw.event for draw in draws]

    def messages() -> Tensor:
        again = ledger.releases(round_number) - 1
        parts = zip(nodes, draws, sums, strict=True)
        return torch.stack([node.mechanism.release(draw, total, again=again) for node, draw, total in parts])

    if not all(node.mechanism.repeatable for node in nodes):
        # Fresh draws every time: whatever is computed is a release of its own.
        ledger.record(events)
        return messages()
    sent = ledger.sent(round_number)
    if sent is None:
        ledger.record(events)
    result = messages()
    digest = _digest(result)
    if sent is not None and sent != digest:
        ledger.record(events)
        result = messages()
        digest = _digest(result)
    if sent != digest:
        ledger.note_sent(round_number, digest)
    return result


def _digest(messages: Tensor) -> str:
    return hashlib.sha256(messages.cpu().numpy().tobytes()).hexdigest()
