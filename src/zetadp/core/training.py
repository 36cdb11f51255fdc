"""Training one model under one guarantee: rounds, progress, checkpoints.

The core knows nothing of MRI or of Snakemake: it takes a plan, and the records of those who are trained on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import secrets
import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from zetadp.core.apart import check_apart, check_own
from zetadp.core.assembly import Assembly
from zetadp.core.checkpoint import Checkpoint
from zetadp.core.evaluation import watched
from zetadp.core.messages import MessageStore
from zetadp.core.progress import Progress
from zetadp.core.records import Node, Records, check_units
from zetadp.core.round import Site, do_round, images_in_a_pass
from zetadp.core.settings import Performance
from zetadp.privacy.ledger import Ledger, read_ledger
from zetadp.privacy.secret import Secret
from zetadp.storage import remove_leftovers
from zetadp.tensors import tensors_digest
from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from zetadp.core.plan import Plan
    from zetadp.core.server import Receiver
    from zetadp.core.task import Task
    from zetadp.privacy.account import Permission
    from zetadp.privacy.budget import Cap

logger = logging.getLogger(__name__)

KEPT_BYTES = 2**28
"""Approximate bytes of messages that are kept before a checkpoint makes them unneeded."""


@dataclass(frozen=True)
class Holding:
    """The units at one node, which are private.

    Attributes
    ----------
    units
        For each unit that is drawn and hidden, such as a patient, the positions of its items in the records.
    """

    units: Sequence[Sequence[int]]


@dataclass(frozen=True)
class TrainingData:
    """All data of a training.

    Attributes
    ----------
    records
        Items of the training patients.
    holdings
        Units at each node, in the order of the plan's nodes.
    validation
        Items of held-out patients, for reports only: the last model is kept, not the best. None for no reports.
    """

    records: Records
    holdings: Sequence[Holding]
    validation: Records | None = None


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
        Whether the run may restart from its first round; None sets no limit.
    cap
        The most that all runs on the same patients may cost one of them; None sets no limit.
    """

    ledger: Path
    checkpoint: Path
    permission: Permission | None = None
    cap: Cap | None = None

    @property
    def messages(self) -> Path:
        """Folder of the messages that are kept until a checkpoint makes them unneeded."""
        return self.checkpoint.with_name(f"{self.checkpoint.stem}.messages")

    def finish(self) -> None:
        """Remove the checkpoint and the kept messages of a run whose outputs are all written."""
        # The checkpoint goes first: messages without one are never read, a checkpoint without its messages would be.
        self.checkpoint.unlink(missing_ok=True)
        remove_leftovers(self.checkpoint)  # of a job that died while it wrote one
        self.remove_messages()

    def remove_messages(self) -> None:
        """Remove the kept messages."""
        shutil.rmtree(self.messages, ignore_errors=True)


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Attributes
    ----------
    model
        The network with its final weights; never the best of several.
    history
        Columns ``round``, ``seconds``, ``learning_rate``, ``validation_accuracy``, or whatever metric the task
        watches, and ``validation_loss``; the last two are NaN without validation patients. Seconds are NaN with noise
        from the operating system: the duration of a round reveals how many patients were drawn.
    ledger_head
        Head of the ledger's chain at the end: a ledger without it has lost lines.
    not_finite
        Patient gradients that were not finite and contributed zero; known in a simulation only, and None where noise
        protects real patients.
    released
        Rows that the nodes released for the model to learn from, shape (row, dimension), if it learns from such.
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
    performance: Performance | None = None,
    after_round: Callable[[int, Tensor], None] | None = None,
) -> Trained:
    """Train a network across nodes, by zeta-DP-SGD or in closed form, from the start or from its checkpoint.

    Parameters
    ----------
    plan
        What defines the training; a plan of one node is the central arm.
    data
        Records, and who is at which node.
    files
        Ledger and checkpoint.
    start
        Starting weights, which must be public: a function of no private patient. None draws them from the seed.
        Low-rank updates of these weights need not be among them: they are drawn, and change nothing at first.
    model
        A network of one's own, for a plan whose network is ``NetworkSettings("own")``: a PyTorch module that takes
        inputs of shape (item, ...), as the records hold them, and returns what the plan's task asks for; without a task
        in the plan, real class scores of shape (item, class). Its weights are the starting weights, which must be
        public, and it is trained in place.
    performance
        What changes speed, not the result.
    after_round
        Called after each round with the number of rounds done and what the nodes sent, shape (node, dimension):
        everything that left them.

    Raises
    ------
    UserError
        If plan, data and model disagree, if the ledger has lost lines since the checkpoint was written, if the secret
        beside it is another, if another attempt is not permitted, or if the disk is full or read-only; the last
        checkpoint is then kept.
    """
    how = performance or Performance()
    if start is not None:
        plan = plan.with_public(start=tensors_digest(start))
    if model is not None:
        check_own(model, plan)
        plan = plan.with_public(model=tensors_digest(model.state_dict()))
    _check(plan, data)
    parts = Assembly.of(plan, data.records, start, model)
    receiver, phase = parts.receiver(), parts.phase
    if parts.solved is None:
        check_apart(phase.model, parts.task.losses, data.records)
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
            # What cannot be computed again must be kept: a repeated round would be a second release.
            store=MessageStore(files.messages, ledger.identity) if parts.grid is not None else None,
            chunk=how.chunk or images_in_a_pass(phase, data.records.inputs),
        )
        progress = Progress(plan, parts.task.metric, state.done)
        seconds_before = float(state.history["seconds"].max()) if len(state.history) else 0.0
        if state.done == 0:
            state.save(receiver, site, files)  # so that a run that is killed early continues and does not restart
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
            if after_round is not None:
                after_round(done, messages)
        head = ledger.head
    if state.not_finite:
        logger.warning("%s: %d patient gradients were not finite and contributed zero", plan.run, state.not_finite)
    not_finite = None if protected else state.not_finite
    return Trained(phase.model, state.history.astype({"round": int}), head, not_finite, receiver.released)


def no_history(task: Task) -> pd.DataFrame:
    """Return the history of a training for a task before its first row."""
    watched = (f"validation_{task.metric}", "validation_loss")
    return pd.DataFrame({name: pd.Series(dtype=float) for name in ("round", "seconds", "learning_rate", *watched)})


def _watched(parts: Assembly, validation: Records | None) -> tuple[float, float]:
    return (math.nan, math.nan) if validation is None else watched(parts.task, parts.phase.model, validation)


def _check(plan: Plan, data: TrainingData) -> None:
    """Refuse data that are not what the plan declares."""
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
    """A training between two rounds.

    Attributes
    ----------
    fingerprint, secret
        Keyed hash of all that defines the training, its data included, and the name of the secret.
    entropy
        Seed of seeded draws.
    history, done, not_finite
        The history so far, rounds done, and how many gradients were not finite.
    """

    fingerprint: str
    secret: str
    entropy: int
    history: pd.DataFrame
    done: int = 0
    not_finite: int = 0

    def save(self, receiver: Receiver, site: Site, files: TrainingFiles) -> None:
        """Write a checkpoint, and drop the messages that it makes unneeded."""
        saved = (receiver.state(), self.history, site.ledger.head, self.not_finite, self.secret)
        Checkpoint(self.done, self.fingerprint, *saved).save(files.checkpoint)
        if site.store is not None:
            site.store.discard(self.done)


def _begin(parts: Assembly, receiver: Receiver, data: TrainingData, files: TrainingFiles, ledger: Ledger) -> _State:
    """Continue from the run's checkpoint if there is one, else start a new attempt in the ledger."""
    plan, header = parts.plan, parts.header()
    secret = Secret.of(files.ledger.parent)
    # A hash of patients' data: what is written of it is keyed.
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
                files.cap.continuing(ledger)
            receiver.load(checkpoint.state)
            ledger.resume(checkpoint.round)
            logger.info("continuing after round %d of an interrupted training", checkpoint.round)
            if len(checkpoint.history):
                state.history = checkpoint.history.astype(state.history.dtypes.to_dict())
            state.done, state.not_finite = checkpoint.round, checkpoint.not_finite
            return state
        logger.info("the checkpoint %s belongs to another training; starting anew", files.checkpoint)
    if files.permission is not None:
        files.permission.check(ledger, header)
    with files.cap.starting(ledger, header) if files.cap is not None else nullcontext():
        ledger.start(parts.first_line(), draws)
    files.remove_messages()
    return state


def _repeat(plan: Plan, ledger: Path, keyed: str) -> int:
    """Return how many earlier attempts there were by an equal plan on other data.

    Runs that differ in anything, the data included, must share no draw: under common noise two gradients would show
    their difference bare, and their guarantees would not compose as independent. The same run, made again, releases the
    same bytes, on another processor as well: so data tell runs apart, and draws do not depend on their bits.
    """
    draws = [attempt.draws for attempt in read_ledger(ledger) if attempt.draws is not None]
    others = dict.fromkeys(each["data"] for each in draws if each["plan"] == plan.seeding)
    return [*others, keyed].index(keyed)


def _fingerprint(header: Mapping[str, object], data: TrainingData) -> str:
    """Return a hash of all that defines a run: its public constants, who is where, and every item."""
    held = [[list(map(int, own)) for own in each.units] for each in data.holdings]
    digest = hashlib.sha256(json.dumps([header, held], sort_keys=True).encode())
    for tensor in (data.records.inputs, data.records.targets):
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def check_checkpoint(path: Path, checkpoint: Checkpoint, ledger: Ledger, secret: str) -> None:
    """Refuse a checkpoint that names lines or a secret that are lost: a new start would release everything again."""
    if not (ledger.knows(checkpoint.ledger_head) or ledger.knew(checkpoint.ledger_head)):
        raise UserError(
            f"The ledger {ledger.path} has lost lines: it does not hold what it held when the checkpoint {path} was "
            f"written, after round {checkpoint.round}. Restore the ledger: without it no true epsilon can be stated. "
            "To start over, delete the checkpoint."
        )
    if checkpoint.secret != secret:
        raise UserError(
            f"The checkpoint {path} was written with another secret than the one in {ledger.path.parent}, so nobody "
            "can tell whether it belongs to this training. Restore the secret from a backup. To start over, delete the "
            "checkpoint: what was released before stays counted."
        )
