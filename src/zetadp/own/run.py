"""A private training, before and after, its folder, and what it leaves."""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from zetadp.account.book import Book, note_people
from zetadp.account.budget import Cap
from zetadp.account.offers import offer
from zetadp.account.register import REGISTER, Secret
from zetadp.account.statement import Statement, last_statement
from zetadp.account.verification import check_neighbours
from zetadp.base.differences import differences
from zetadp.base.runfolder import RunFolder
from zetadp.base.storage import (
    check_writable,
    keep_private,
    make_folder,
    private_files,
    read_json,
    settle,
    write_json,
    writing,
)
from zetadp.base.tensors import keep_freed_memory, load_tensors, save_tensors, tensors_digest
from zetadp.base.validation import UserError, checked_name, checked_path
from zetadp.own.losses import Metric, mean_over_patients, metric_name, values_of
from zetadp.own.progress import RoundsShown
from zetadp.own.promises import RunPromise
from zetadp.own.records import Records
from zetadp.training.checkpoint import RunFiles
from zetadp.training.evaluation import outputs_of
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.networks import state_tensors, take_tensors
from zetadp.training.plan import Plan
from zetadp.training.public import Public
from zetadp.training.settings import Performance
from zetadp.training.task import Classification, Task

ARGUMENTS = {
    "images_per_patient": "items_per_patient",
    "learning_rate": "optimiser",
    "recipe": "optimiser",
    "ledger": "account",
    "nodes": "hospitals",
    "expected": "per_round",
    "task": "loss or task",
}
"""Arguments of `private` whose values a run's file has under other names."""


@contextmanager
def between_rounds() -> Iterator[list[int]]:
    """Hold back an interruption by the user until a round is over; a second one is immediate.

    A round that is recorded but not yet stored would be released again by the next call, and count twice. The list
    is empty until the user asks to stop.
    """
    asked: list[int] = []  # no lock may be taken in a signal handler: a second signal would wait for the first
    if threading.current_thread() is not threading.main_thread():
        yield asked  # only the main thread is interrupted
        return

    def ask(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def run_places(path: object, account: object) -> tuple[Path, Path]:
    """Return the folders that the arguments ``folder`` and ``account`` of `zetadp.private` name."""
    own = checked_path(path, "folder")
    ledgers = own.resolve().parent / "ledgers" if account is None else checked_path(account, "account")
    for name, place in (("folder", own), ("account", ledgers)):
        if place.is_file():
            raise UserError(f"{name}: Expected a folder, found the file {place}. Choose another name.")
    checked_name(own.resolve().name, "folder")
    return own, ledgers


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
    folder
        Folder of the run, which is its identity.
    account
        Folder of the patients' account: the ledgers of all runs on them.

    Raises
    ------
    UserError
        If the folder holds another run, or if the account has a ledger of this name.
    """

    plan: Plan
    model: nn.Module
    task: Task
    folder: Path
    account: Path
    _records: Records
    _device: torch.device
    _most: float | None = None
    _stop: Callable[[pd.DataFrame], bool] | None = None
    _asked: list[int] = field(init=False)
    _rounds: RoundsShown = field(init=False)

    def __post_init__(self) -> None:
        """Take over the folder, and load what it has."""
        with private_files():
            self._enter()
        if self.state == "finished":
            self._load_finished()

    @property
    def state(self) -> str:
        """``new``, ``interrupted`` or ``finished``."""
        if self._run.model.exists():
            return "finished"
        return "interrupted" if self._files.checkpoint.exists() else "new"

    @property
    def public(self) -> Public:
        """The public constants that were declared."""
        return Public.of(self.plan)

    @property
    def ledger(self) -> Path:
        """The run's ledger, in the patients' account."""
        return self.account / f"{self._name}.jsonl"

    @property
    def history(self) -> pd.DataFrame:
        """One row a round: ``round`` and ``length``, the norm of the released gradient in units of the clip.

        Noise alone has the length that the promise prints.
        """
        path = self._run.history
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
            self._seal()  # where it ended between model and seal
            self._say("finished before; this is the stored model, and nothing more was released.")
            return self
        if test is not None:
            self.evaluate(test, metric)
        for path in (self._run.model, self.ledger):
            check_writable(path)
        if self.state == "interrupted":
            self._say(
                "continues. Rounds since the last checkpoint are repeated with the same messages; what was released is "
                "not released again."
            )
        else:
            self._say(f"starts. {self.promise}")
        self._check_unchanged("train", self._run.start)
        keep_freed_memory()
        self._rounds = RoundsShown(self._name, self.plan.training)
        with between_rounds() as self._asked, private_files():
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
            self._write(self._run.model, result.model, ledger_head=result.ledger_head)
            self._load_finished()  # the weights only: layers of the trained copy may keep what they saw last
            self._seal()
        return self

    @property
    def statement(self) -> Statement:
        """What may be said of the run, from its ledger alone.

        Raises
        ------
        UserError
            If nothing was recorded yet.
        """
        attempts = Book.read(self.account).ledgers.get(self.ledger)  # or an error, if it is lost
        if not attempts:
            raise UserError(f"statement: Expected a run that has begun, found no ledger {self.ledger}. Call train().")
        return last_statement(attempts, self._name)

    def evaluate(self, records: Records, metric: Metric | None = None) -> Evaluation:
        """Return the metric on other patients, with an interval over patients.

        Before the training, this evaluates the starting weights, which costs nothing.

        Parameters
        ----------
        records
            Records of patients whom the network was not trained on. They have no guarantee: whoever sees the result
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
        if not isinstance(records, Records):
            raise UserError(f"evaluate: Expected zetadp.Records of held-out patients, found {type(records).__name__}.")
        trained = self._records.keys
        both = [one for key, one in records.keys.items() if key in trained]
        if both:
            raise UserError(
                f"evaluate: Expected other patients than those of the training, found patient {both[0]!r} in both."
            )
        for what, own, given in (
            ("items", self._records.inputs, records.inputs),
            ("labels", self._records.targets, records.targets),
        ):
            if (own.shape[1:], own.dtype) != (given.shape[1:], given.dtype):
                raise UserError(
                    f"evaluate: Expected {what} as in the training, {own.dtype} of shape {tuple(own.shape[1:])}, found "
                    f"{given.dtype} of shape {tuple(given.shape[1:])}."
                )
        if isinstance(self.task, Classification):
            self.task.check(records.targets)
        table = pd.DataFrame({"patient": [f"{records.ids[code]}" for code in records.owner]})
        table["item"] = range(len(table))
        model = copy.deepcopy(self.model).eval()  # training may follow, in the mode that the user chose
        held_out = records.items.to(self._device)
        outputs = outputs_of(model, held_out.inputs)
        content = self.task.summarise(table.assign(**self.task.measure(outputs, held_out.targets)))
        if metric is None:
            return Evaluation(content, self.state == "finished")
        table["value"] = values_of(metric, outputs, held_out.targets)
        content = {**content, **mean_over_patients(table, "value", metric_name(metric))}
        return Evaluation(content, self.state == "finished")

    def save(self, path: Path | str) -> None:
        """Write the weights with plan and statement; `zetadp.load` reads them.

        Raises
        ------
        UserError
            If the weights of ``model`` were changed: the statement is about those that the run's folder holds.
        """
        if Path(path).resolve().parent == self.folder.resolve():
            raise UserError(
                f"save: Expected a file outside the run's own folder, whose files are sealed, found {path}."
            )
        self._check_unchanged("save", self._run.model if self._run.model.exists() else self._run.start)
        self._write(Path(path), self.model)

    def __repr__(self) -> str:
        return f"Run {self._name}, {self.state}, in {self.folder}. {self.promise}"

    @property
    def _name(self) -> str:
        return self.folder.resolve().name

    @property
    def _run(self) -> RunFolder:
        """The files of the folder."""
        return RunFolder(self.folder)

    @property
    def _files(self) -> RunFiles:
        """The files that training keeps, with the limit on everything together."""
        # Whoever loses the checkpoint of a run on real patients must not pay for it twice without a word.
        once = not self.plan.training.seeded
        cap = None if self._most is None else Cap(self._most, self.plan.delta)
        return RunFiles(self.ledger, self._run.checkpoint, once, cap)

    def _enter(self) -> None:
        """Write what the run is into a new folder; of a known one, check that it is this run, and load its start."""
        identity, start = self._run.identity, self._run.start
        stored = read_json(identity) if identity.exists() else {}
        mixed = (self.folder / REGISTER).exists() or RunFolder(self.account).identity.exists()
        if mixed or self.folder.resolve() == self.account.resolve():
            raise UserError(
                f"folder: Expected a run and an account in folders of their own, found {self.folder} and "
                f"{self.account}. The run's files would be mixed with ledgers. Choose another folder or account."
            )
        ledger = os.path.relpath(self.ledger.resolve(), self.folder.resolve())
        if ledger == stored.get("ledger") and not (self.account / REGISTER).exists():
            raise UserError(
                f"account: Expected the account {self.account}, in which {self.folder} is recorded, found none. "
                "Restore it from a backup."
            )
        if not stored:
            check_neighbours(self.folder.resolve(), self.account)
        secret = Secret.of(self.account)
        now = {
            "plan": self.plan.to_json(),
            "ledger": ledger,
            "records": secret.tag(self._records.digest),  # only a keyed hash is written
        }
        if stored:
            if found := _changed_arguments(stored, now):
                if len(found) > 1:
                    found.pop("noise_multiplier", None)  # which follows from the others
                if "optimiser" in found:  # its lists of parameters may differ only because the networks do
                    _take_weights(copy.deepcopy(self.model), start)
                if [*found] == ["records"]:
                    raise UserError(
                        f"records: Expected the items and labels that {self.folder} was begun with, found others: "
                        "their keyed hash differs. Give the same items in the same order, or give this run another "
                        f"folder. zetadp.load opens {self._run.model} without any."
                    )
                shown = "; ".join(f"{key} {both}" for key, both in found.items())
                raise UserError(
                    f"folder: Expected the run that {self.folder} holds, with {shown}. "
                    f"{offer('repeat the first call', 'give this run another folder')}"
                )
            _take_weights(self.model, start)
            return
        if self._run.model.exists():
            raise UserError(f"folder: Expected a new folder or one of a run, found the model {self._run.model} alone.")
        if self.ledger.exists():
            raise UserError(
                f"folder: Expected a name that the account {self.account} does not hold, found {self._name}. "
                f"{offer('restore this folder from a backup', 'give the run another folder')}"
            )
        note_people(self.ledger, self._records.texts)  # before the folder is made: what is refused leaves nothing
        make_folder(self.folder)
        keep_private(self.folder)
        tensors = state_tensors(self.model)
        save_tensors(start, tensors, {"weights": tensors_digest(tensors)})
        self.plan.write(self._run.plan)
        write_json(identity, now)

    def _load_finished(self) -> None:
        _take_weights(self.model, self._run.model)
        self.model.requires_grad_(requires_grad=False)

    def _check_unchanged(self, what: str, path: Path) -> None:
        """Refuse a network whose weights are no longer those of a file in the run's folder."""
        if tensors_digest(state_tensors(self.model)) != tensors_digest(load_tensors(path)[0]):
            raise UserError(
                f"{what}: Expected the weights that {path} holds, found others: run.model was changed. The statement "
                "of the run says nothing about them. Change a copy (copy.deepcopy(run.model)), and open the run again "
                "by the same call."
            )

    def _write(self, path: Path, model: nn.Module, **more: str) -> None:
        """Write weights with plan and statement."""
        content = {"plan": self.plan.to_json(), "statement": self.statement.text, **more}
        save_tensors(path, state_tensors(model), content)

    def _seal(self) -> None:
        """Write the statement and a copy of the ledger, seal all for `zetadp verify`, and remove the checkpoint.

        At the end all files are their owner's only and have one time.
        """
        run = self._run
        if not run.seal.exists():
            statement = self.statement
            self._files.seal_ledger(run.ledger)
            statement.write(run.privacy, run.text)
            run.write_seal()
        self._files.finish()
        settle([self.ledger, *self.folder.rglob("*"), self.folder])

    def _after(self, done: int, messages: Tensor) -> bool:
        """Store the length of a round's gradient, say how far training is, and return whether it ends here."""
        path, rounds = self._run.history, self.plan.training.rounds
        length = float(messages.mean(dim=0).norm()) / self.plan.training.clip
        with writing(path), path.open("a", encoding="utf-8") as file:
            # The new line comes first: the last of an interrupted write may lack its own.
            file.write(f"\n{done},{length}" if file.tell() else f"round,length\n{done},{length}")
        if self._asked:
            raise KeyboardInterrupt
        ends = False
        if self._stop is not None and done < rounds:
            # A round that is repeated after an interruption is judged as it was the first time: without later ones.
            history = self.history
            ends = bool(self._stop(history[history["round"] <= done]))
        last = ends or done == rounds
        self._rounds.report(done, last=last)
        if ends:
            self._say(f"ends early by its rule; the statement is for all {rounds} declared rounds.")
        return ends

    def _say(self, text: str) -> None:
        """Tell the user at the screen what the run does."""
        sys.stderr.write(f"{self._name}: {text}\n")
        sys.stderr.flush()


def _take_weights(model: nn.Module, path: Path) -> None:
    """Give a network the weights and buffers of a file."""
    try:
        take_tensors(model, load_tensors(path)[0])
    except RuntimeError as error:
        raise UserError(
            f"model: Expected the network whose weights {path} holds, found another: {error}. Give that network, or "
            "another folder."
        ) from error


def _changed_arguments(before: object, now: object) -> dict[str, str]:
    """Return the arguments of `private` in which two runs' files differ, each with both values as a text."""
    changed = {}
    for change in differences(before, json.loads(json.dumps(now))):
        keys = [step for step in change.path if isinstance(step, str)]
        # An optimiser and a task are arguments as a whole.
        key = next((step for step in keys if step in ("recipe", "task")), keys[-1])
        changed[ARGUMENTS.get(key, key)] = "{}, found {}".format(*change.texts)
    return changed


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a run on patients who were held out.

    Attributes
    ----------
    content
        The metrics by name, with their intervals.
    trained
        Whether the network was trained. If not, the metrics are those of its starting weights.
    """

    content: Mapping[str, Any]
    trained: bool = True

    @property
    def value(self) -> float:
        """The metric that the task reports first."""
        return float(self.content[self.content["metric"]])

    def __str__(self) -> str:
        name, patients = self.content["metric"], self.content["patients"]
        interval = self.content.get(f"{name}_interval") or {}
        ends = interval.get("low"), interval.get("high")  # none for a single patient
        shown = "" if None in ends else f" ({ends[0]:.3g} to {ends[1]:.3g})"
        before = "" if self.trained else "Before training: "
        return f"{before}{name} {self.value:.3g}{shown} on {patients} held-out patients, who have no guarantee."

    __repr__ = __str__


def load(path: Path | str, model: nn.Module) -> nn.Module:
    """Return a copy of a network with the weights that `PrivateRun.save` wrote, in evaluation mode.

    Raises
    ------
    UserError
        If the file is absent or damaged, or belongs to another network.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model: Expected a torch.nn.Module, found {type(model).__name__}.")
    found = copy.deepcopy(model)
    _take_weights(found, checked_path(path, "path"))
    return found.eval().requires_grad_(requires_grad=False)
