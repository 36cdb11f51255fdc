"""What a run will cost each patient, epsilon and noise without a run, and what may be said of a ledger."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.account.book import Book
from zetadp.account.budget import Cap
from zetadp.account.exposure import declared_run
from zetadp.account.recorded import recorded_in
from zetadp.account.statement import Statement, total_statement
from zetadp.account.totals import Total
from zetadp.accounting import calibration, composition
from zetadp.accounting.events import MOST_RELEASES
from zetadp.accounting.kinds import NoisySum
from zetadp.base.calls import checked_calls
from zetadp.base.epsilon import SMALLEST_DELTA, rounded_up
from zetadp.base.names import checked_path
from zetadp.base.validation import UserError, counted, whole
from zetadp.training.plan import Plan
from zetadp.training.promise import Noise, promise_of

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class RunPromise:
    """What a run costs each patient, before anything is released.

    Attributes
    ----------
    epsilon, delta
        Cost of this run alone.
    together, runs_before
        Sum with the runs recorded before on any of these patients, and their number; None without any. It is not a
        promise: ``total`` has one.
    total
        What of that sum is a promise; None without earlier runs.
    limit
        The limit on the sum, if this run would exceed it; otherwise None.
    simulated
        Whether the noise is seeded and protects nobody.
    noise
        Length of the noise in the mean gradient of a round, and in the mean over all rounds.
    """

    epsilon: float
    delta: float
    together: float | None
    runs_before: int
    seeded: bool
    noise: Noise
    total: Total | None = None
    limit: float | None = None

    @classmethod
    def of(cls, plan: Plan, model: nn.Module, ledger: Path, cap: Cap | None = None) -> RunPromise:
        """Compute the promise of a plan for the patients of the account that holds its ledger.

        Parameters
        ----------
        plan
            The plan, with its noise.
        model
            The network; only the number of its trained weights is used.
        ledger
            The run's ledger, in the patients' account with those of all earlier runs.
        cap
            The limit under which the run trains.
        """
        together, before = spent_with(plan, ledger, cap)
        epsilon = max(promise_of(plan, node.name).epsilon for node in plan.nodes)
        sum_of_runs = epsilon if together is None else together.spent
        return cls(
            epsilon=epsilon,
            delta=plan.delta,
            together=None if together is None else together.spent,
            runs_before=before,
            seeded=plan.training.seeded,
            noise=Noise.of(plan, _dimension(plan, model)),
            total=together,
            limit=None if cap is None or sum_of_runs <= cap.epsilon else cap.epsilon,
        )

    def __str__(self) -> str:
        if self.epsilon == math.inf:
            text = "No guarantee: this run adds no noise."
        else:
            text = f"This run costs each patient epsilon {rounded_up(self.epsilon)} at delta {self.delta:g}"
            if self.total is not None:
                text += with_earlier(self.total, self.runs_before)
            if self.limit is not None:
                text += f". This exceeds the limit most_epsilon, {self.limit:g}, so training is refused"
            text += f". {self.noise}"
        return f"Simulated: the noise is seeded and protects nobody. {text}" if self.seeded else text

    __repr__ = __str__


def spent_with(plan: Plan, ledger: Path, cap: Cap | None) -> tuple[Total | None, int]:
    """Return what a plan costs its patients with all that was recorded before, and the number of earlier runs.

    Parameters
    ----------
    plan
        The plan, with its noise.
    ledger
        Its ledger, in the patients' account. The list of patients next to it says which earlier runs count.
    cap
        The limit under which it runs.
    """
    before = Book.read(ledger.parent).without(ledger).runs(about=ledger)
    if not before:
        return None, 0
    declaration = plan.declaration() if cap is None else cap.noted(plan.declaration())
    return Total.of([*before, declared_run(ledger.stem, declaration)], plan.delta), len(before)


def with_earlier(together: Total, before: int) -> str:
    """Return the cost with other runs, as the end of a sentence, and what of it is a promise."""
    text = f"; with {counted(before, 'other run')} on the same patients, epsilon {rounded_up(together.spent)}"
    return ". ".join(filter(None, (text, together.simulation.rstrip("."), str(together).rstrip("."))))


def _dimension(plan: Plan, model: nn.Module) -> int:
    """Return the number of real components of the trained weights: those that the plan's optimiser names."""
    groups = (plan.training.optimiser.recipe or {})["groups"]
    trained = [model.get_parameter(name) for group in groups for name in group["parameters"]]
    return sum(weight.numel() * (2 if weight.is_complex() else 1) for weight in trained)


@checked_calls()
def ledger(path: Path | str, delta: float | None = None) -> Statement:
    """Return what may be said of all attempts that a ledger records, each to its declared end.

    Parameters
    ----------
    path
        A ledger, a run's folder, or a folder of ledgers: of runs here, of the pipeline, of a hospital or of releases.
        Unit and source of the noise are the ledger's own.
    delta
        At most the delta that the ledger declares, which is the default.

    Raises
    ------
    UserError
        If the ledger cannot be read or was edited, records nothing or lacks what it must declare, if something that the
        register next to it names is missing, or if delta is larger.
    """
    source = checked_path(path, "path")
    book = Book.of(recorded_in(source))
    runs = book.runs()
    declared = min((run.delta for run in runs), default=1.0)
    if delta is not None and not (isinstance(delta, Real) and SMALLEST_DELTA <= delta <= declared):
        raise UserError(
            f"delta: Expected from {SMALLEST_DELTA:g} to {declared:g}, which the ledger declares, found {delta!r}."
        )
    return total_statement([replace(run, delta=delta or declared) for run in runs], shared=book.shared)


@checked_calls()
def epsilon(*, noise_multiplier: float, sampling_probability: float, rounds: int, delta: float) -> float:
    """Return the epsilon of a training that draws each patient independently and adds noise to the clipped sum.

    Parameters
    ----------
    noise_multiplier
        Standard deviation of the noise in each real and each imaginary part, divided by the clipping norm.
    sampling_probability
        Probability that a patient is drawn in a round.
    rounds
        Number of rounds, one release each.
    delta
        Between 0 and 1, less than 1 / number of patients.

    Raises
    ------
    UserError
        If an argument is out of range.

    Examples
    --------
    >>> round(epsilon(noise_multiplier=42.57, sampling_probability=24 / 44, rounds=917, delta=1e-3), 4)
    0.9995
    """
    sigma, rate, delta = reals(
        noise_multiplier=noise_multiplier, sampling_probability=sampling_probability, delta=delta
    )
    try:
        whole(0, MOST_RELEASES, rounds=rounds)
        return composition.epsilon({NoisySum(rate, sigma): int(rounds)}, delta)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error


@checked_calls()
def noise(*, epsilon: float, delta: float, sampling_probability: float, rounds: int) -> float:
    """Return the smallest noise multiplier at which a training costs at most ``epsilon``.

    Parameters and errors are those of `epsilon`.

    Examples
    --------
    >>> noise(epsilon=1, sampling_probability=24 / 44, rounds=917, delta=1e-3)
    42.551
    """
    target, rate, delta = reals(epsilon=epsilon, sampling_probability=sampling_probability, delta=delta)
    try:
        whole(1, MOST_RELEASES, rounds=rounds)
        return calibration.noise_for_epsilon(target, delta, rate, int(rounds))
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error


def reals(**arguments: object) -> list[float]:
    """Return arguments as plain numbers; refuse those that are not real numbers."""
    for name, value in arguments.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise UserError(f"{name}: Expected a number, found {value!r:.60}.")
    return [float(value) for value in arguments.values()]  # type: ignore[arg-type]  # checked above
