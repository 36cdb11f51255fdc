"""One call that prepares the private training of a network on people's records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import nn

from zetadp.accounting.threat import NoiseSource
from zetadp.base.calls import checked_calls
from zetadp.base.epsilon import CONSENT, USELESS, Target, check_delta
from zetadp.base.names import checked_name
from zetadp.base.runfolder import RunName
from zetadp.base.tensors import pick_device
from zetadp.base.validation import RefusedValueError, UserError, Within, whole
from zetadp.nn.settings import NetworkSettings
from zetadp.own.folder import PrivateFolder
from zetadp.own.losses import described, task_for
from zetadp.own.promises import reals
from zetadp.own.records import HERE, Records
from zetadp.own.run import PrivateRun
from zetadp.training.assembly import Assembly
from zetadp.training.independence import checked_phase
from zetadp.training.networks import check_own, check_storable, uncompiled
from zetadp.training.optimisers import recipe_of
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.promise import make_plan
from zetadp.training.public import Public
from zetadp.training.settings import OptimiserSettings, TrainingSettings
from zetadp.training.stateless import copied
from zetadp.training.task import Task

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from zetadp.own.losses import Loss

RATE = 0.03
"""Learning rate of the default optimiser, NAdam: the best of 24 settings on three kinds of data
(docs/results/benchmarks/defaults.csv)."""


@checked_calls()
@dataclass(frozen=True)
class Options:
    """What a training may have beyond its records, constants and guarantee.

    Attributes
    ----------
    optimiser, scheduler
        Any of `torch.optim` but LBFGS, made for the network's parameters, and any scheduler made for it. The rates of
        all rounds are tabulated before the first; ReduceLROnPlateau sees the length of the released gradient. By
        default NAdam with a rate of 0.03.
    loss
        Function of outputs and labels that returns a loss for each item. By default cross-entropy of class scores.
    task
        An object with losses and metrics of its own (`zetadp.training.task.Task`), in place of ``loss``.
    stop
        Rule that ends training early: a function of the run's history so far (`PrivateRun.history`), which holds
        released quantities only. It costs no privacy and saves none: the statement is for all declared rounds.
    account
        Folder of the patients' account: the ledgers of all runs on them. By default ``ledgers`` next to the run's
        folder, so that all runs under one folder count together. For real patients keep one, and back it up.
    most_epsilon
        Largest epsilon of all runs in the account together. A run that would exceed it is refused. The limit is a
        promise if all runs have the same, from the first on.
    without_noise
        For an infinite epsilon on real patients: "I know that this protects nobody".
    device
        ``cpu``, ``cuda``, or ``auto``: a CUDA device where there is one. All records move there; those that are looked
        up in a dataset move pass by pass.

    Raises
    ------
    UserError
        If an option is not allowed; the message names it.
    """

    optimiser: Optimizer | None = None
    scheduler: LRScheduler | None = None
    loss: Loss | None = None
    task: Task | None = None
    stop: Callable[[pd.DataFrame], bool] | None = None
    account: Path | str | None = None
    most_epsilon: float | None = None
    without_noise: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        """Check what needs neither network nor records."""
        if self.stop is not None and not callable(self.stop):
            raise UserError(f"stop: Expected a function of the history, found {type(self.stop).__name__}.")
        if self.optimiser is None and self.scheduler is not None:
            raise UserError("scheduler: Expected the optimiser that it was made for, found none. Give optimiser= too.")
        if self.without_noise not in ("", CONSENT):
            raise UserError(f"without_noise: Expected {CONSENT!r}, or nothing, found {self.without_noise!r:.60}.")
        object.__setattr__(self, "most_epsilon", checked_limit(self.most_epsilon))


@checked_calls(public=Public, options=Options)
def private(
    model: nn.Module,
    records: Records | Mapping[str, Records],
    public: Public,
    *,
    epsilon: float,
    delta: float,
    folder: Path | str,
    seed: int | None = None,
    options: Options | None = None,
) -> PrivateRun:
    """Prepare the private training of a network; nothing is released yet.

    The guarantee is for one patient with all items, against someone who sees every model of every round and knows the
    data of everybody else.

    Parameters
    ----------
    model
        A PyTorch network, which is never changed or evaluated. It takes items of shape (item, ...), also a single one.
        Items must not influence each other (no batch normalisation), and it must not remember them: copies are compared
        on public random items. Its weights are the starting weights, which must be public. Of a compiled network, the
        one that `torch.compile` wraps is trained.
    records
        The patients' records. With several hospitals, a dict of the records of each by the hospital's name; each adds
        its own noise.
    public
        The public constants that you declare (`zetadp.Public`).
    epsilon, delta
        What the run may cost each patient. ``delta`` is at most 1 / population. An infinite epsilon clips and adds no
        noise; it needs ``seed`` or the option ``without_noise``.
    folder
        Folder of the run: ledger, checkpoint, model, plan. It is the run's identity: the same call again continues, or
        returns the finished model; another call in the same folder is refused.
    seed
        Asks for a simulation, which can be repeated and protects nobody. Without it, noise comes from the operating
        system.
    options
        Loss, optimiser, device, account and more (`zetadp.Options`). None takes the default of each.

    Returns
    -------
    The prepared run. Print ``run.promise`` before ``run.train()``.

    Raises
    ------
    UserError
        If anything does not fit; the message names the argument.
    """
    check_own(model)
    check_storable(model)
    if not isinstance(public, Public):
        raise UserError(
            f"public: Expected zetadp.Public, found {type(public).__name__}. Declare the constants first: "
            "zetadp.Public(population=..., per_round=..., rounds=...)."
        )
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise UserError(f"options: Expected zetadp.Options, found {type(options).__name__}.")
    records = records_of(records)
    check_population(records, public.population)
    target = target_of(epsilon, delta, public.people, seed, options.without_noise)
    most = max(map(len, records.places))
    if public.items_per_patient > most:
        raise UserError(
            f"items_per_patient: Expected between 1 and {most}, the most items of a patient, found "
            f"{public.items_per_patient}."
        )
    own_folder, where = PrivateFolder.of_arguments(folder, options.account), pick_device(options.device)
    network = uncompiled(copied(model)).to(where)
    chosen = task_for(network, options.loss, options.task, records.items.to(where))
    optimiser = torch.optim.NAdam(model.parameters(), lr=RATE) if options.optimiser is None else options.optimiser
    training = TrainingSettings(
        rounds=public.rounds,
        images_per_patient=public.items_per_patient,
        optimiser=OptimiserSettings(recipe=recipe_of(model, optimiser, options.scheduler, rounds=public.rounds)),
        clip=public.clip,
        noise=NoiseSource.OS if seed is None else NoiseSource.SEEDED,
    )
    sizes, people = records.holders, public.people
    plan = Plan(
        RunName(own_folder.name, "private", target, int(seed or 0)),
        NetworkSettings("own"),
        training,
        tuple(NodeConstants(name, size, public.per_round * size / people) for name, size in sizes.items()),
        delta=float(delta),
        task=described(chosen),
    )
    plan = make_plan(plan)
    if not own_folder.run.identity.exists():
        # Before the folder is made: what is refused leaves nothing behind.
        parts = Assembly.of(plan, records.items, model=copied(network), task=chosen)
        checked_phase(parts, records.items, records.places)
    return PrivateRun(plan, network, chosen, own_folder, records, where, options.most_epsilon, options.stop)


def records_of(records: object) -> Records:
    """Return the records of one holder, or of a dict of several, as one object."""
    several = isinstance(records, Mapping)
    parts: dict[str, Any] = dict(records) if isinstance(records, Mapping) else {HERE: records}
    if not parts:
        raise UserError("records: Expected the records of one hospital or more, found an empty dict.")
    for name, part in parts.items():
        checked_name(name, "records")
        if not isinstance(part, Records):
            raise UserError(
                f"records: Expected zetadp.Records, or a dict of them by the hospitals' names, found "
                f"{type(part).__name__}. Make them first: zetadp.Records(items, labels, patients=ids)."
            )
    return Records.of_hospitals(parts) if several else parts[HERE]  # those of one holder are not copied


def check_population(records: Records, population: int | Mapping[str, int]) -> None:
    """Refuse records that have another number of patients, at any holder, than was declared."""
    sizes = population if isinstance(population, Mapping) else {HERE: population}
    if set(sizes) != set(records.holders):
        expected = "a number" if HERE in records.holders else f"a dict with {', '.join(records.holders)}"
        raise UserError(f"population: Expected {expected}, as the records are given, found {population!s:.60}.")
    for name, units in records.holders.items():
        if sizes[name] != units:
            at = "" if name == HERE else f" at {name}"
            raise UserError(
                f"population: Expected {sizes[name]} patients{at}, as declared, found {units}. Declare the number "
                "of patients that are handed over; it is a public constant."
            )


def checked_limit(most_epsilon: Any) -> float | None:  # noqa: ANN401  (a user may give anything)
    """Return a limit on the epsilon of everything together; refuse what is not a number in range."""
    if most_epsilon is None:
        return None
    try:
        Within(ge=1e-9, le=1e9).check("most_epsilon", most_epsilon)
    except ValueError as error:
        raise UserError(f"most_epsilon: {error}") from error
    return float(most_epsilon)


def target_of(epsilon: float, delta: float, people: int, seed: int | None, without_noise: str = "") -> Target:
    """Return the target of a run. Refuse one that cannot be kept or would say nothing, and a seed that is not one."""
    epsilon, delta = reals(epsilon=epsilon, delta=delta)
    try:
        target = Target(epsilon)
        check_delta(delta, people)
    except (RefusedValueError, UserError) as error:
        raise UserError(f"{error.key}: {error}") from error
    if not (1 / USELESS <= epsilon <= USELESS or epsilon == math.inf):
        raise UserError(f"epsilon: Expected from {1 / USELESS:g} to {USELESS}, found {epsilon}. Common are 1, 3 and 8.")
    if seed is not None:
        try:
            whole(0, 2**63, seed=seed)
        except ValueError as error:
            raise UserError(f"seed: {error}") from error
    if epsilon == math.inf and seed is None and without_noise != CONSENT:
        raise UserError(
            f"epsilon: Expected a finite number, found inf, which protects nobody. Give seed= for a simulation, or "
            f"the option without_noise='{CONSENT}'."
        )
    return target
