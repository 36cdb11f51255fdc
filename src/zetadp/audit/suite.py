"""The audits of an experiment: attacks, number of trials, and detectable faults."""

from __future__ import annotations

import logging
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pandas as pd
import torch

from zetadp.audit.detection import FALSE_ALARM, AuditResult, Trials, power_of, trials_for_curve
from zetadp.audit.settings import LEAST_TRIALS, AuditSettings
from zetadp.audit.trainings import Audited, audit, error_rates, scratch_folder
from zetadp.base.epsilon import rounded_up
from zetadp.base.tables import MISSING, Sheet, numbers_of
from zetadp.base.workflow import PROGRESS
from zetadp.privacy.accounting import Exposure
from zetadp.privacy.kinds import NoisySum

logger, progress = logging.getLogger(__name__), logging.getLogger(PROGRESS)

Job = TypeVar("Job")
Result = TypeVar("Result")


def spread(
    work: Callable[[Job], Result], jobs: Sequence[Job], processes: int, name: Callable[[Result], str]
) -> list[Result]:
    """Return the result of ``work`` for every job, in the order of the jobs.

    Parameters
    ----------
    work
        A function that other processes can import: a function of a module, or a partial of one.
    jobs
        Arguments of the calls.
    processes
        Number of processes. With one, the jobs run in this process.
    name
        Returns the name of a result for the log.
    """
    found = []
    with ExitStack() as stack:
        calls: Iterator[Result] = map(work, jobs)
        if processes > 1:
            # A server that has imported PyTorch once and runs no thread can be forked safely and quickly.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([__name__])
            pool = ProcessPoolExecutor(processes, context, initializer=torch.set_num_threads, initargs=(1,))
            calls = stack.enter_context(pool).map(work, jobs)
        for number, result in enumerate(calls, start=1):
            progress.info("attack %d of %d: %s", number, len(jobs), name(result))
            found.append(result)
    return found


SHORTFALL = math.sqrt(2)
"""The fault that the number of trials is chosen for: noise too small by this factor, as with half the variance."""
SHARED_TRIALS = 300
"""Trials on each side if a fault removes the noise completely."""
_COUNTS = ("confidence", "trials_in", "trials_out", "false_alarms", "misses")

OF_A_ROUND = (
    Audited("one round, B = 1, seeded noise"),
    # Three patients, so that a wrong divisor is visible.
    Audited("one round, imaginary canary, B = 2, seeded noise", clip=2.0, population=3, imaginary=True),
    Audited("one round, B = 1, exact noise", noise="os"),
    Audited("one round, p = 0.5, B = 1, seeded noise", probability=0.5, population=2),
)
OF_DIFFERENCES = {
    "noise shared by nodes": Audited("one round, difference of nodes", difference="nodes"),
    "noise shared by rounds": Audited(
        "two rounds, p = 0.5, difference of rounds", probability=0.5, population=2, rounds=2, difference="rounds"
    ),
}
"""Attacks by the fault that they look for."""


@dataclass(frozen=True)
class PlannedAudit:
    """One planned audit.

    Attributes
    ----------
    audited
        The mechanism and the attack.
    trials
        Number of trials, and settings of their interpretation.
    finds
        The fault that the audit looks for.
    power
        Chance to find that fault; None if the fault leaves no noise.
    """

    audited: Audited
    trials: Trials
    finds: str = "noise too small by √2"
    power: float | None = None


def plan(targets: Sequence[Audited], *, delta: float, settings: AuditSettings) -> list[PlannedAudit]:
    """Return the audits of an experiment: one round with a noise multiplier of one, differences, and whole runs.

    The chance that any of them refutes code without a fault is `FALSE_ALARM`.

    Parameters
    ----------
    targets
        Mechanisms of the experiment.
    delta
        The delta of epsilon.
    settings
        Extent of the audits of whole runs.
    """
    alarm = FALSE_ALARM / (len(OF_A_ROUND) + len(OF_DIFFERENCES) + len(targets))
    tried = partial(Trials, delta=delta, confidence=1 - alarm)

    def planned(seed: int, audited: Audited, most: int | None = None) -> PlannedAudit:
        probability, sigma, rounds = audited.probability, audited.noise_multiplier, audited.rounds
        claim: Exposure = {NoisySum(probability, sigma): rounds}
        faulty = error_rates(probability, sigma, rounds, true_noise=sigma / SHORTFALL)
        trials = (most and settings.trials) or trials_for_curve(claim, faulty, false_alarm=alarm)
        if most is not None and most < trials:
            logger.info("%s: %d trials a side of %d, as audit.most_rounds allows", audited.name, most, trials)
            trials = most
        power = power_of(claim, faulty, trials, false_alarm=alarm)
        return PlannedAudit(audited, tried(trials, seed=seed), power=power)

    found = [planned(seed, audited) for seed, audited in enumerate(OF_A_ROUND)]
    for fault, audited in OF_DIFFERENCES.items():
        found.append(PlannedAudit(audited, tried(SHARED_TRIALS, seed=len(found)), fault))
    for target in targets:
        found.append(planned(len(found), target, max(LEAST_TRIALS, settings.most_rounds // (2 * target.rounds))))
    return found


def carry_out(audits: Sequence[PlannedAudit], processes: int = 1) -> list[AuditResult]:
    """Carry out audits in their order; audits of whole runs take longest, are last in the list and start first."""
    return spread(_carried_out, audits[::-1], processes, lambda result: result.name)[::-1]


def _carried_out(planned: PlannedAudit) -> AuditResult:
    with scratch_folder() as folder:
        return replace(audit(folder, planned.trials, planned.audited), finds=planned.finds, power=planned.power)


def frame(results: Sequence[AuditResult]) -> pd.DataFrame:
    """Return the results as a table, one row per audit."""
    return pd.DataFrame(
        [
            {
                "audit": result.name,
                "finds": result.finds,
                "power": math.nan if result.power is None else result.power,
                **{key: getattr(result, key) for key in ("delta", "claimed", "measured", "estimate", "highest")},
                **{key: getattr(result.errors, key) for key in _COUNTS},
                "verdict": "stands" if result.passed else "refuted",
            }
            for result in results
        ]
    )


def sheet(table: pd.DataFrame, experiment: str) -> Sheet:
    """Return the table of results (`frame`) for readers, with notes on the figures."""
    rows = tuple(
        (
            row["audit"],
            row["finds"],
            MISSING if math.isnan(row["power"]) else f"{row['power']:.2f}",
            rounded_up(row["claimed"], 3),
            f"{row['measured']:.2f}",
            f"{row['estimate']:.2f}",
            f"{row['trials_in']} + {row['trials_out']}",
            row["verdict"],
        )
        for row in table.to_dict("records")
    )
    least = table["confidence"].min()
    notes = (
        f"Claimed: ε at δ = {numbers_of(table, 'delta')}. Measured: lower confidence bound on the ε of the code that "
        f"ran, at {least:.3%} each; the chance that any audit refutes code without a fault is at most {FALSE_ALARM:g}. "
        "Estimate: the same without a margin.",
        "Refuted: measured above claimed. An audit that refutes nothing proves nothing: it would have found the named "
        "fault with the stated power (–: nearly always), and may miss others.",
        "All attack trainings of a small head. One round and two: noise of one clipping norm. Others: the sampling, "
        "noise and rounds of this experiment. Neither its patients nor its ledgers are touched.",
    )
    columns = ("audit", "finds", "power", "claimed", "measured", "estimate", "trials", "verdict")
    return Sheet(f"Claimed against measured privacy, {experiment}", columns, rows, notes, names=2)
