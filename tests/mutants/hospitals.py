"""Hospitals of a federation in this process, asked for rounds as a server asks them: the way of real patients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from mutants.stub import CLASSES, CLIP, Messages, random_records
from zetadp.core.assembly import Assembly
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.records import Records, items_of
from zetadp.core.settings import TrainingSettings
from zetadp.federation.flower.hospital import Hospital
from zetadp.federation.flower.protocol import Answer, Refusal, Request, decode, encode
from zetadp.federation.flower.settings import HospitalSettings
from zetadp.nn.models import NetworkSettings
from zetadp.privacy.events import Event
from zetadp.privacy.kinds import NoisySum
from zetadp.privacy.ledger import read_ledger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

SIDE = 8
"""With images of 64 pixels the head has 4 x 65 complex parameters, as many as the stub has."""
MOST_ROUNDS = 20


def _hospitals(
    folder: Path, held: Sequence[Sequence[int]], events: Sequence[Event], records: Records, *, exact: bool
) -> list[Hospital]:
    """Return hospitals that follow one plan, which says of each what its event does.

    This is the only place that builds a plan or a hospital.
    """
    plan = Plan(
        # The name promises next to nothing: checks look at any noise.
        run=RunName("head", "federated", "1000" if events[0].noise_multiplier else "inf", 0),
        cohort="made-by-a-check",
        network=NetworkSettings("head", "features"),
        training=TrainingSettings(
            rounds=MOST_ROUNDS, images_per_patient=CLASSES, clip=events[0].clip, noise="os" if exact else "seeded"
        ),
        task={"name": "classification", "classes": CLASSES},
        nodes=tuple(NodeConstants(e.node, e.population, e.expected, e.noise_multiplier) for e in events),
    )
    return [
        Hospital(
            HospitalSettings(event.node, folder, folder, folder / event.node, device="cpu", simulation=True),
            plan,
            Records.joined(*(records.part(slice(CLASSES * r, CLASSES * (r + 1))) for r in own)),
            items_of([(patient,) for patient in range(len(own))], CLASSES),
        )
        for event, own in zip(events, held, strict=True)
    ]


class Hospitals(Messages):
    """Hospitals that hold the records named, one a patient, and permit one attempt.

    Parameters
    ----------
    folder
        Where each has a folder of its own.
    held
        Records of each.
    expected
        Expected patients in a round, the same at every hospital; None draws everybody.
    sigma, clip
        Noise multiplier and clipping norm; without noise, messages are the bare contributions.
    exact
        Noise and sampling from the operating system on an integer grid.
    records
        By default random data.
    """

    def __init__(
        self,
        folder: Path,
        held: Sequence[Sequence[int]],
        *,
        expected: float | None = None,
        sigma: float = 0.0,
        clip: float = CLIP,
        exact: bool = False,
        records: Records | None = None,
    ) -> None:
        sizes = [(len(own), len(own) if expected is None else expected) for own in held]
        self.declared = [
            Event(f"node-{place}", 0, count, mean, clip, NoisySum(mean / count, sigma))
            for place, (count, mean) in enumerate(sizes)
        ]
        data = random_records(1 + max(max(own) for own in held), side=SIDE) if records is None else records
        # A head takes features: images of one row.
        data = replace(data, inputs=data.inputs.flatten(1)[:, None, None])
        self.hospitals = _hospitals(folder, held, self.declared, data, exact=exact)
        phase = Assembly.of(self.hospitals[0].plan, self.hospitals[0].records).phase
        self.layout, self.weights = phase.layout, phase.weights()
        self.names = [event.node for event in self.declared]

    def reply(
        self, place: int, number: int, *, attempt: str = "first", checkpointed: int = 0, scale: float = 1.0
    ) -> Answer | Refusal:
        """Return what a hospital answers to a request, made with the starting weights times a scale."""
        hospital = self.hospitals[place]
        weights = encode(scale * self.weights)
        return hospital.reply(Request(hospital.plan.digest, attempt, number, checkpointed, "", weights))

    def round(self, number: int) -> Tensor:
        """Return the messages of all hospitals in a round, shape (hospital, dimension)."""
        messages = []
        for place, name in enumerate(self.names):
            reply = self.reply(place, number)
            assert isinstance(reply, Answer), f"{name} refused round {number}: {reply.reason}"
            messages.append(decode(reply.update, self.layout.dimension))
        return torch.stack(messages)

    def events(self) -> list[Event]:
        """Return what the hospitals' ledgers say of their attempts."""
        return [
            event
            for hospital in self.hospitals
            for attempt in read_ledger(hospital.ledger_path)
            for event in attempt.releases()
        ]
