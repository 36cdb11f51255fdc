"""One call that trains a network privately on people's records, and what may be said of it afterwards."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor, nn

from zetadp.base.epsilon import CONSENT, rounded_up
from zetadp.base.storage import make_folder, read_json, write_json, write_text, writing, written_whole
from zetadp.base.tensors import load_tensors, save_tensors, tensors_digest
from zetadp.base.validation import UserError, checked_name
from zetadp.core.evaluation import predict
from zetadp.core.optimisers import Recipe
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.promise import noise_of_plan, promise_of
from zetadp.core.records import Records as Items
from zetadp.core.settings import MOST_ROUNDS, OptimiserSettings, Performance, TrainingSettings
from zetadp.core.task import Task
from zetadp.core.training import Holding, TrainingData, TrainingFiles, train
from zetadp.front.figures import Statement
from zetadp.front.losses import check_model, shares_of_noise, task_for
from zetadp.front.records import Records, id_text, joined
from zetadp.nn.settings import NetworkSettings
from zetadp.privacy.book import Book, note_people, read_ledgers
from zetadp.privacy.budget import Cap
from zetadp.privacy.exposure import declared_run, total
from zetadp.privacy.secret import Secret
from zetadp.privacy.statement import last_statement
from zetadp.privacy.verification import RUN, SEAL, SEALED, seal

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from zetadp.front.losses import Loss

logger = logging.getLogger(__name__)

HERE = "here"
"""Name of the only holder, where hospitals are not named."""
CLIP, RATE = 0.1, 0.03
"""Default clip, and learning rate of the default optimiser, NAdam: the best of 24 settings on three kinds of data
(docs/results/benchmarks/defaults.csv)."""


def private(
    model: nn.Module,
    records: Records | None = None,
    *,
    folder: Path | str,
    epsilon: float,
    delta: float,
    population: int | Mapping[str, int],
    per_round: float,
    rounds: int,
    items_per_patient: int = 1,
    clip: float = CLIP,
    optimiser: Optimizer | None = None,
    scheduler: LRScheduler | None = None,
    loss: Loss | None = None,
    task: Task | None = None,
    hospitals: Mapping[str, Records] | None = None,
    seed: int | None = None,
    register: Path | str | None = None,
    most_epsilon: float | None = None,
    stop: Callable[[pd.DataFrame], bool] | None = None,
    without_noise: str = "",
    device: str = "auto",
) -> Run:
    """Prepare the private training of a network; nothing is released yet.

    The guarantee is for one patient with all items, against someone who sees every model of every round and knows the
    data of everybody else. ``population``, ``per_round``, ``rounds``, ``items_per_patient`` and ``clip`` are public
    constants that you declare. They are never counted from the data; data that do not match are refused.

    Parameters
    ----------
    model
        A PyTorch network, which is never changed. It takes items of shape (item, ...). Items must not influence each
        other: no batch normalisation. Its weights are the starting weights, which must be public.
    records
        The patients' records. None where ``hospitals`` has them.
    folder
        Folder of the run: ledger, checkpoint, model, plan. It is the run's identity: the same call again continues, or
        returns the finished model; another call in the same folder is refused.
    epsilon, delta
        What the run may cost each patient. ``delta`` is at most 1 / population. An infinite epsilon clips and adds no
        noise; it needs ``seed`` or ``without_noise``.
    population
        Number of patients; with hospitals, of each.
    per_round
        Expected number of patients drawn in a round, from all hospitals together. Each is drawn by itself, so the
        number varies. All of them if it equals the population.
    rounds
        Number of rounds, each with one step of the optimiser. The guarantee is for all of them.
    items_per_patient
        Items that make a patient's gradient in a round, which is their mean. Of more, as many are chosen anew each
        round; of fewer, all are taken.
    clip
        Largest norm of one patient's gradient, B. Noise grows with it, and a smaller one shortens more gradients. With
        the default optimiser, which does not see the scale of gradients, 0.1 does well.
    optimiser, scheduler
        Any of `torch.optim` but LBFGS, made for ``model``'s parameters, and any scheduler that plain numbers describe.
        They see released gradients only. By default NAdam with a rate of 0.03.
    loss
        Function of outputs and labels that returns a loss for each item. By default cross-entropy of class scores.
    task
        An object with losses and metrics of its own (`zetadp.core.task.Task`), in place of ``loss``.
    hospitals
        Records by the names of their hospitals, in place of ``records``. Each adds its own noise.
    seed
        Asks for a simulation, which can be repeated and protects nobody. Without it, noise comes from the operating
        system.
    register
        Folder of the patients' account: the ledgers of all runs on them. By default ``ledgers`` next to ``folder``, so
        that all runs under one folder count together. For real patients keep one, and back it up.
    most_epsilon
        Largest epsilon of all runs in the account together. A run that would exceed it is refused.
    stop
        Rule that ends training early: a function of the run's history so far (`Run.history`), which holds released
        quantities only. It costs no privacy and saves none: the statement is for all declared rounds.
    without_noise
        For an infinite epsilon on real patients: "I know that this protects nobody".
    device
        ``cpu``, ``cuda``, or ``auto``: a CUDA device where there is one.

    Returns
    -------
    The prepared run. Print ``run.promise`` before ``run.train()``.

    Raises
    ------
    UserError
        If anything does not fit; the message names the argument.
    """
    check_model(model)
    held = _held(records, hospitals)
    sizes = _sizes(population, held)
    everybody = sum(sizes.values())
    _check_constants(epsilon, delta, everybody, per_round, seed, without_noise)
    _check_numbers(rounds=rounds, items_per_patient=items_per_patient, clip=clip, seed=seed, most_epsilon=most_epsilon)
    most = max(max(map(len, own.places)) for own in held.values())
    if not 0 < items_per_patient <= most:
        raise UserError(
            f"items_per_patient: Expected between 1 and {most}, the most items of a patient, found {items_per_patient}."
        )
    together = joined([*held.values()])
    where = _device(device)
    own = copy.deepcopy(model).to(where)
    chosen = task_for(
        own, loss, task, together.inputs[torch.arange(min(2, len(together.inputs)))].to(where), together.targets
    )
    if stop is not None and not callable(stop):
        raise UserError(f"stop: Expected a function of the history, found {type(stop).__name__}.")
    if optimiser is None and scheduler is not None:
        raise UserError("scheduler: Expected the optimiser that it was made for, found none. Give optimiser= too.")
    given = torch.optim.NAdam(model.parameters(), lr=RATE) if optimiser is None else optimiser
    recipe = Recipe.of(model, given, scheduler).to_json()
    training = TrainingSettings(
        rounds=rounds,
        images_per_patient=items_per_patient,
        optimiser=OptimiserSettings(recipe=recipe),
        clip=clip,
        noise="os" if seed is None else "seeded",
    )
    nodes = tuple(NodeConstants(name, size, per_round * size / everybody) for name, size in sizes.items())
    if not str(folder).strip():
        raise UserError("folder: Expected a folder for the run, such as 'runs/mine', found an empty name.")
    folder = Path(folder)
    label = "inf" if epsilon == math.inf else f"{epsilon:g}".replace("+", "")
    name = RunName(checked_name(folder.resolve().name, "folder"), "private", label, seed or 0)
    plan = Plan(
        name, NetworkSettings("own"), training, nodes, delta=delta, task=_named(chosen), simulated=seed is not None
    )
    plan = plan.with_noise(noise_of_plan(plan))
    account = Path(register) if register is not None else folder.resolve().parent / "ledgers"
    run = Run(plan, folder, account, own, chosen, held, together, where, most_epsilon, stop)
    run._enter()
    return run


@dataclass(repr=False)
class Run:
    """A private training, before and after.

    Attributes
    ----------
    plan
        All public constants, with the noise. ``run.plan.write(path)`` writes what other hospitals would approve.
    folder
        Folder of the run.
    account
        Folder of the patients' account.
    model
        The network: with its starting weights before training, with the final ones afterwards.
    history
        One row a round: ``round`` and ``length``, the norm of the released gradient in units of the clip. Noise alone
        has the length that the promise prints.
    """

    plan: Plan
    folder: Path
    account: Path
    model: nn.Module
    task: Task = field(repr=False)
    _held: Mapping[str, Records] = field(repr=False)
    _joined: Items = field(repr=False)
    _device: torch.device = field(repr=False)
    _most: float | None = field(default=None, repr=False)
    _stop: Callable[[pd.DataFrame], bool] | None = field(default=None, repr=False)
    history: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)

    @property
    def state(self) -> str:
        """``new``, ``interrupted`` or ``finished``."""
        if (self.folder / "model.safetensors").exists():
            return "finished"
        return "interrupted" if self._files.checkpoint.exists() else "new"

    @property
    def ledger(self) -> Path:
        """The run's ledger, in the patients' account."""
        return self.account / f"{self.plan.run.network}.jsonl"

    @property
    def promise(self) -> Promise:
        """What the run costs each patient, alone and with all that was recorded before."""
        plan = self.plan
        costs = [promise_of(plan, node.name) for node in plan.nodes]
        others = Book.read(self.account).without(self.ledger)
        before = others.runs(about=self.ledger)
        now = declared_run(plan.run.network, plan.header())
        # By name, because a finished model requires no gradient.
        groups = (plan.training.optimiser.recipe or {})["groups"]
        trained = [self.model.get_parameter(name) for group in groups for name in group["parameters"]]
        dimension = sum(each.numel() * (2 if each.is_complex() else 1) for each in trained)
        worst = max(plan.nodes, key=lambda node: node.noise_multiplier / node.expected)
        noise = shares_of_noise(worst.noise_multiplier, worst.expected, dimension, plan.training.rounds)
        return Promise(
            epsilon=max(cost.epsilon for cost in costs),
            delta=plan.delta,
            together=total([*before, now], plan.delta) if before else None,
            runs_before=len(before),
            simulated=plan.training.noise == "seeded",
            noise=noise,
        )

    def train(self) -> Run:
        """Train, continue after an interruption, or return the finished model; say which of the three.

        Raises
        ------
        UserError
            If the ledger has lost lines, or the cost would exceed ``most_epsilon``. Nothing was released then.
        """
        name = self.plan.run.network
        if self.state == "finished":
            self._load_finished()
            if not (self.folder / SEAL).exists():  # it ended between model and seal
                self._seal()
            _say(f"{name}: finished before; this is the stored model, and nothing more was released.")
            return self
        if self.state == "interrupted":
            _say(f"{name}: continues where it was interrupted; what was released is not released again.")
        else:
            _say(f"{name}: starts. {self.promise}")
        data = TrainingData(self._joined, self._holdings())
        network = copy.deepcopy(self.model)
        self.history = self._history()
        how = Performance(evaluate_every=self.plan.training.rounds)
        result = train(
            self.plan, data, self._files, model=network, task=self.task, performance=how, after_round=self._after
        )
        self.model = result.model.requires_grad_(requires_grad=False)
        content = {"ledger_head": result.ledger_head, "plan": self.plan.to_json(), "statement": self.statement.text}
        save_tensors(self.folder / "model.safetensors", self._weights(), content)
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
        attempts = read_ledgers([self.ledger])[self.ledger] if self.ledger.exists() else []
        if not attempts:
            raise UserError(f"statement: Expected a run that has begun, found no ledger {self.ledger}. Call train().")
        return Statement(last_statement(attempts, self.plan.run.network))

    def evaluate(self, records: Records) -> Evaluation:
        """Return the metric on other patients, with an interval over patients.

        Parameters
        ----------
        records
            Records of patients whom the network was not trained on. They have no guarantee: whoever sees the result
            learns something about them.
        """
        trained = {one for own in self._held.values() for one in own.ids}
        both = [one for one in records.ids if one in trained]
        if both:
            raise UserError(f"evaluate: Expected other patients than those of the training, found {both[0]!r} in both.")
        items = joined([records])
        table = pd.DataFrame({"patient": [f"{records.ids[code]}" for code in records.owner]})
        table["item"] = range(len(table))
        model = copy.deepcopy(self.model).eval()  # training may follow, in the mode that the user chose
        return Evaluation(self.task.summarise(predict(self.task, model, items.to(self._device), table)))

    def save(self, path: Path | str) -> None:
        """Write the weights with plan and statement; `zetadp.load` reads them."""
        content = {"plan": self.plan.to_json(), "statement": self.statement.text}
        save_tensors(Path(path), self._weights(), content)

    def __repr__(self) -> str:
        return f"Run {self.plan.run.network}\n{self._table().to_string(header=False)}"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks."""
        return self._table().to_html(header=False)

    def _table(self) -> pd.DataFrame:
        promise = self.promise
        rows = {
            "state": self.state,
            "cost of each patient": f"epsilon {_shown(promise.epsilon)} at delta {promise.delta:g}",
            "noise": "seeded: a simulation, protects nobody" if promise.simulated else "of the operating system",
            "rounds": self.plan.training.rounds,
            "patients": ", ".join(
                f"{node.population}" if node.name == HERE else f"{node.name} {node.population}"
                for node in self.plan.nodes
            ),
            "folder": self.folder,
        }
        return pd.Series(rows).to_frame("run")

    @property
    def _files(self) -> TrainingFiles:
        cap = None if self._most is None else Cap(self._most, self.plan.delta)
        return TrainingFiles(self.ledger, self.folder / "checkpoint", cap=cap)

    def _tags(self) -> set[str]:
        """Return keyed hashes of the patients' ids, which reveal nothing without the account's secret."""
        secret = Secret.of(self.account)
        return {secret.tag(id_text(one)) for own in self._held.values() for one in own.ids}

    def _holdings(self) -> list[Holding]:
        """Return each holder's units, as positions in the joined records."""
        found, first = [], 0
        for own in self._held.values():
            found.append(Holding([[first + place for place in places] for places in own.places]))
            first += len(own)
        return found

    def _enter(self) -> None:
        """Take over the folder: keep its starting weights and refuse another run; write both where it is new."""
        start, identity = self.folder / "start.safetensors", self.folder / RUN
        now = {
            "plan": self.plan.to_json(),
            "ledger": os.path.relpath(self.ledger.resolve(), self.folder.resolve()),
            "records": Secret.of(self.account).tag("".join(own.digest for own in self._held.values())),
        }
        if identity.exists():
            for key, before, found in _differences(read_json(identity), now):
                raise UserError(
                    f"folder: Expected the run that {self.folder} holds, with {key} {before}, found {found}. Give this "
                    "run another folder, or repeat the first call."
                )
            tensors, _ = load_tensors(start, self._device)
            try:
                self.model.load_state_dict(tensors)
            except RuntimeError as error:
                raise UserError(
                    f"model: Expected the network that {self.folder} holds, found another: {error}."
                ) from error
            if self.state == "finished":
                self._load_finished()
            return
        make_folder(self.folder)
        if self.ledger.exists():
            raise UserError(
                f"folder: Expected a name that the account {self.account} does not hold, found {self.ledger.stem}. "
                "What was released stays released. Give the run another folder, or restore this one."
            )
        tensors = self._weights()
        save_tensors(start, tensors, {"weights": tensors_digest(tensors)})
        self.plan.write(self.folder / "plan.json")
        note_people(self.ledger, self._tags())
        write_json(identity, now)

    def _seal(self) -> None:
        """Write the statement and a copy of the ledger, seal the folder for `zetadp verify`, and tidy up."""
        statement, folder = self.statement, self.folder
        with written_whole(folder / "ledger.jsonl") as temporary:
            shutil.copyfile(self.ledger, temporary)
        write_json(folder / "privacy.json", statement.content)
        write_text(folder / "privacy.txt", statement.text)
        seal(folder / SEAL, [folder / name for name in sorted(SEALED)])
        self._files.finish()

    def _weights(self) -> dict[str, Tensor]:
        """Return weights and buffers of the network, in the processor's memory."""
        return {name: value.detach().cpu() for name, value in self.model.state_dict().items()}

    def _load_finished(self) -> None:
        tensors, _ = load_tensors(self.folder / "model.safetensors", self._device)
        self.model.load_state_dict(tensors)
        self.model.requires_grad_(requires_grad=False)
        self.history = self._history()

    def _history(self) -> pd.DataFrame:
        """Return the stored history of the rounds that were done."""
        path = self.folder / "history.csv"
        if not path.exists():
            return pd.DataFrame({"round": pd.Series(dtype=int), "length": pd.Series(dtype=float)})
        return pd.read_csv(path)

    def _after(self, done: int, messages: Tensor) -> bool:
        """Add a round to the history; say how far training is, and return whether it ends here."""
        length = float(messages.mean(dim=0).norm()) / self.plan.training.clip
        # Rounds after a checkpoint are repeated after an interruption, with the same releases.
        before = self.history[self.history["round"] < done]
        row = pd.DataFrame({"round": [done], "length": [length]})
        repeated, self.history = len(before) < len(self.history), pd.concat([before, row], ignore_index=True)
        path = self.folder / "history.csv"
        with writing(path):
            if repeated or not path.exists():
                self.history.to_csv(path, index=False)
            else:
                row.to_csv(path, mode="a", header=False, index=False)
        rounds = self.plan.training.rounds
        ends = done < rounds and self._stop is not None and bool(self._stop(self.history))
        if ends or done == rounds or (20 * done) // rounds > (20 * (done - 1)) // rounds:
            last = ends or done == rounds
            _say(f"{self.plan.run.network}: round {done} of {rounds}", end="\n" if last else "\r")
        if ends:
            _say(f"{self.plan.run.network}: ends early by its rule; the statement is for all {rounds} declared rounds.")
        return ends


@dataclass(frozen=True)
class Promise:
    """What a run costs each patient, before anything is released.

    Attributes
    ----------
    epsilon, delta
        Cost of this run alone.
    together, runs_before
        Cost with the runs recorded before on any of these patients, and their number; None without any.
    simulated
        Whether the noise is seeded and protects nobody.
    noise
        Length of the noise in the mean gradient of a round, whose own length is at most the clip, in units of the clip;
        and in the mean over all rounds.
    """

    epsilon: float
    delta: float
    together: float | None
    runs_before: int
    simulated: bool
    noise: tuple[float, float]

    def __str__(self) -> str:
        if self.epsilon == math.inf:
            text = "No guarantee: this run adds no noise."
        else:
            text = f"This run costs each patient epsilon {_shown(self.epsilon)} at delta {self.delta:g}"
            text += (
                "."
                if self.together is None
                else (
                    f"; with {self.runs_before} earlier run(s) on the same patients, epsilon {_shown(self.together)}."
                )
            )
            text += (
                " The mean gradient of a round has at most length 1 in units of the clip, its noise "
                f"{self.noise[0]:.2g}; over all rounds {self.noise[1]:.2g}."
            )
        return f"Simulated: the noise is seeded and protects nobody. {text}" if self.simulated else text

    __repr__ = __str__


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
        shown = f" ({interval['low']:.3g} to {interval['high']:.3g})" if {"low", "high"} <= interval.keys() else ""
        return f"{name} {self.value:.3g}{shown} on {patients} held-out patients, who have no guarantee."

    __repr__ = __str__


def load(path: Path | str, model: nn.Module) -> nn.Module:
    """Return a copy of a network with the weights that `Run.save` wrote, in evaluation mode.

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


def _held(records: Records | None, hospitals: Mapping[str, Records] | None) -> dict[str, Records]:
    """Return the records of every holder by its name."""
    if (records is None) == (hospitals is None):
        raise UserError("records: Expected records, or hospitals with theirs, found both or neither.")
    if hospitals is not None and not isinstance(hospitals, Mapping):
        raise UserError(
            "hospitals: Expected a dict of records by the hospitals' names, such as {'north': records}, found "
            f"{type(hospitals).__name__}."
        )
    held = {HERE: records} if records is not None else dict(hospitals or {})
    whose: dict[object, str] = {}
    for name, own in held.items():
        checked_name(name, "hospitals")
        if not isinstance(own, Records):
            raise UserError(
                f"records: Expected zetadp.Records, found {type(own).__name__}. Make them first: "
                "zetadp.Records(items, labels, patients=ids)."
            )
        for one in own.ids:
            other = whose.setdefault(one, name)
            if other != name:
                raise UserError(
                    f"hospitals: Expected each patient at one hospital, found {one!r} at {other} and {name}. If these "
                    "are two persons, give them two ids; if one, leave the records out at one hospital."
                )
    return held


def _sizes(population: int | Mapping[str, int], held: Mapping[str, Records]) -> dict[str, int]:
    """Return the declared number of patients of every holder; refuse data that do not match."""
    sizes = dict(population) if isinstance(population, Mapping) else {HERE: population}
    for size in sizes.values():
        if not isinstance(size, Integral):
            raise UserError(f"population: Expected a whole number of patients, found {size!r}.")
    if set(sizes) != set(held):
        raise UserError(
            f"population: Expected a number for each of {', '.join(held)}, found {', '.join(sizes)}. With hospitals, "
            "population is a dict."
        )
    for name, own in held.items():
        if sizes[name] != own.units:
            place = "" if name == HERE else f" at {name}"
            raise UserError(
                f"population: Expected {sizes[name]} patients{place}, as declared, found {own.units}. Declare the "
                "number of patients that are handed over; it is a public constant."
            )
    return {name: sizes[name] for name in held}


def _check_numbers(
    rounds: int, items_per_patient: int, clip: float, seed: int | None, most_epsilon: float | None
) -> None:
    """Refuse public constants that are no numbers of their kind, by the argument's name."""
    for name, value, least in (("rounds", rounds, 1), ("items_per_patient", items_per_patient, 1), ("seed", seed, 0)):
        most = MOST_ROUNDS if name == "rounds" else 2**63
        if value is not None and not (isinstance(value, Integral) and least <= value <= most):
            raise UserError(f"{name}: Expected a whole number from {least} to {most}, found {value!r}.")
    for name, number in (("clip", clip), ("most_epsilon", most_epsilon)):
        if number is not None and not (isinstance(number, Real) and 1e-9 <= number <= 1e9):
            raise UserError(f"{name}: Expected a number from 1e-9 to 1e9, found {number!r}.")


def _device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` takes a CUDA device where there is one."""
    try:
        return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError as error:
        raise UserError(f"device: Expected 'auto', 'cpu' or 'cuda', found {name!r}.") from error


def _check_constants(
    epsilon: float, delta: float, population: int, per_round: float, seed: int | None, without_noise: str
) -> None:
    """Refuse public constants that cannot be kept or would say nothing."""
    for name, value in (("epsilon", epsilon), ("delta", delta), ("per_round", per_round)):
        if not isinstance(value, Real):
            raise UserError(f"{name}: Expected a number, found {value!r}.")
    if not 1e-10 <= delta <= 1 / population:
        raise UserError(
            f"delta: Expected at least 1e-10 and at most 1 / population, {1 / population:.2g}, found {delta:g}."
        )
    if not 0 < per_round <= population:
        raise UserError(f"per_round: Expected more than 0 and at most {population} patients, found {per_round:g}.")
    if not epsilon > 0:
        raise UserError(f"epsilon: Expected a positive number, found {epsilon}.")
    if epsilon == math.inf and seed is None and without_noise != CONSENT:
        raise UserError(
            f"epsilon: Expected a finite number, found inf, which protects nobody. Give seed= for a simulation, or "
            f"without_noise='{CONSENT}'."
        )


def _named(task: Task) -> dict[str, Any]:
    """Return the description of a task in a plan."""
    classes = getattr(task, "classes", None)
    if type(task).__module__ == "zetadp.core.task" and classes is not None:
        return {"name": "classification", "classes": classes}
    loss = getattr(task, "loss", task)
    return {"name": "own", "loss": getattr(loss, "__qualname__", type(loss).__qualname__)}


NAMES = {
    "images_per_patient": "items_per_patient",
    "learning_rate": "optimiser",
    "recipe": "optimiser",
    "ledger": "register",
    "nodes": "population, per_round or epsilon",
}


def _differences(before: Any, now: Any, key: str = "") -> Any:  # noqa: ANN401  (JSON values)
    """Yield the keys in which two JSON objects differ, with both values, in the words of `private`."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*before, *now]):
            yield from _differences(before.get(name), now.get(name), name if key != "recipe" else key)
    elif json.dumps(before) != json.dumps(now):
        yield NAMES.get(key, key), json.dumps(before)[:60], json.dumps(now)[:60]


def _shown(epsilon: float) -> str:
    return "infinity" if epsilon == math.inf else rounded_up(epsilon)


def _say(text: str, end: str = "\n") -> None:
    """Tell the user at the screen how far a run is."""
    sys.stderr.write(f"{text}{end}")
    sys.stderr.flush()
