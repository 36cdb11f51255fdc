"""A private training, before and after."""

from __future__ import annotations

import copy
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from zetadp.account.budget import Cap
from zetadp.account.statement import Statement
from zetadp.base.calls import checked_calls
from zetadp.base.names import checked_path
from zetadp.base.storage import check_writable, private_files, writing
from zetadp.base.tensors import keep_freed_memory
from zetadp.base.validation import UserError
from zetadp.own.evaluation import Evaluation, measure
from zetadp.own.folder import PrivateFolder, take_weights
from zetadp.own.losses import Metric
from zetadp.own.progress import RoundsShown
from zetadp.own.promises import RunPromise
from zetadp.own.records import Records
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.plan import Plan
from zetadp.training.public import Public
from zetadp.training.settings import Performance
from zetadp.training.stateless import copied
from zetadp.training.task import Task


@contextmanager
def between_rounds() -> Iterator[list[int]]:
    """Hold back an interruption by the user until a round is over; a second one is immediate.

    A round that is recorded but not yet stored would be released again by the next call, and count twice. The list
    is empty until the user asks to stop.
    """
    requests: list[int] = []  # no lock may be taken in a signal handler: a second signal would wait for the first
    if threading.current_thread() is not threading.main_thread():
        yield requests  # only the main thread is interrupted
        return

    def ask(number: int, _: object) -> None:
        if requests:
            raise KeyboardInterrupt
        requests.append(number)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield requests
    finally:
        signal.signal(signal.SIGINT, before)


@checked_calls()
@dataclass(repr=False)
class PrivateRun:
    """A private training, before and after. `zetadp.private` makes it.

    Attributes
    ----------
    plan
        All public constants, with the noise. ``run.plan.write(path)`` writes what other hospitals would approve.
    model
        The network: with its starting weights before training, with the final ones afterwards. The starting weights of
        the first call in a folder win over those of later calls.
    task
        Losses and metrics.

    Raises
    ------
    UserError
        If the folder holds another run, or if the account has a ledger of this name.
    """

    plan: Plan
    model: nn.Module
    task: Task
    _folder: PrivateFolder
    _records: Records
    _device: torch.device
    _most: float | None = None
    _stop: Callable[[pd.DataFrame], bool] | None = None
    _stop_requests: list[int] = field(init=False)
    _rounds: RoundsShown = field(init=False)

    def __post_init__(self) -> None:
        """Take over the folder, and load what it has."""
        with private_files():
            self._folder.enter(self.plan, self.model, self._records)
        if self.state == "finished":
            self._load_finished()

    @property
    def folder(self) -> Path:
        """Folder of the run, which is its identity."""
        return self._folder.path

    @property
    def account(self) -> Path:
        """Folder of the patients' account: the ledgers of all runs on them."""
        return self._folder.account

    @property
    def state(self) -> str:
        """``new``, ``interrupted`` or ``finished``."""
        if self._folder.run.model.exists():
            return "finished"
        return "interrupted" if self._files.checkpoint.exists() else "new"

    @property
    def public(self) -> Public:
        """The public constants that were declared."""
        return Public.of(self.plan)

    @property
    def ledger(self) -> Path:
        """The run's ledger, in the patients' account."""
        return self._folder.ledger

    @property
    def history(self) -> pd.DataFrame:
        """One row a round: ``round`` and ``length``, the norm of the released gradient in units of the clip.

        Noise alone has the length that the promise prints.
        """
        path = self._folder.run.history
        if not path.exists():
            return pd.DataFrame({"round": pd.Series(dtype=int), "length": pd.Series(dtype=float)})
        # Rounds after a checkpoint are repeated after an interruption, with the same releases.
        return pd.read_csv(path).drop_duplicates("round", keep="last").sort_values("round", ignore_index=True)

    @property
    def promise(self) -> RunPromise:
        """What the run costs each patient, alone and with all that was recorded before."""
        return RunPromise.of(self.plan, self.model, self.ledger, self._files.cap)

    def train(self, test: Records | None = None, metric: Metric | None = None) -> PrivateRun:
        """Train, continue after an interruption, or return the finished model; say which of the three.

        From then on the process keeps up to 1 GiB of freed memory, which makes steps faster (with glibc).

        Parameters
        ----------
        test, metric
            What `evaluate` will be called with. The network is then evaluated with its starting weights first, so that
            a mistake in them costs nothing.

        Raises
        ------
        UserError
            If the ledger has lost lines, the cost would exceed ``most_epsilon``, or ``test`` cannot be evaluated.
            Nothing was released then.
        """
        if self.state == "finished":
            self._load_finished()
            self._folder.seal(self._files)  # where it ended between model and seal
            self._say("finished before; this is the stored model, and nothing more was released.")
            return self
        if test is not None:
            self.evaluate(test, metric)
        elif metric is not None:
            raise UserError("metric: Expected records to evaluate it on, found none. Give test= too.")
        for path in (self._folder.run.model, self.ledger):
            check_writable(path)
        if self.state == "interrupted":
            self._say(
                "continues. Rounds since the last checkpoint are repeated with the same messages; what was released is "
                "not released again."
            )
        else:
            self._say(f"starts. {self.promise}")
        self._folder.check_unchanged("train", self.model)
        keep_freed_memory()
        self._rounds = RoundsShown(self._folder.name, self.plan.training)
        with between_rounds() as self._stop_requests, private_files():
            holders = LocalHolders(
                self.plan,
                self._records.items.to(self._device),
                self._records.nodes,
                model=copy.deepcopy(self.model),
                task=self.task,
                performance=Performance(evaluate_every=self.plan.training.rounds),
            )
            result = train(holders, self._files, after_round=self._after)
        with private_files():
            self._folder.write_model(self._folder.run.model, result.model, self.plan, ledger_head=result.ledger_head)
            self._load_finished()  # the weights only: layers of the trained copy may keep what they saw last
            self._folder.seal(self._files)
        return self

    @property
    def statement(self) -> Statement:
        """What may be said of the run, from its ledger alone.

        Raises
        ------
        UserError
            If nothing was recorded yet.
        """
        return self._folder.statement

    def evaluate(self, records: Records, metric: Metric | None = None) -> Evaluation:
        """Return the metric on other patients, with an interval over patients.

        Before the training, this evaluates the starting weights, which costs nothing.

        Parameters
        ----------
        records
            Records of patients whom the network was not trained on. They have no guarantee: anyone who sees the result
            learns something about them.
        metric
            Function of outputs and labels, both of shape (item, ...), that returns a real number for each item, such as
            a Dice score. Its mean comes first, under the function's name. By default, that of the run's task does.

        Raises
        ------
        UserError
            If the records are not like those of the training or hold one of its patients, or if the metric does not
            return a finite number for each item.
        """
        content = measure(self.model, self.task, self._records, records, metric)
        return Evaluation(content, self.state == "finished")

    def save(self, path: Path | str) -> None:
        """Write the weights with plan and statement; `zetadp.load` reads them.

        Raises
        ------
        UserError
            If the weights of ``model`` were changed: the statement is about those that the run's folder holds.
        """
        path = checked_path(path, "path")
        if path.resolve().parent == self.folder.resolve():
            raise UserError(
                f"save: Expected a file outside the run's own folder, whose files are sealed, found {path}."
            )
        self._folder.check_unchanged("save", self.model)
        self._folder.write_model(path, self.model, self.plan)

    def __repr__(self) -> str:
        return f"Run {self._folder.name}, {self.state}, in {self.folder}. {self.promise}"

    @property
    def _files(self) -> RunFiles:
        """The files that training keeps, with the limit on everything together."""
        # A user who loses the checkpoint of a run on real patients must be told before paying for it twice.
        once = not self.plan.training.seeded
        cap = None if self._most is None else Cap(self._most, self.plan.delta)
        return RunFiles(self.ledger, self._folder.run.checkpoint, once, cap)

    def _load_finished(self) -> None:
        take_weights(self.model, self._folder.run.model)
        self.model.requires_grad_(requires_grad=False)

    def _after(self, done: int, messages: Tensor) -> bool:
        """Store the length of a round's gradient, say how far training is, and return whether it ends here."""
        path, rounds = self._folder.run.history, self.plan.training.rounds
        length = float(messages.mean(dim=0).norm()) / self.plan.training.clip
        with writing(path), path.open("a", encoding="utf-8") as file:
            # The new line comes first: the last of an interrupted write may lack its own.
            file.write(f"\n{done},{length}" if file.tell() else f"round,length\n{done},{length}")
        if self._stop_requests:
            self._say(f"stopped after round {done} of {rounds}; the same call continues.")
            raise KeyboardInterrupt
        ends = False
        if self._stop is not None and done < rounds:
            # A round that is repeated after an interruption is judged as it was the first time: without later ones.
            history = self.history
            # An exception of the rule passes as it is: a search over settings may end a run by one of its own.
            ends = bool(self._stop(history[history["round"] <= done]))
        last = ends or done == rounds
        self._rounds.report(done, last=last)
        if ends:
            self._say(f"ends early by its rule; the statement is for all {rounds} declared rounds.")
        return ends

    def _say(self, text: str) -> None:
        """Tell the user at the screen what the run does."""
        sys.stderr.write(f"{self._folder.name}: {text}\n")
        sys.stderr.flush()


@checked_calls()
def load(path: Path | str, model: nn.Module) -> nn.Module:
    """Return a copy of a network with the weights that `PrivateRun.save` wrote, in evaluation mode.

    Raises
    ------
    UserError
        If the file is absent or damaged, or belongs to another network.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model: Expected a torch.nn.Module, found {type(model).__name__}.")
    network = copied(model)
    take_weights(network, checked_path(path, "path"))
    return network.eval().requires_grad_(requires_grad=False)
