"""One call that prepares the private training of a network on people's records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import nn

from zetadp.base.epsilon import CONSENT, USELESS
from zetadp.base.tensors import pick_device
from zetadp.base.validation import UserError, checked_name, in_range, whole
from zetadp.core.assembly import Assembly
from zetadp.core.independence import check_run
from zetadp.core.networks import check_own, check_storable, uncompiled
from zetadp.core.optimisers import recipe_of
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.promise import make_plan
from zetadp.core.settings import MOST_ROUNDS, OptimiserSettings, TrainingSettings
from zetadp.core.stateless import copied
from zetadp.core.task import Task
from zetadp.front.losses import described, task_for
from zetadp.front.promises import check_reals
from zetadp.front.records import HERE, Records
from zetadp.front.run import PrivateRun, run_places
from zetadp.nn.settings import NetworkSettings
from zetadp.privacy.threat import NoiseSource
from zetadp.privacy.verification import RUN

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from zetadp.front.losses import Loss

CLIP, RATE = 0.1, 0.03
"""Default clip, and learning rate of the default optimiser, NAdam: the best of 24 settings on three kinds of data
(docs/results/benchmarks/defaults.csv)."""
WHOLE = {
    "rounds": (1, MOST_ROUNDS),
    "items_per_patient": (1, 2**31),
    "classes": (2, 2**31),
    "rows": (1, 2**31),
    "seed": (0, 2**63),
}
"""Arguments that are whole numbers, with their range."""
OPTIONAL = ("seed", "most_epsilon", "rows", "degree")
"""Numbers that may be left out."""


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
    account: Path | str | None = None,
    most_epsilon: float | None = None,
    stop: Callable[[pd.DataFrame], bool] | None = None,
    without_noise: str = "",
    device: str = "auto",
) -> PrivateRun:
    """Prepare the private training of a network; nothing is released yet.

    The guarantee is for one patient with all items, against someone who sees every model of every round and knows the
    data of everybody else. ``population``, ``per_round``, ``rounds``, ``items_per_patient`` and ``clip`` are public
    constants that you declare. They are never counted from the data; data that do not match are refused.

    Parameters
    ----------
    model
        A PyTorch network, which is never changed or evaluated. It takes items of shape (item, ...), also a single one.
        Items must not influence each other (no batch normalisation), and it must not remember them: copies are compared
        on public random items. Its weights are the starting weights, which must be public. Of a compiled network, the
        one that `torch.compile` wraps is trained.
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
        Any of `torch.optim` but LBFGS, made for ``model``'s parameters, and any scheduler made for it. The rates of all
        rounds are tabulated before the first; ReduceLROnPlateau sees the length of the released gradient. By default
        NAdam with a rate of 0.03.
    loss
        Function of outputs and labels that returns a loss for each item. By default cross-entropy of class scores.
    task
        An object with losses and metrics of its own (`zetadp.core.task.Task`), in place of ``loss``.
    hospitals
        Records by the names of their hospitals, in place of ``records``. Each adds its own noise.
    seed
        Asks for a simulation, which can be repeated and protects nobody. Without it, noise comes from the operating
        system.
    account
        Folder of the patients' account: the ledgers of all runs on them. By default ``ledgers`` next to ``folder``, so
        that all runs under one folder count together. For real patients keep one, and back it up.
    most_epsilon
        Largest epsilon of all runs in the account together. A run that would exceed it is refused. The limit is a
        promise if all runs have the same, from the first on.
    stop
        Rule that ends training early: a function of the run's history so far (`PrivateRun.history`), which holds
        released quantities only. It costs no privacy and saves none: the statement is for all declared rounds.
    without_noise
        For an infinite epsilon on real patients: "I know that this protects nobody".
    device
        ``cpu``, ``cuda``, or ``auto``: a CUDA device where there is one. All records move there; those that are looked
        up in a dataset move pass by pass.

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
    records = records_of(records, hospitals)
    check_population(records, population)
    sizes, everybody = records.holders, records.units
    check_constants(epsilon, delta, everybody, per_round, seed, without_noise)
    check_numbers(rounds=rounds, items_per_patient=items_per_patient, clip=clip, seed=seed, most_epsilon=most_epsilon)
    most = max(map(len, records.places))
    if items_per_patient > most:
        raise UserError(
            f"items_per_patient: Expected between 1 and {most}, the most items of a patient, found {items_per_patient}."
        )
    if stop is not None and not callable(stop):
        raise UserError(f"stop: Expected a function of the history, found {type(stop).__name__}.")
    if optimiser is None and scheduler is not None:
        raise UserError("scheduler: Expected the optimiser that it was made for, found none. Give optimiser= too.")
    (place, ledgers), where = run_places(folder, account), pick_device(device)
    own = uncompiled(copied(model)).to(where)
    chosen = task_for(own, loss, task, records.items.to(where))
    given = torch.optim.NAdam(model.parameters(), lr=RATE) if optimiser is None else optimiser
    training = TrainingSettings(
        rounds=int(rounds),
        images_per_patient=int(items_per_patient),
        optimiser=OptimiserSettings(recipe=recipe_of(model, given, scheduler, rounds=int(rounds))),
        clip=float(clip),
        noise=NoiseSource.OS if seed is None else NoiseSource.SEEDED,
    )
    plan = Plan(
        RunName(place.resolve().name, "private", label_of(epsilon), int(seed or 0)),
        NetworkSettings("own"),
        training,
        tuple(NodeConstants(name, size, float(per_round) * size / everybody) for name, size in sizes.items()),
        delta=float(delta),
        task=described(chosen),
    )
    plan = make_plan(plan)
    if not (place / RUN).exists():
        # Before the folder is made: what is refused leaves nothing behind.
        phase = Assembly.of(plan, records.items, model=copied(own), task=chosen).phase
        check_run(phase, records.items, records.places, alone=plan.protects_people)
    return PrivateRun(plan, own, chosen, place, ledgers, records, where, most_epsilon, stop)


def records_of(records: object, hospitals: object) -> Records:
    """Return the records that the arguments ``records`` and ``hospitals`` of `private` name."""
    if (records is None) == (hospitals is None):
        raise UserError("records: Expected records, or hospitals with theirs, found both or neither.")
    if hospitals is not None and not (isinstance(hospitals, Mapping) and hospitals):
        raise UserError(
            "hospitals: Expected a dict of records by the hospitals' names, such as {'north': records}, found "
            f"{hospitals!r:.60}."
        )
    given: dict[str, Any] = dict(hospitals) if isinstance(hospitals, Mapping) else {HERE: records}
    for name, own in given.items():
        checked_name(name, "hospitals")
        if not isinstance(own, Records):
            raise UserError(
                f"records: Expected zetadp.Records, found {type(own).__name__}. Make them first: "
                "zetadp.Records(items, labels, patients=ids)."
            )
    return given[HERE] if hospitals is None else Records.of_hospitals(given)  # those of one holder are not copied


def check_population(records: Records, population: object) -> None:
    """Refuse records that have another number of patients, at any holder, than was declared."""
    sizes = population if isinstance(population, Mapping) else {HERE: population}
    if set(sizes) != set(records.holders):
        raise UserError(
            f"population: Expected a number or, with hospitals, a dict of one for each, found {population!r:.60}."
        )
    for name, units in records.holders.items():
        size = sizes[name]
        if not isinstance(size, Integral) or isinstance(size, bool):
            raise UserError(f"population: Expected a whole number of patients, found {size!r}.")
        if size != units:
            place = "" if name == HERE else f" at {name}"
            raise UserError(
                f"population: Expected {size} patients{place}, as declared, found {units}. Declare the number of "
                "patients that are handed over; it is a public constant."
            )


def check_numbers(**given: Any) -> None:  # noqa: ANN401  (a user may give anything)
    """Refuse public constants that are no numbers of their kind, by the argument's name."""
    for name, value in given.items():
        if value is None and name in OPTIONAL:
            continue
        try:
            if name in WHOLE:
                whole(*WHOLE[name], **{name: value})
            else:
                in_range(1e-9, 1e9, **{name: value})
        except ValueError as error:
            raise UserError(f"{name}: {error}") from error


def label_of(epsilon: float) -> str:
    """Return epsilon with six digits, never above its value."""
    label = f"{epsilon:g}"
    return label if float(label) <= epsilon else f"{epsilon * (1 - 1e-5):g}"


def check_constants(
    epsilon: float, delta: float, population: int, per_round: float, seed: int | None, without_noise: str
) -> None:
    """Refuse public constants that cannot be kept or would say nothing."""
    check_reals(epsilon=epsilon, delta=delta, per_round=per_round)
    if not 1e-10 <= delta <= 1 / population:
        raise UserError(
            f"delta: Expected at least 1e-10 and at most 1 / population, here 1 / {population}, found {delta:g}."
        )
    least = 1e-6 * population
    if not least <= per_round <= population:
        raise UserError(f"per_round: Expected from {least:g} to {population} patients, found {per_round:g}.")
    if not (1 / USELESS <= epsilon <= USELESS or epsilon == math.inf):
        raise UserError(f"epsilon: Expected from {1 / USELESS:g} to {USELESS}, found {epsilon}. Common are 1, 3 and 8.")
    if epsilon == math.inf and seed is None and without_noise != CONSENT:
        raise UserError(
            f"epsilon: Expected a finite number, found inf, which protects nobody. Give seed= for a simulation, or "
            f"without_noise='{CONSENT}'."
        )
