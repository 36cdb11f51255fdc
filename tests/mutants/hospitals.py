"""Hospitals of a federation in this process, asked for rounds as a server asks them: the way of real patients."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hospitals.sites import make_hospital, make_plan
from torch import Tensor

from mutants.stub import CLASSES, CLIP, Messages, random_records
from zetadp.account.attempts import read_ledger
from zetadp.accounting.events import Event
from zetadp.accounting.threat import MASKED_SUMS, Sums
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.hospitals.masks import FreshValue, Place
from zetadp.hospitals.protocol import Answer, Refusal, Request, decode, encode
from zetadp.nn.models import NetworkSettings
from zetadp.training.assembly import Assembly
from zetadp.training.plan import NodeConstants
from zetadp.training.records import LabelledItems

SIDE = 8
"""With images of 64 pixels the head has 4 x 65 complex parameters, as many as the stub has."""
MOST_ROUNDS = 20


class Hospitals(Messages):
    """Hospitals that hold the records named, one a patient, in folders of their own, and permit one attempt.

    Every hospital expects as many patients, or draws all of its own. Without noise, messages are the bare
    contributions. Exact noise and sampling come from the operating system.
    """

    def __init__(
        self,
        folder: Path,
        held: Sequence[Sequence[int]],
        *,
        expected: float | None = None,
        sigma: float = 0.0,
        exact: bool = False,
        records: LabelledItems | None = None,
        sums: Sums | None = None,
        rounds: int = MOST_ROUNDS,
    ) -> None:
        self.names = [f"node-{place}" for place in range(len(held))]
        sizes = [(len(own), len(own) if expected is None else expected) for own in held]
        data = random_records(1 + max(max(own) for own in held), side=SIDE) if records is None else records
        # A head takes features: images of one row.
        data = replace(data, inputs=data.inputs.flatten(1)[:, None, None])
        plan = make_plan(
            len(held),
            rounds,
            noise="os" if exact else "seeded",
            sigma=sigma,
            # The name promises next to nothing: checks look at any noise.
            run=RunName("head", "federated", Target(1000 if sigma else math.inf), 0),
            network=NetworkSettings("head", "features"),
            task={"name": "classification", "classes": CLASSES},
            threat="local" if sums is None else MASKED_SUMS,
            sums=sums,
        )
        nodes = [NodeConstants(name, *size, sigma) for name, size in zip(self.names, sizes, strict=True)]
        plan = replace(plan, nodes=tuple(nodes))
        assert plan.clip == CLIP
        self.plan, self.declared = plan, [plan.event(name, 0) for name in self.names]
        places = [[CLASSES * record + item for record in own for item in range(CLASSES)] for own in held]
        parts = [LabelledItems(data.inputs[own], data.targets[own], data.strata[own]) for own in places]
        self.hospitals = [make_hospital(plan, place, folder, records=own) for place, own in enumerate(parts)]
        self.assembled = Assembly.of(plan, self.hospitals[0].records)
        self.layout, self.weights = self.assembled.phase.layout, self.assembled.phase.weights()

    def reply(
        self, place: int, number: int, *, attempt: str = "first", checkpointed: int = 0, scale: float = 1.0
    ) -> Answer | Refusal:
        """Return what a hospital answers to a request, made with the starting weights times a scale."""
        hospital = self.hospitals[place]
        weights = encode(scale * self.weights)
        return hospital.reply(Request(hospital.plan.digest, Place(attempt, number), checkpointed, "", weights))

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
        return [event for place in range(len(self.hospitals)) for event in self.recorded(place)]

    def recorded(self, place: int) -> list[Event]:
        """Return what a hospital's ledger says that it released."""
        path = self.hospitals[place].participant.ledger
        return [event for attempt in read_ledger(path) for event in attempt.releases()] if path.exists() else []


class SummingHospitals(Hospitals):
    """Hospitals whose messages are parts of masked sums, one colluding and one that may be missing."""

    COLLUDING, MISSING, SPARE, ROUNDS = 1, 1, 2, 2

    def __init__(self, folder: Path, held: Sequence[Sequence[int]], *, sigma: float = 300.0, **more: Any) -> None:
        sums = Sums(self.COLLUDING, self.MISSING, self.SPARE)
        super().__init__(folder, held, sigma=sigma, sums=sums, rounds=self.ROUNDS, **more)

    def ask(
        self,
        place: int,
        number: int,
        again: int,
        values: Sequence[FreshValue] = (),
        *,
        training: str = "training",
        weights: bytes = b"",
    ) -> Answer | Refusal:
        """Return what a hospital answers for a try of a round, as its process exchanges it.

        Without the members' fresh values it is asked for one. Without weights, values come with the first ones.
        """
        hospital, asked = self.hospitals[place], Place(training, number, again)
        weights = weights or (encode(self.weights) if values else b"")
        return hospital.exchange(Request(self.plan.digest, asked, 0, "", weights, values=tuple(values)))

    def values(self, places: Sequence[int], number: int, again: int, training: str = "training") -> list[FreshValue]:
        """Return a fresh value of each hospital for a try."""
        found = [self.ask(place, number, again, training=training) for place in places]
        return [reply.value for reply in found if isinstance(reply, Answer) and reply.value is not None]

    def total(self, places: Sequence[int], number: int, again: int) -> Tensor:
        """Return what the server adds up in a try, shape (1, number)."""
        values = self.values(places, number, again)
        parts = [self.decoded(self.ask(place, number, again, values)) for place in places]
        return torch.stack(parts).sum(dim=0, keepdim=True)

    def decoded(self, reply: Answer | Refusal) -> Tensor:
        """Return the message of an answer; a refusal fails the check."""
        assert isinstance(reply, Answer), f"{reply.name} refused: {reply.reason}"
        return decode(reply.update, self.assembled.phase.message, torch.int64)

    def forget(self, place: int) -> None:
        """Put back the disk of a hospital as it was before the training. Its process goes on."""
        shutil.rmtree(self.hospitals[place].settings.state, ignore_errors=True)
