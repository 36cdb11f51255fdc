"""Small federations that run the shipped round, with data and draws that a check can choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch
from ledger_builder import DECLARATION, poisson
from torch import Tensor, nn
from training_builder import items_each

from papers.directions.mechanism import Direction
from zetadp.account.attempts import Attempt, read_ledger
from zetadp.account.ledger import Ledger
from zetadp.accounting.events import Event
from zetadp.base.tensors import Layout
from zetadp.mechanism.grid import Grid
from zetadp.mechanism.release import Draw, NodeMechanism
from zetadp.nn.layers import Linear
from zetadp.nn.stacked import stack
from zetadp.training import round as rounds
from zetadp.training.outbox import Outbox
from zetadp.training.records import LabelledItems, Node, items_of
from zetadp.training.round import Phase

CLASSES = 4
CLIP = 2.0
"""Not one: noise that is not scaled by the clip cannot be told from right noise at one."""
SEED = 20


class Stub(nn.Module):
    """The smallest network with complex and with real parameters: a modulus of a complex map plus a real map.

    With the side s of its images it has 4 (s^2 + 1) complex and as many real parameters, so that real parts, imaginary
    parts and real parameters are equally many coordinates.
    """

    def __init__(self, side: int = 8) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(side)
        self.complex_map = Linear(side * side, CLASSES, dtype=torch.complex64)
        self.real_map = Linear(side * side, CLASSES, dtype=torch.float32)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator) / side

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of shape (image, class) for complex images of shape (image, 1, row, column)."""
        flat = images.flatten(1)
        real, imaginary = self.complex_map(stack(flat)).chunk(2, dim=1)
        return (real.square() + imaginary.square() + 1e-12).sqrt() + self.real_map(flat.abs())  # type: ignore[no-any-return]


def random_records(
    count: int, *, side: int = 8, images_per_class: int = 1, seed: int = 0, scale: float = 1.0
) -> LabelledItems:
    """Return records of random complex images with labels that nothing in them explains."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, CLASSES * images_per_class, side, side, dtype=torch.complex64, generator=generator)
    return LabelledItems.stacked(scale * images.unsqueeze(2), torch.arange(CLASSES).repeat_interleave(images_per_class))


class Chosen(NodeMechanism):
    """The shipped mechanism with a draw that the check chooses; it stands for chance."""

    members: Sequence[int] = ()

    def draw(self, round_number: int, *, again: int = 0) -> Draw:
        event = super().draw(round_number, again=again).event
        return Draw(event=event, members=np.asarray(self.members, dtype=np.int64))


class Released(NamedTuple):
    """What a node knows of one release and tells nobody: its clipped sum, and the sum with noise, without masks."""

    clipped_sum: Tensor
    message: Tensor


@contextmanager
def releases_seen(look: Callable[[NodeMechanism, Draw], None] = lambda *_: None) -> Iterator[list[Released]]:
    """Collect every release of this process in the block, after a look at the mechanism and the draw."""
    found: list[Released] = []
    honest = NodeMechanism.release

    def release(self: NodeMechanism, draw: Draw, clipped_sum: Tensor, *, again: int = 0) -> Tensor:
        look(self, draw)
        message = honest(self, draw, clipped_sum, again=again)
        found.append(Released(clipped_sum, message))
        return message

    with mock.patch.object(NodeMechanism, "release", release):
        yield found


class Messages:
    """What nodes send in rounds, and what their ledgers say of it, in whatever way they are asked."""

    names: Sequence[str]
    """Names of the nodes."""
    layout: Layout

    def round(self, number: int) -> Tensor:
        """Return the messages of all nodes in a round, shape (node, dimension)."""
        raise NotImplementedError

    def events(self) -> list[Event]:
        """Return what the ledger files say was released."""
        raise NotImplementedError

    def rounds(self, count: int) -> Tensor:
        """Return the messages of the first rounds at fixed weights, shape (round, node, dimension)."""
        return torch.stack([self.round(number) for number in range(count)])

    def parts(self, messages: Tensor) -> dict[str, Tensor]:
        """Split messages of shape (..., dimension) into real parts, imaginary parts and real parameters, if any."""
        twice = [size for size, is_complex in zip(self.layout.sizes, self.layout.complex, strict=True) if is_complex]
        paired, real = messages[..., : sum(twice)], messages[..., sum(twice) :]
        found = {"real part": paired[..., 0::2], "imaginary part": paired[..., 1::2], "real parameters": real}
        return {name: part for name, part in found.items() if part.shape[-1]}


@dataclass
class Federation(Messages):
    """Nodes, model and ledger, ready for rounds of the simulation."""

    nodes: list[Node]
    model: nn.Module
    layout: Layout
    records: LabelledItems
    ledger: Ledger
    outbox: Outbox
    images_per_patient: int

    def __post_init__(self) -> None:
        self.names = [node.mechanism.event.node for node in self.nodes]

    def round(self, number: int) -> Tensor:
        """Return the messages of all nodes in a round, shape (node, dimension)."""
        phase = replace(Phase.of(self.model, self.images_per_patient), chunk=64)
        messages, _ = rounds.do_round(phase, self.nodes, self.records, self.outbox, number)
        return messages

    def attempt(self) -> Attempt:
        """Return what the ledger file says."""
        return read_ledger(self.ledger.path)[-1]

    def events(self) -> list[Event]:
        """Return what the ledger file says was released in the last attempt."""
        return self.attempt().events


@contextmanager
def federation(
    folder: Path,
    held: Sequence[Sequence[int]],
    *,
    expected: float,
    sigma: float = 0.0,
    clip: float = CLIP,
    exact: bool = False,
    kind: type[NodeMechanism] = NodeMechanism,
    records: LabelledItems | None = None,
    model: nn.Module | None = None,
    side: int = 8,
    images_per_patient: int = CLASSES,
    resumed: bool = False,
    directed: bool = False,
) -> Iterator[Federation]:
    """Open a federation whose nodes hold the records named, one a patient; by default random images and a stub.

    Every node expects as many patients. Without noise, messages are the bare contributions. Exact noise and sampling
    come from the operating system; ``kind`` is the class of other mechanisms. A resumed federation goes on with the
    ledger's last attempt. Directed nodes send directions, as concentrated as the noise multiplier allows.
    """
    network = Stub(side) if model is None else model
    layout = Layout.of(network)
    data = random_records(1 + max(max(own) for own in held), side=side) if records is None else records
    with Ledger(folder / "ledger.jsonl") as ledger:
        if not resumed:
            ledger.start(DECLARATION)
        nodes = []
        for place, own in enumerate(held):
            event = poisson(f"node-{place}", population=len(own), expected=expected, noise_multiplier=sigma, clip=clip)
            if directed:
                event = replace(event, kind=Direction.hiding(event.kind, layout.dimension))
            if exact:
                grid = Grid.choose(clip, noise_multiplier=sigma, population=len(own), dimension=layout.dimension)
                mechanism: NodeMechanism = NodeMechanism(event, grid=grid, ledger=ledger)
            else:
                mechanism = kind(event, node_index=place, seed=SEED, ledger=ledger)
            each = items_each(data)
            nodes.append(Node(mechanism, items_of([[record] for record in own], each)))
        outbox = Outbox(ledger, folder / "messages" if exact else None)
        yield Federation(nodes, network, layout, data, ledger, outbox, images_per_patient)
