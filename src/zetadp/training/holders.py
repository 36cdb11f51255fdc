"""The data holders of a run whose records are in this process."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from zetadp.account.register import Secret
from zetadp.base.tensors import tensors_digest
from zetadp.base.validation import UserError, counted
from zetadp.nn.settings import OWN
from zetadp.training.assembly import Assembly
from zetadp.training.checkpoint import Checkpoint, RunFiles
from zetadp.training.independence import checked_phase
from zetadp.training.loop import Released, no_history
from zetadp.training.networks import check_own
from zetadp.training.outbox import Outbox
from zetadp.training.progress import Progress
from zetadp.training.promise import check_noise
from zetadp.training.records import LabelledItems, Node, Positions, checked_units
from zetadp.training.round import do_round, items_in_a_pass
from zetadp.training.seeding import entropy_of, seeding_of
from zetadp.training.settings import Performance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from torch import Tensor, nn

    from zetadp.account.declaration import Declaration
    from zetadp.account.ledger import Ledger
    from zetadp.training.plan import Plan
    from zetadp.training.task import Task

HASHED_AT_ONCE = 4096
"""Items that are in memory together while all are hashed."""
KEPT_BYTES = 2**28
"""Approximate bytes of stored messages after which a checkpoint is written, so that they can be deleted."""


class LocalHolders:
    """The data holders of a plan in this process: the other end of `zetadp.training.loop.train`.

    Parameters
    ----------
    plan
        Everything that defines the run. A plan of one node is the central arm.
    records
        Items of the training units.
    units
        For each node, in the plan's order, and each of its units, such as a patient, the positions of the unit's items
        in the records: whole numbers from 0, at least one. No item is in two units.
    start
        Starting weights, which must be public: they must not depend on any private patient. None draws them from the
        seed.
    model
        Your own network, for a plan whose network is ``NetworkSettings("own")``: a PyTorch module that takes inputs of
        shape (item, ...), as in the records, and returns the outputs that the plan's task expects. Without a task in
        the plan, these are real class scores of shape (item, class). Its weights are the starting weights, which must
        be public. It is trained in place.
    task
        Your own task: losses and metric. None takes the one that the plan names.
    performance
        Settings that change speed, not the result.

    Raises
    ------
    UserError
        If plan, data and model disagree.
    """

    def __init__(
        self,
        plan: Plan,
        records: LabelledItems,
        units: Sequence[Sequence[Positions]],
        *,
        start: Mapping[str, Tensor] | None = None,
        model: nn.Module | None = None,
        task: Task | None = None,
        performance: Performance | None = None,
    ) -> None:
        if start is not None:
            plan = plan.with_public(start=tensors_digest(start))
        if model is not None:
            if plan.network.family != OWN:
                raise UserError(
                    f"Expected a plan whose network is NetworkSettings('{OWN}') for your own model, found family "
                    f"{plan.network.family}."
                )
            check_own(model)
            plan = plan.with_public(model=tensors_digest(model.state_dict()))
        check_noise(plan)
        self.performance = performance or Performance()
        self.records, self.units = records, checked_units(units, records.strata, plan.together)
        _check_numbers(plan, self.units)
        self.parts = Assembly.of(plan, records, start, model, task)
        self.receiver = self.parts.receiver()
        everybody = [positions for of_node in self.units for positions in of_node]
        phase = checked_phase(self.parts, records, everybody, self.performance.chunk)
        self.phase = replace(phase, chunk=phase.chunk or items_in_a_pass(phase, records.inputs))
        self.nodes: list[Node]
        self.outbox: Outbox
        self.progress: Progress
        self._seconds_before = 0.0
        self._begun = False

    def begin(self, ledger: Ledger, files: RunFiles) -> Checkpoint:
        """Continue from the run's checkpoint if there is one; otherwise start a new attempt in the ledger.

        Returns
        -------
        The state of the run, whose fingerprint is a keyed hash of all that defines it.

        Raises
        ------
        UserError
            If these data holders have trained before and the run has no checkpoint: their network no longer has the
            starting weights of the plan.
        """
        plan = self.parts.plan
        if self._begun and not files.checkpoint.exists():
            raise UserError(
                f"Expected data holders with the starting weights of {plan.run}, found ones that have trained before. "
                "Make new ones with LocalHolders: a run continues from its checkpoint, not from a network in memory."
            )
        self._begun = True
        # Not where a server begins: what its ledger records was released already.
        if files.cap is not None:
            ledger.before_record = partial(files.cap.check_again, ledger)
        declaration, secret = self.parts.declaration(), Secret.of(files.ledger.parent)
        # A hash of patients' data is private, so only a keyed hash is written.
        keyed = secret.tag(_fingerprint(declaration, self.records, self.units))
        if not plan.training.seeded:
            # Only runs without noise use it, whose draws cannot be repeated then either.
            entropy, draws = secrets.randbits(128), None
        else:
            entropy, draws = entropy_of(plan, _repeat(plan, ledger, keyed)), {"plan": seeding_of(plan), "data": keyed}
        mechanisms = [self.parts.mechanism(node.name, entropy, ledger) for node in plan.nodes]
        new = Checkpoint(0, keyed, {}, no_history(self.parts.task), "", secret=secret.name)
        run = files.begin(new, ledger, declaration, self.receiver, draws)
        self.nodes = [*map(Node, mechanisms, self.units)]
        # Messages that cannot be computed again must be stored: a repeated round would be a second release.
        self.outbox = Outbox(ledger, files.messages if self.parts.grid is not None else None)
        self.progress = Progress(plan, self.parts.task.metric, run.round)
        self._seconds_before = float(run.history["seconds"].max()) if len(run.history) else 0.0
        return run

    def do_round(self, number: int) -> Released:
        """Release a round of all nodes for the weights of the receiver, which the network has."""
        messages, not_finite = do_round(self.phase, self.nodes, self.records, self.outbox, number)
        released = Released(messages, must_save=self.outbox.size > KEPT_BYTES)
        if not self.parts.plan.training.seeded:
            return released  # times and counts are functions of who was drawn
        return replace(released, not_finite=not_finite, seconds=self._seconds_before + self.progress.seconds())

    def report(self, done: int, metric: float) -> None:
        """Log how far the run is, if a line is due."""
        self.progress.metric = metric
        self.progress.report(done)

    def discard(self, before: int) -> None:
        """Remove the messages of rounds that a checkpoint contains."""
        self.outbox.discard(before)

    def finish(self) -> None:
        """Do nothing: all nodes are there in every round."""


def _check_numbers(plan: Plan, units: Sequence[Sequence[np.ndarray]]) -> None:
    """Raise `UserError` for units that do not match the plan."""
    if len(units) != len(plan.nodes):
        raise UserError(f"Expected units of {len(plan.nodes)} nodes, as declared, found {len(units)}.")
    for node, of_node in zip(plan.nodes, units, strict=True):
        if len(of_node) != node.population:
            raise UserError(
                f"Expected {counted(node.population, f'training {plan.protects}')} at {node.name}, as declared, found "
                f"{len(of_node)}."
            )


def _repeat(plan: Plan, ledger: Ledger, keyed: str) -> int:
    """Return the position of these data among all data that were trained on with an equal plan.

    Runs that differ in anything, data included, must not share draws: the same noise on two gradients would reveal
    their exact difference, and their guarantees would not compose as independent. The same run, repeated, must release
    the same bytes, also on another processor. So this number depends on which data are equal, and not on their bits.
    """
    draws = [attempt.draws for attempt in ledger.attempts if attempt.draws is not None]
    others = dict.fromkeys(draw["data"] for draw in draws if draw["plan"] == seeding_of(plan))
    return [*others, keyed].index(keyed)


def _fingerprint(declaration: Declaration, records: LabelledItems, units: Sequence[Sequence[np.ndarray]]) -> str:
    """Return a hash of all that defines a run: its public constants, the units of each node, and every item."""
    positions = [[list(map(int, unit)) for unit in of_node] for of_node in units]
    digest = hashlib.sha256(json.dumps([declaration.to_json(), positions], sort_keys=True).encode())
    for tensor in (records.inputs, records.targets):
        for first in range(0, len(tensor), HASHED_AT_ONCE):  # inputs may be looked up on a disk
            part = tensor[torch.arange(first, min(first + HASHED_AT_ONCE, len(tensor)))]
            digest.update(part.cpu().contiguous().numpy().data)
    return digest.hexdigest()
