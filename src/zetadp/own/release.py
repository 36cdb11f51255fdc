"""Release features of people as noisy rows, on which anybody may train: plan, noise, ledger, statement and file."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from zetadp.account.attempts import read_ledger
from zetadp.account.book import note_people
from zetadp.account.budget import Cap
from zetadp.account.ledger import check_ledger_name
from zetadp.account.statement import Statement, last_statement
from zetadp.accounting.threat import CENTRAL_HOLDER, NoiseSource
from zetadp.base.calls import checked_calls
from zetadp.base.names import checked_path
from zetadp.base.runfolder import RunName
from zetadp.base.storage import check_writable, private_files
from zetadp.base.validation import RefusedValueError, UserError, Within, check_fields
from zetadp.nn.settings import MIXED_ROWS, NetworkSettings
from zetadp.own.folder import PrivateFolder
from zetadp.own.private import check_population, checked_limit, records_of, target_of
from zetadp.own.promises import spent_with, with_earlier
from zetadp.own.records import Records
from zetadp.own.rows import check_name, mixed_as, usual_rows, write_release
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.promise import make_plan
from zetadp.training.records import LabelledItems
from zetadp.training.settings import MixingSettings, TrainingSettings
from zetadp.training.task import Classification


@checked_calls()
@dataclass(frozen=True)
class Mixing:
    """The public constants of a release of rows. You declare them; they are never counted from the data.

    They are part of the guarantee: choose them without looking at the data. An object of this class is valid, or it
    cannot be made.

    Attributes
    ----------
    population
        Number of people. Each has one row of features.
    classes
        Number of classes.
    rows
        Number of rows to release. None releases as many rows as there are people.
    degree
        Expected number of people in a row. None chooses it by a theorem (`zetadp.own.rows`).
    active
        Share of the rows that are open to each class (`zetadp.training.settings.MixingSettings`). Below 1, labels
        assume the declared shares of the classes.
    norm
        Norm to which features are clipped.
    shares
        Declared share of each class among the people, which add up to 1. None assumes classes of equal size; with
        others, labels are then wrong. Only for ``active`` below 1.

    Raises
    ------
    UserError
        If a value is not allowed, or the values contradict each other; the message names one.
    """

    population: Annotated[int, Within(ge=1, le=10**9)]
    classes: Annotated[int, Within(ge=2, le=2**31)]
    rows: Annotated[int, Within(ge=1, le=2**31)] | None = None
    degree: Annotated[float, Within(ge=1e-9, le=1e9)] | None = None
    active: float = 1.0
    norm: Annotated[float, Within(ge=1e-9, le=1e9)] = 1.0
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check every value, and that values agree with each other."""
        if self.shares is not None:
            object.__setattr__(self, "shares", _numbers(self.shares))
        with _by_argument():
            check_fields(self)
            self.settings()

    def settings(self, *, real: bool = False) -> MixingSettings:
        """Return the settings of a plan."""
        rows = self.rows or usual_rows([self.population], self.active)
        mixing = MixingSettings(int(rows), active=float(self.active), real=real, learn=False, shares=self.shares)
        mixing.shares_of(int(self.classes))
        return mixing


def release_plan(epsilon: float, delta: float, public: Mixing, *, seed: int | None = None, real: bool = False) -> Plan:
    """Return the plan of a release of rows, with the noise that the guarantee needs.

    Parameters
    ----------
    epsilon, delta
        The guarantee for each person.
    public
        The public constants.
    seed
        Seed of a simulation, which protects nobody. None takes exact noise from the operating system's generator.
    real
        Whether features are real.

    Raises
    ------
    UserError
        If an argument is not allowed, the arguments contradict each other or the guarantee cannot be met. The message
        names the argument.
    """
    if epsilon == math.inf:
        raise UserError("epsilon: Expected a finite number, found inf: rows without noise are the people's features.")
    people = int(public.population)
    target = target_of(epsilon, delta, people, seed)
    with _by_argument():
        _, (degree,) = mixed_as(
            target.epsilon, float(delta), [people], rows=public.rows, degree=public.degree, active=public.active
        )
        training = TrainingSettings(
            1,
            images_per_patient=1,
            noise=NoiseSource.OS if seed is None else NoiseSource.SEEDED,
            estimator=MIXED_ROWS,
            feature_norm=float(public.norm),
            mixing=public.settings(real=real),
        )
        plan = Plan(
            RunName("release", CENTRAL_HOLDER, target, int(seed or 0)),
            NetworkSettings("head", "features"),
            training,
            (NodeConstants(CENTRAL_HOLDER, people, degree),),
            delta=float(delta),
            task={"name": "classification", "classes": int(public.classes)},
            threat="central",
        )
    return make_plan(plan)


@contextmanager
def _by_argument() -> Iterator[None]:
    """Begin the message of a wrong value with the name of its argument."""
    try:
        yield
    except (UserError, RefusedValueError) as error:
        argument = {"expected": "degree"}.get(error.key, error.key)
        raise UserError(f"{argument}: {error}" if argument else str(error)) from error


@checked_calls(public=Mixing)
def release(
    records: Records,
    public: Mixing,
    *,
    epsilon: float,
    delta: float,
    file: Path | str,
    seed: int | None = None,
    account: Path | str | None = None,
    most_epsilon: float | None = None,
) -> Statement:
    """Release features of people as rows that mix several of them and have noise; anybody may train on the rows.

    If a release was interrupted, call this function again: it continues with the rows that were already drawn. A
    finished release is not repeated unless its ledger permits it (``zetadp permit``). A file of another name is another
    release of the same people, and counts in addition to the first; ``most_epsilon`` limits both together.

    Parameters
    ----------
    records
        One item for each person: features, shape (component,), from a method that has seen none of these people; and a
        class, a whole number from 0.
    public
        The public constants that you declare (`zetadp.Mixing`).
    epsilon, delta
        What the release may cost each person.
    file
        HDF5 file to write. Its name, without the ending, is the release's name in the account.
    seed
        Asks for a simulation, as in `zetadp.private`.
    account, most_epsilon
        As in `zetadp.Options`. By default the account is ``ledgers`` next to ``file``.

    Returns
    -------
    What may be said of the release, which the file contains too.

    Raises
    ------
    UserError
        If anything does not fit; the message names the argument. Nothing is released then.
    """
    records = records_of(records)
    if not isinstance(public, Mixing):
        raise UserError(f"public: Expected zetadp.Mixing, found {type(public).__name__}.")
    check_population(records, public.population)
    limit = checked_limit(most_epsilon)
    plan = release_plan(epsilon, delta, public, seed=seed, real=not records.inputs.dtype.is_complex)
    file = checked_path(file, "file")
    ledger = PrivateFolder.of_arguments(file.parent / file.stem, account).ledger
    return release_records(records, plan, ledger=ledger, file=file, cap=limit, ids=records.texts)


def release_records(
    records: Records, plan: Plan, *, ledger: Path, file: Path, cap: float | None, ids: Iterable[str] = ()
) -> Statement:
    """Release records as `release` does, by a plan that `release_plan` made for them.

    Parameters
    ----------
    records, plan, file
        What is released, how, and where.
    ledger
        File that records the release before it is made.
    cap
        Largest epsilon that everything recorded in the ledger's folder may cost a person together. None sets no limit.
    ids
        The text of each person's id (`Records.texts`). Without them, all that the ledger's folder records counts.
    """
    check_ledger_name(ledger)
    check_name(file)
    data = _examples(records, plan)
    check_writable(file)
    with private_files():
        note_people(ledger, ids)
    limit = None if cap is None else Cap(cap, plan.delta)
    together, before = spent_with(plan, ledger, limit)
    earlier = "" if together is None else with_earlier(together, before)
    sys.stderr.write(f"{ledger.stem}: releases at epsilon {plan.target}, delta {plan.delta:g}{earlier}.\n")
    files = RunFiles(
        ledger,
        ledger.with_suffix(".checkpoint.safetensors"),
        once=plan.protects_people,
        cap=limit,
    )
    with private_files():
        trained = train(LocalHolders(plan, data, [records.places]), files)
    assert trained.released is not None  # a plan of rows releases some
    statement = last_statement(read_ledger(ledger), plan.label)
    write_release(file, trained.released, plan, data.inputs.shape[-1], statement)
    files.finish()
    return statement


def _numbers(shares: Sequence[float]) -> tuple[float, ...]:
    """Return shares as numbers of Python, which a plan's file can hold."""
    try:
        return tuple(map(float, shares))
    except (TypeError, ValueError) as error:
        raise UserError(f"shares: Expected one number for each class, found {shares!r:.60}.") from error


def _examples(records: Records, plan: Plan) -> LabelledItems:
    """Return records as the examples of a release; refuse those that do not match its plan."""
    features, labels = records.inputs, records.targets
    shape, people, classes = tuple(features.shape[1:]), plan.people, plan.task["classes"]
    if len(shape) != 1 or not shape[0] or not len(features) == records.units == people or labels.ndim != 1:
        raise UserError(
            f"records: Expected one item of shape (component,) and one label for each of {people} people, as declared, "
            f"found {len(features)} items of shape {shape} of {records.units} people. Take the mean of a person's "
            "features."
        )
    whole = labels.long()
    if (labels != whole).any():
        raise UserError(
            f"labels: Expected whole numbers from 0, found {labels[labels != whole][0].item()}. Number the classes."
        )
    with _by_argument():
        Classification(classes).check(whole)
    values = features if isinstance(features, Tensor) else features[torch.arange(people)]
    return LabelledItems(values.to(torch.complex64)[:, None, None], whole)
