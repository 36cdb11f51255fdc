"""A private training, before and after, and what it leaves."""

from __future__ import annotations

import copy
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

from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.base.validation import UserError
from zetadp.core.evaluation import outputs_of
from zetadp.core.plan import Plan
from zetadp.core.settings import Performance
from zetadp.core.task import Classification, Task
from zetadp.core.training import train
from zetadp.front.folder import RunFolder, weights_of
from zetadp.front.promises import RunPromise, Statement
from zetadp.front.records import HERE, Records


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


@dataclass(repr=False)
class PrivateRun:
    """A private training, before and after. `zetadp.private` makes it.

    Attributes
    ----------
    plan
        All public constants, with the noise. ``run.plan.write(path)`` writes what other hospitals would approve.
    model
        The network: with its starting weights before training, with the final ones afterwards.
    task
        Losses and metrics.
    history
        One row a round: ``round`` and ``length``, the norm of the released gradient in units of the clip. Noise alone
        has the length that the promise prints.
    """

    plan: Plan
    model: nn.Module
    task: Task
    _place: RunFolder
    _records: Records
    _device: torch.device
    _most: float | None = None
    _stop: Callable[[pd.DataFrame], bool] | None = None
    history: pd.DataFrame = field(init=False)
    _asked: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Load what the folder has."""
        self.history = self._place.history()
        if self.state == "finished":
            self._load_finished()

    @property
    def state(self) -> str:
        """``new``, ``interrupted`` or ``finished``."""
        return self._place.state

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self._place.path

    @property
    def account(self) -> Path:
        """Folder of the patients' account."""
        return self._place.account

    @property
    def ledger(self) -> Path:
        """The run's ledger, in the patients' account."""
        return self._place.ledger

    @property
    def promise(self) -> RunPromise:
        """What the run costs each patient, alone and with all that was recorded before."""
        return RunPromise.of(self.plan, self.model, self._place.ledger)

    def train(self) -> PrivateRun:
        """Train, continue after an interruption, or return the finished model; say which of the three.

        Raises
        ------
        UserError
            If the ledger has lost lines, or the cost would exceed ``most_epsilon``. Nothing was released then.
        """
        if self.state == "finished":
            self._load_finished()
            self._place.seal()  # where it ended between model and seal
            self._say("finished before; this is the stored model, and nothing more was released.")
            return self
        if self.state == "interrupted":
            self._say("continues where it was interrupted; what was released is not released again.")
        else:
            self._say(f"starts. {self.promise}")
        self.history = self._place.history()
        with between_rounds() as self._asked:
            result = train(
                self.plan,
                self._records.items.to(self._device),
                self._records.nodes,
                self._place.files(self.plan, self._most),
                model=copy.deepcopy(self.model),
                task=self.task,
                performance=Performance(
                    evaluate_every=self.plan.training.rounds,
                    compile="auto" if self.plan.training.noise == "os" else "never",  # a simulation repeats its bits
                ),
                after_round=self._after,
            )
        self.model = result.model.requires_grad_(requires_grad=False)
        self._place.finish(self.model, self.plan, result.ledger_head)
        return self

    @property
    def statement(self) -> Statement:
        """What may be said of the run, from its ledger alone.

        Raises
        ------
        UserError
            If nothing was recorded yet.
        """
        return self._place.statement

    def evaluate(self, records: Records) -> Evaluation:
        """Return the metric on other patients, with an interval over patients.

        Parameters
        ----------
        records
            Records of patients whom the network was not trained on. They have no guarantee: whoever sees the result
            learns something about them.
        """
        if not isinstance(records, Records):
            raise UserError(f"evaluate: Expected zetadp.Records of held-out patients, found {type(records).__name__}.")
        trained = set(self._records.ids)
        both = [one for one in records.ids if one in trained]
        if both:
            raise UserError(f"evaluate: Expected other patients than those of the training, found {both[0]!r} in both.")
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
        columns = self.task.measure(outputs_of(model, held_out.inputs), held_out.targets)
        return Evaluation(self.task.summarise(table.assign(**columns)))

    def save(self, path: Path | str) -> None:
        """Write the weights with plan and statement; `zetadp.load` reads them."""
        content = {"plan": self.plan.to_json(), "statement": self.statement.text}
        save_tensors(Path(path), weights_of(self.model), content)

    def __repr__(self) -> str:
        return f"Run {self._place.name}\n{self._table().to_string(header=False)}"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks."""
        return self._table().to_html(header=False)

    def _table(self) -> pd.DataFrame:
        promise, nodes = self.promise, self.plan.nodes
        rows = {
            "state": self.state,
            "cost of each patient": promise.cost,
            "noise": "seeded: a simulation, protects nobody" if promise.simulated else "of the operating system",
            "rounds": self.plan.training.rounds,
            "patients": ", ".join(f"{node.name} {node.population}".removeprefix(f"{HERE} ") for node in nodes),
            "folder": self.folder,
        }
        return pd.Series(rows).to_frame("run")

    def _load_finished(self) -> None:
        self._place.load(self.model, self._place.model)
        self.model.requires_grad_(requires_grad=False)
        self.history = self._place.history()

    def _after(self, done: int, messages: Tensor) -> bool:
        """Add a round to the history; say how far training is, and return whether it ends here."""
        length = float(messages.mean(dim=0).norm()) / self.plan.training.clip
        self.history = self._place.add(self.history, done, length)
        if self._asked:
            raise KeyboardInterrupt
        rounds = self.plan.training.rounds
        ends = done < rounds and self._stop is not None and bool(self._stop(self.history))
        last = ends or done == rounds
        if last or (20 * done) // rounds > (20 * (done - 1)) // rounds:
            self._say(f"round {done} of {rounds}", end="\n" if last else "\r")
        if ends:
            self._say(f"ends early by its rule; the statement is for all {rounds} declared rounds.")
        return ends

    def _say(self, text: str, end: str = "\n") -> None:
        """Tell the user at the screen how far the run is."""
        sys.stderr.write(f"{self._place.name}: {text}{end}")
        sys.stderr.flush()


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a run on patients who were held out."""

    content: Mapping[str, Any]

    @property
    def value(self) -> float:
        """The metric that the task reports first."""
        return float(self.content[self.content["metric"]])

    def __str__(self) -> str:
        name, patients = self.content["metric"], self.content["patients"]
        interval = self.content.get(f"{name}_interval") or {}
        ends = interval.get("low"), interval.get("high")  # none for a single patient
        shown = "" if None in ends else f" ({ends[0]:.3g} to {ends[1]:.3g})"
        return f"{name} {self.value:.3g}{shown} on {patients} held-out patients, who have no guarantee."

    __repr__ = __str__


def load(path: Path | str, model: nn.Module) -> nn.Module:
    """Return a copy of a network with the weights that `PrivateRun.save` wrote, in evaluation mode.

    Raises
    ------
    UserError
        If the file is absent or damaged, or belongs to another network.
    """
    tensors, _ = load_tensors(Path(path))
    found = copy.deepcopy(model)
    try:
        found.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"model: Expected the network whose weights {path} holds, found another: {error}.") from error
    return found.eval().requires_grad_(requires_grad=False)
