"""Training one model under one guarantee: rounds, progress, checkpoints.

The core does not depend on MRI or Snakemake. It takes a plan, and the items of the training units.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import math
import secrets
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
import torch

from zetadp.account.ledger import Ledger
from zetadp.account.register import Secret
from zetadp.base.tensors import tensors_digest
from zetadp.base.validation import UserError
from zetadp.nn.settings import OWN
from zetadp.training.assembly import Assembly
from zetadp.training.checkpoint import Checkpoint, RunFiles
from zetadp.training.evaluation import watched
from zetadp.training.independence import checked_phase
from zetadp.training.networks import check_own
from zetadp.training.outbox import Outbox
from zetadp.training.progress import Progress
from zetadp.training.promise import check_noise
from zetadp.training.records import LabelledItems, Node, Positions, checked_units
from zetadp.training.round import do_round, items_in_a_pass
from zetadp.training.settings import Performance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from torch import Tensor, nn

    from zetadp.account.declaration import Declaration
    from zetadp.training.plan import Plan
    from zetadp.training.server import Receiver
    from zetadp.training.task import Task

logger = logging.getLogger(__name__)

HASHED_AT_ONCE = 4096
"""Items that are in memory together while all are hashed."""
KEPT_BYTES = 2**28
"""Approximate bytes of stored messages after which a checkpoint is written, so that they can be deleted."""


@dataclass(frozen=True)
class Trained:
    """Result of a run.

    Attributes
    ----------
    model
        The network with its final weights, not the best of several.
    history
        Columns ``round``, ``seconds``, ``learning_rate``, ``validation_accuracy`` (or another metric of the task) and
        ``validation_loss``. The last two are NaN without watched patients. Seconds are NaN with noise from the
        operating system, because the duration of a round reveals how many patients were drawn.
    ledger_head
        Head of the ledger's chain at the end. A ledger without it has lost lines.
    not_finite
        Number of contributions that were not finite and were replaced by zero. It is known in a simulation only, and
        None where noise protects real patients.
    released
        Mixed rows that the nodes released, shape (row, dimension); None if they released none.
    """

    model: nn.Module
    history: pd.DataFrame
    ledger_head: str
    not_finite: int | None
    released: Tensor | None = None


def train(
    plan: Plan,
    records: LabelledItems,
    units: Sequence[Sequence[Positions]],
    files: RunFiles,
    *,
    validation: LabelledItems | None = None,
    start: Mapping[str, Tensor] | None = None,
    model: nn.Module | None = None,
    task: Task | None = None,
    performance: Performance | None = None,
    after_round: Callable[[int, Tensor], bool | None] | None = None,
) -> Trained:
    """Train a network across nodes, by zeta-DP-SGD or in closed form, from the start or from its checkpoint.

    Parameters
    ----------
    plan
        Everything that defines the run. A plan of one node is the central arm.
    records
        Items of the training units.
    units
        For each node, in the plan's order, and each of its units, such as a patient, the positions of the unit's items
        in the records: whole numbers from 0, at least one. No item is in two units.
    files
        Ledger and checkpoint.
    validation
        Items of watched patients, for reports only: the final model is the last one, not the best one. None reports
        nothing.
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
    after_round
        Called after each round with the number of rounds done and the messages, shape (node, dimension), which are
        everything that left the nodes. Of masked sums it is their mean, shape (1, dimension). True ends training early,
        which the ledger does not count as cheaper.

    Raises
    ------
    UserError
        If plan, data and model disagree, if the ledger has lost lines since the checkpoint was written, if the secret
        next to it has changed, if another attempt is not permitted, or if the disk is full or read-only. The last
        checkpoint is not deleted.
    """
    how = performance or Performance()
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
    held = checked_units(units, records.strata, plan.together)
    _check(plan, held)
    parts = Assembly.of(plan, records, start, model, task)
    receiver = parts.receiver()
    phase = checked_phase(parts, records, [positions for own in held for positions in own], how.chunk)
    phase = replace(phase, chunk=phase.chunk or items_in_a_pass(phase, records.inputs))
    protected = not plan.training.seeded
    with Ledger(files.ledger) as ledger:
        if files.cap is not None:
            ledger.before_record = partial(files.cap.check_again, ledger)
        run, entropy = _begin(parts, receiver, records, held, files, ledger)
        nodes = [
            Node(parts.mechanism(node.name, entropy, ledger), own) for node, own in zip(plan.nodes, held, strict=True)
        ]
        # Messages that cannot be computed again must be stored: a repeated round would be a second release.
        outbox = Outbox(ledger, files.messages if parts.grid is not None else None)
        progress = Progress(plan, parts.task.metric, run.round)
        seconds_before = float(run.history["seconds"].max()) if len(run.history) else 0.0

        def save() -> None:
            run.save(files.checkpoint, receiver, ledger)
            outbox.discard(run.round)

        if run.round == 0:
            save()  # a run that is killed early then continues and does not start over
        saved = time.monotonic()
        for number in range(run.round, plan.training.rounds):
            messages, not_finite = do_round(phase, nodes, records, outbox, number)
            run.not_finite += 0 if protected else not_finite
            messages = parts.received(messages)
            receiver.step(messages, number)
            done = run.round = number + 1
            if done % how.evaluate_every == 0 or done == plan.training.rounds:
                network = copy.deepcopy(phase.model).eval() if phase.drops else phase.model
                metric, loss = watched(parts.task, network, validation)
                seconds = math.nan if protected else seconds_before + progress.seconds()
                run.history.loc[len(run.history)] = [done, seconds, receiver.learning_rate(number), metric, loss]
                progress.metric = metric
            progress.report(done)
            due = time.monotonic() - saved >= how.checkpoint_seconds or outbox.size > KEPT_BYTES
            if due and done < plan.training.rounds:
                save()
                saved = time.monotonic()
            if after_round is not None and after_round(done, messages):
                break
        head = ledger.head
    if run.not_finite:
        logger.warning("%s: %d patient gradients were not finite and contributed zero", plan.run, run.not_finite)
    history = run.history.astype({"round": int})
    return Trained(phase.model, history, head, None if protected else run.not_finite, receiver.released)


def no_history(task: Task) -> pd.DataFrame:
    """Return an empty history, with the columns of a task."""
    watched = (f"validation_{task.metric}", "validation_loss")
    return pd.DataFrame({name: pd.Series(dtype=float) for name in ("round", "seconds", "learning_rate", *watched)})


def _check(plan: Plan, units: Sequence[Sequence[np.ndarray]]) -> None:
    """Raise `UserError` for units that do not match the plan."""
    if len(units) != len(plan.nodes):
        raise UserError(f"Expected units of {len(plan.nodes)} nodes, as declared, found {len(units)}.")
    for node, own in zip(plan.nodes, units, strict=True):
        if len(own) != node.population:
            raise UserError(
                f"Expected {node.population} training {plan.protects}s at {node.name}, as declared, found {len(own)}."
            )


def _begin(
    parts: Assembly,
    receiver: Receiver,
    records: LabelledItems,
    units: Sequence[Sequence[np.ndarray]],
    files: RunFiles,
    ledger: Ledger,
) -> tuple[Checkpoint, int]:
    """Continue from the run's checkpoint if there is one; otherwise start a new attempt in the ledger.

    Returns
    -------
    The state of the run, whose fingerprint is a keyed hash of all that defines it, and the seed of seeded draws.
    """
    plan, declaration = parts.plan, parts.declaration()
    secret = Secret.of(files.ledger.parent)
    # A hash of patients' data is private, so only a keyed hash is written.
    keyed = secret.tag(_fingerprint(declaration, records, units))
    if not plan.training.seeded:
        entropy, draws = secrets.randbits(128), None
    else:
        entropy, draws = plan.entropy(_repeat(plan, ledger, keyed)), {"plan": plan.seeding, "data": keyed}
    run = Checkpoint(0, keyed, {}, no_history(parts.task), "", secret=secret.name)
    return files.begin(run, ledger, declaration, receiver, draws), entropy


def _repeat(plan: Plan, ledger: Ledger, keyed: str) -> int:
    """Return the position of these data among all data that were trained on with an equal plan.

    Runs that differ in anything, data included, must not share draws: the same noise on two gradients would reveal
    their exact difference, and their guarantees would not compose as independent. The same run, repeated, must release
    the same bytes, also on another processor. So this number depends on which data are equal, and not on their bits.
    """
    draws = [attempt.draws for attempt in ledger.attempts if attempt.draws is not None]
    others = dict.fromkeys(each["data"] for each in draws if each["plan"] == plan.seeding)
    return [*others, keyed].index(keyed)


def _fingerprint(declaration: Declaration, records: LabelledItems, units: Sequence[Sequence[np.ndarray]]) -> str:
    """Return a hash of all that defines a run: its public constants, the units of each node, and every item."""
    held = [[list(map(int, positions)) for positions in own] for own in units]
    digest = hashlib.sha256(json.dumps([declaration.to_json(), held], sort_keys=True).encode())
    for tensor in (records.inputs, records.targets):
        for first in range(0, len(tensor), HASHED_AT_ONCE):  # inputs may be looked up on a disk
            part = tensor[torch.arange(first, min(first + HASHED_AT_ONCE, len(tensor)))]
            digest.update(part.cpu().contiguous().numpy().data)
    return digest.hexdigest()
