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
import shutil
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
import torch

from zetadp.base.storage import remove_leftovers
from zetadp.base.tensors import tensors_digest
from zetadp.base.validation import UserError
from zetadp.core.assembly import Assembly
from zetadp.core.checkpoint import Checkpoint
from zetadp.core.evaluation import watched
from zetadp.core.independence import check_own, check_run
from zetadp.core.messages import MessageStore
from zetadp.core.progress import Progress
from zetadp.core.records import Node, Records, check_owners, check_units, whole_positions
from zetadp.core.round import Site, do_round, images_in_a_pass
from zetadp.core.settings import Performance
from zetadp.core.task import is_packaged
from zetadp.privacy.ledger import Ledger, read_ledger
from zetadp.privacy.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from zetadp.core.plan import Plan
    from zetadp.core.server import Receiver
    from zetadp.core.task import Task
    from zetadp.privacy.budget import Cap, Permission
    from zetadp.privacy.exposure import Series

logger = logging.getLogger(__name__)

HASHED_AT_ONCE = 4096
"""Items that are in memory together while all are hashed."""
KEPT_BYTES = 2**28
"""Approximate bytes of stored messages after which a checkpoint is written, so that they can be deleted."""


@dataclass(frozen=True)
class Holding:
    """The units at one node, which are private.

    Attributes
    ----------
    units
        For each unit, such as a patient, the positions of its items in the records: whole numbers from 0, at least one.
    """

    units: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        """Refuse units that are no lists of positions."""
        object.__setattr__(self, "units", whole_positions(self.units))


@dataclass(frozen=True)
class TrainingData:
    """All data of a run.

    Attributes
    ----------
    records
        Items of the training units.
    holdings
        Units at each node, in the order of the plan's nodes. No item is in two units.
    validation
        Items of watched patients, for reports only: the final model is the last one, not the best one. None reports
        nothing.
    """

    records: Records
    holdings: Sequence[Holding]
    validation: Records | None = None

    def __post_init__(self) -> None:
        """Refuse items that belong to two units, or that do not exist."""
        check_owners([whole_positions(held.units) for held in self.holdings], len(self.records.inputs))

    @classmethod
    def of_copies(cls, records: Records, holdings: Sequence[Sequence[Sequence[int]]]) -> TrainingData:
        """Return data in which each unit has its own copies of its items, for simulations with several equal units.

        Parameters
        ----------
        records
            The items to copy.
        holdings
            For each node and each of its units, the positions of the unit's items; units may have the same ones.
        """
        units = [[len(own) for own in node] for node in holdings]
        items = torch.tensor([item for node in holdings for own in node for item in own], dtype=torch.long)
        places = iter(range(len(items)))
        copies = Records(records.inputs[items], records.targets[items], records.strata[items.numpy()])
        return cls(copies, [Holding([[next(places) for _ in range(each)] for each in node]) for node in units])


@dataclass(frozen=True)
class TrainingFiles:
    """Files that survive when a run is interrupted or repeated.

    Attributes
    ----------
    ledger
        The run's ledger, which outlives failed and repeated jobs.
    checkpoint
        Checkpoint of an interrupted run, with its messages in a folder next to it; `finish` removes both.
    permission
        Rule on whether the run may start again from its first round; None sets no limit.
    cap
        Largest total privacy cost of all runs on the same patients; None sets no limit.
    series
        The series of runs that this one was declared with, before the first of them; None if it stands alone.
    """

    ledger: Path
    checkpoint: Path
    permission: Permission | None = None
    cap: Cap | None = None
    series: Series | None = None

    @property
    def messages(self) -> Path:
        """Folder of the messages that are stored until the next checkpoint."""
        return self.checkpoint.with_name(f"{self.checkpoint.stem}.messages")

    def finish(self) -> None:
        """Remove the checkpoint and the stored messages of a run whose outputs are all written."""
        # The checkpoint goes first: messages without a checkpoint are never read, but a checkpoint without its messages
        # would be continued.
        self.checkpoint.unlink(missing_ok=True)
        remove_leftovers(self.checkpoint)  # of a job that died while it wrote one
        self.remove_messages()

    def remove_messages(self) -> None:
        """Remove the stored messages."""
        shutil.rmtree(self.messages, ignore_errors=True)


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
    data: TrainingData,
    files: TrainingFiles,
    *,
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
    data
        Items, and the units at each node.
    files
        Ledger and checkpoint.
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
        everything that left the nodes. True ends training early, which the ledger does not count as cheaper.

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
        check_own(model, plan)
        plan = plan.with_public(model=tensors_digest(model.state_dict()))
    _check(plan, data)
    parts = Assembly.of(plan, data.records, start, model, task)
    receiver, phase = parts.receiver(), parts.phase
    if model is not None or not is_packaged(parts.task):
        phase = check_run(phase, data.records, [own for held in data.holdings for own in held.units], how.chunk)
    protected = plan.training.noise == "os"
    with Ledger(files.ledger) as ledger:
        if files.cap is not None:
            ledger.before_record = partial(files.cap.check_again, ledger)
        state = _begin(parts, receiver, data, files, ledger)
        site = Site(
            nodes=[
                Node(parts.mechanism(node.name, state.entropy, ledger), held.units)
                for node, held in zip(plan.nodes, data.holdings, strict=True)
            ],
            records=data.records,
            ledger=ledger,
            # Messages that cannot be computed again must be stored: a repeated round would be a second release.
            store=MessageStore(files.messages, ledger.identity) if parts.grid is not None else None,
            chunk=how.chunk or images_in_a_pass(phase, data.records.inputs),
        )
        progress = Progress(plan, parts.task.metric, state.done)
        seconds_before = float(state.history["seconds"].max()) if len(state.history) else 0.0
        if state.done == 0:
            state.save(receiver, site, files)  # a run that is killed early then continues and does not start over
        saved = time.monotonic()
        for number in range(state.done, plan.training.rounds):
            messages, bad = do_round(phase, site, number)
            state.not_finite += 0 if protected else bad
            receiver.step(messages, number)
            done = state.done = number + 1
            if done % how.evaluate_every == 0 or done == plan.training.rounds:
                metric, loss = _watched(parts, data.validation)
                seconds = math.nan if protected else seconds_before + progress.seconds()
                row = [done, seconds, receiver.learning_rate(number), metric, loss]
                state.history.loc[len(state.history)] = row
                progress.metric = metric
            progress.report(done)
            due = time.monotonic() - saved >= how.checkpoint_seconds
            if (due or (site.store is not None and site.store.size > KEPT_BYTES)) and done < plan.training.rounds:
                state.save(receiver, site, files)
                saved = time.monotonic()
            if after_round is not None and after_round(done, messages):
                break
        head = ledger.head
    if state.not_finite:
        logger.warning("%s: %d patient gradients were not finite and contributed zero", plan.run, state.not_finite)
    not_finite = None if protected else state.not_finite
    return Trained(phase.model, state.history.astype({"round": int}), head, not_finite, receiver.released)


def no_history(task: Task) -> pd.DataFrame:
    """Return an empty history, with the columns of a task."""
    watched = (f"validation_{task.metric}", "validation_loss")
    return pd.DataFrame({name: pd.Series(dtype=float) for name in ("round", "seconds", "learning_rate", *watched)})


def _watched(parts: Assembly, validation: Records | None) -> tuple[float, float]:
    if validation is None:
        return math.nan, math.nan
    model = parts.phase.model
    return watched(parts.task, copy.deepcopy(model).eval() if parts.phase.drops else model, validation)


def _check(plan: Plan, data: TrainingData) -> None:
    """Raise `UserError` for data that do not match the plan."""
    if len(data.holdings) != len(plan.nodes):
        raise UserError(f"Expected holdings of {len(plan.nodes)} nodes, as declared, found {len(data.holdings)}.")
    for node, held in zip(plan.nodes, data.holdings, strict=True):
        if len(held.units) != node.population:
            found = len(held.units)
            raise UserError(
                f"Expected {node.population} training {plan.unit}s at {node.name}, as declared, found {found}."
            )
        check_units(held.units, data.records.strata, plan.together)


@dataclass
class _State:
    """A run between two rounds.

    Attributes
    ----------
    fingerprint, secret
        Keyed hash of all that defines the run, including its data, and the name of the secret.
    entropy
        Seed of seeded draws.
    history, done, not_finite
        The history so far, the number of rounds done, and the number of contributions that were not finite.
    """

    fingerprint: str
    secret: str
    entropy: int
    history: pd.DataFrame
    done: int = 0
    not_finite: int = 0

    def save(self, receiver: Receiver, site: Site, files: TrainingFiles) -> None:
        """Write a checkpoint, and delete the messages of the rounds before it."""
        saved = (receiver.state(), self.history, site.ledger.head, self.not_finite, self.secret)
        Checkpoint(self.done, self.fingerprint, *saved).save(files.checkpoint)
        if site.store is not None:
            site.store.discard(self.done)


def _begin(parts: Assembly, receiver: Receiver, data: TrainingData, files: TrainingFiles, ledger: Ledger) -> _State:
    """Continue from the run's checkpoint if there is one; otherwise start a new attempt in the ledger."""
    plan, header = parts.plan, parts.header()
    secret = Secret.of(files.ledger.parent)
    # A hash of patients' data is private, so only a keyed hash is written.
    keyed = secret.tag(_fingerprint(header, data))
    if plan.training.noise == "os":
        state = _State(keyed, secret.name, secrets.randbits(128), no_history(parts.task))
        draws = None
    else:
        state = _State(keyed, secret.name, plan.entropy(_repeat(plan, files.ledger, keyed)), no_history(parts.task))
        draws = {"plan": plan.seeding, "data": keyed}
    if files.checkpoint.exists():
        checkpoint = Checkpoint.load(files.checkpoint, data.records.inputs.device)
        check_checkpoint(files.checkpoint, checkpoint, ledger, secret.name)
        if ledger.knows(checkpoint.ledger_head) and checkpoint.fingerprint == keyed:
            if files.cap is not None:
                files.cap.continuing(ledger.path)
            receiver.load(checkpoint.state)
            ledger.resume(checkpoint.round)
            logger.info("continuing after round %d of an interrupted run", checkpoint.round)
            if len(checkpoint.history):
                state.history = checkpoint.history.astype(state.history.dtypes.to_dict())
            state.done, state.not_finite = checkpoint.round, checkpoint.not_finite
            return state
        logger.info("the checkpoint %s belongs to another run; starting from the first round", files.checkpoint)
    if files.permission is not None:
        files.permission.check(ledger, header)
    first = {**parts.first_line(), **({} if files.series is None else {"series": asdict(files.series)})}
    with files.cap.starting(files.ledger, first) if files.cap is not None else nullcontext():
        ledger.start(first, draws)
    files.remove_messages()
    return state


def _repeat(plan: Plan, ledger: Path, keyed: str) -> int:
    """Return the position of these data among all data that were trained on with an equal plan.

    Runs that differ in anything, data included, must not share draws: the same noise on two gradients would reveal
    their exact difference, and their guarantees would not compose as independent. The same run, repeated, must release
    the same bytes, also on another processor. So this number depends on which data are equal, and not on their bits.
    """
    draws = [attempt.draws for attempt in read_ledger(ledger) if attempt.draws is not None]
    others = dict.fromkeys(each["data"] for each in draws if each["plan"] == plan.seeding)
    return [*others, keyed].index(keyed)


def _fingerprint(header: Mapping[str, object], data: TrainingData) -> str:
    """Return a hash of all that defines a run: its public constants, the units of each node, and every item."""
    held = [[list(map(int, own)) for own in each.units] for each in data.holdings]
    digest = hashlib.sha256(json.dumps([header, held], sort_keys=True).encode())
    for tensor in (data.records.inputs, data.records.targets):
        for first in range(0, len(tensor), HASHED_AT_ONCE):  # inputs may be looked up on a disk
            part = tensor[torch.arange(first, min(first + HASHED_AT_ONCE, len(tensor)))]
            digest.update(part.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def check_checkpoint(path: Path, checkpoint: Checkpoint, ledger: Ledger, secret: str) -> None:
    """Raise `UserError` if the ledger's lines or the secret of a checkpoint are lost.

    Without this check the run would start over and release everything again.
    """
    if not (ledger.knows(checkpoint.ledger_head) or ledger.knew(checkpoint.ledger_head)):
        raise UserError(
            f"The ledger {ledger.path} has lost lines: some are missing that it held when the checkpoint {path} was "
            f"written, after round {checkpoint.round}. Restore the ledger: without it no true epsilon can be stated. "
            "To start over, delete the checkpoint."
        )
    if checkpoint.secret != secret:
        raise UserError(
            f"The checkpoint {path} was written with another secret than the one in {ledger.path.parent}, so it cannot "
            "be checked whether it belongs to this run. Restore the secret from a backup. To start over, delete the "
            "checkpoint; all releases so far still count."
        )
