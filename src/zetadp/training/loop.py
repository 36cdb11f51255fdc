"""The training loop of one model under one guarantee: rounds, history, checkpoints, wherever the data holders are.

The loop does not depend on MRI, Snakemake or Flower. Whatever it sees of the data holders was released.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pandas as pd

from zetadp.account.ledger import Ledger
from zetadp.base.usercode import during
from zetadp.training.evaluation import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from torch import Tensor, nn

    from zetadp.training.assembly import Assembly
    from zetadp.training.checkpoint import Checkpoint, RunFiles
    from zetadp.training.records import LabelledItems
    from zetadp.training.server import Receiver
    from zetadp.training.settings import Performance
    from zetadp.training.task import Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Released:
    """What the data holders released in a round, and what a simulation knows beyond.

    Attributes
    ----------
    messages
        Messages of the nodes, shape (node, number); of masked sums their sum in whole steps of the grid, shape (1,
        number).
    missing
        Names of nodes that released nothing, or too late.
    must_save
        Whether the run must be saved before the next round, because the round cannot be repeated with this result or
        because the stored messages need much room.
    seconds
        Seconds that all rounds so far took; NaN where they would reveal who was drawn.
    not_finite
        Number of contributions that were not finite and were replaced by zero; None where nobody may know it.
    """

    messages: Tensor
    missing: Collection[str] = ()
    must_save: bool = False
    seconds: float = math.nan
    not_finite: int | None = None


class Holders(Protocol):
    """The data holders of a run: in this process (`zetadp.training.holders`) or over a link (`zetadp.hospitals`).

    Attributes
    ----------
    parts
        What the plan makes: the network, the task, and how messages become what the receiver takes.
    receiver
        The weights, which the holders receive in every round, and the optimiser.
    performance
        Intervals of evaluations and of checkpoints.
    """

    parts: Assembly
    receiver: Receiver
    performance: Performance

    def begin(self, ledger: Ledger, files: RunFiles) -> Checkpoint:
        """Continue the run from its checkpoint if there is one, otherwise start an attempt; return its state."""

    def do_round(self, number: int) -> Released:
        """Give the holders the weights, and return what they release for them in a round, counted from zero."""

    def report(self, done: int, metric: float) -> None:
        """Log that rounds are done, if a line is due, with the metric of the last evaluation (NaN without one)."""

    def discard(self, before: int) -> None:
        """Forget the messages of rounds before this one, which a checkpoint contains."""

    def finish(self) -> None:
        """Complete the ledger after the last round."""


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
    holders: Holders,
    files: RunFiles,
    *,
    validation: LabelledItems | None = None,
    after_round: Callable[[int, Tensor], bool | None] | None = None,
) -> Trained:
    """Train a network across data holders, by zeta-DP-SGD or in closed form, from the start or from its checkpoint.

    Parameters
    ----------
    holders
        The data holders, with the network and its optimiser.
    files
        Ledger and checkpoint.
    validation
        Items of watched patients, for reports only: the final model is the last one, not the best one. None reports
        nothing.
    after_round
        Called after each round with the number of rounds done and the messages, shape (node, dimension), which are
        everything that left the nodes. Of masked sums it is their mean, shape (1, dimension). True ends training early,
        which the ledger does not count as cheaper.

    Raises
    ------
    UserError
        If the ledger has lost lines since the checkpoint was written, if the secret next to it has changed, if another
        attempt is not permitted, if data holders give a forbidden answer or none, or if the disk is full or read-only.
        The last checkpoint is not deleted.
    """
    how, parts, receiver = holders.performance, holders.parts, holders.receiver
    rounds, model, metric, not_finite = parts.plan.training.rounds, parts.phase.model, math.nan, None
    with Ledger(files.ledger) as ledger:
        run = holders.begin(ledger, files)

        def save(done: int) -> float:
            run.round = done
            run.save(files.checkpoint, receiver, ledger)
            holders.discard(done)  # only now: a run that resumes before the checkpoint is on disk sends them again
            return time.monotonic()

        # A run that is killed early then continues and does not start over.
        saved = save(0) if run.round == 0 else time.monotonic()
        for number in range(run.round, rounds):
            done = number + 1
            with during(f"round {done} of {rounds}"):
                released = holders.do_round(number)
                messages = parts.received(released.messages, released.missing)
                receiver.step(messages, number, released.missing)
                if released.not_finite is not None:
                    not_finite = run.not_finite = run.not_finite + released.not_finite
                if done % how.evaluate_every == 0 or done == rounds:
                    network = copy.deepcopy(model).eval() if parts.phase.drops else model
                    metric, loss = watched(parts.task, network, validation)
                    row = [done, released.seconds, receiver.learning_rate(number), metric, loss]
                    run.history.loc[len(run.history)] = row
                holders.report(done, metric)
                due = released.must_save or time.monotonic() - saved >= how.checkpoint_seconds
                if due and done < rounds:
                    saved = save(done)
                if after_round is not None and after_round(done, messages):
                    break
        holders.finish()
        head = ledger.head
    if not_finite:
        logger.warning("%s: %d patient gradients were not finite and contributed zero", parts.plan.run, not_finite)
    return Trained(model, run.history.astype({"round": int}), head, not_finite, receiver.released)


def no_history(task: Task) -> pd.DataFrame:
    """Return an empty history, with the columns of a task."""
    watched = (f"validation_{task.metric}", "validation_loss")
    return pd.DataFrame({name: pd.Series(dtype=float) for name in ("round", "seconds", "learning_rate", *watched)})
