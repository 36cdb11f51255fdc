"""The audits of an experiment: attacks, number of trials, and detectable faults."""

from __future__ import annotations

import logging
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TypeVar

import pandas as pd
import torch

from zetadp.audit.detection import FALSE_ALARM, power_of, trials_for_curve
from zetadp.audit.settings import LEAST_TRIALS, AuditSettings
from zetadp.audit.trainings import Audited, AuditResult, audit
from zetadp.base.epsilon import rounded_up
from zetadp.base.logs import PROGRESS
from zetadp.base.tables import MISSING, Sheet, numbers_of

logger, progress = logging.getLogger(__name__), logging.getLogger(PROGRESS)

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_jobs(
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
    results = []
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
            results.append(result)
    return results


SHORTFALL = math.sqrt(2)
"""The fault that determines the number of trials: noise too small by this factor, as with half the variance."""
OF_A_ROUND = (
    Audited("one round, B = 1, seeded noise"),
    # Three patients, so that a wrong divisor is visible.
    Audited("one round, imaginary canary, B = 2, seeded noise", clip=2.0, population=3, imaginary=True),
    Audited("one round, B = 1, exact noise", noise="os"),
    Audited("one round, p = 0.5, B = 1, seeded noise", probability=0.5, population=2),
)
OF_DIFFERENCES = (
    Audited("one round, difference of nodes", difference="nodes", finds="noise shared by nodes"),
    Audited(
        "two rounds, p = 0.5, difference of rounds",
        probability=0.5,
        population=2,
        rounds=2,
        difference="rounds",
        finds="noise shared by rounds",
    ),
)
"""Attacks that look for shared noise, which cancels completely in differences."""


def plan(targets: Sequence[Audited], *, delta: float, settings: AuditSettings) -> list[Audited]:
    """Return the audits of an experiment: one round with a noise multiplier of one, differences, and whole runs.

    The chance that any audit refutes code without a fault is `FALSE_ALARM`.

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

    def powerful(audited: Audited, requested: int | None = None, most: int | None = None) -> Audited:
        claimed, faulty = audited.mechanisms, audited.error_rates(audited.noise_multiplier / SHORTFALL)
        trials = requested or trials_for_curve(claimed, faulty, false_alarm=alarm)
        if most is not None and most < trials:
            logger.info("%s: %d trials a side of %d, as audit.most_rounds allows", audited.name, most, trials)
            trials = most
        return replace(audited, trials=trials, power=power_of(claimed, faulty, trials, false_alarm=alarm))

    audits = [*map(powerful, OF_A_ROUND), *OF_DIFFERENCES]
    for target in targets:
        most = max(LEAST_TRIALS, settings.most_rounds // (2 * target.rounds))
        audits.append(powerful(target, settings.trials, most))
    return [replace(entry, seed=seed, delta=delta, confidence=1 - alarm) for seed, entry in enumerate(audits)]


def run_audits(audits: Sequence[Audited], processes: int = 1) -> list[AuditResult]:
    """Run audits and return results in their order; audits of whole runs take longest, are last and start first."""
    return run_jobs(audit, audits[::-1], processes, lambda result: result.audited.name)[::-1]


def frame(results: Sequence[AuditResult]) -> pd.DataFrame:
    """Return the results as a table, one row per audit."""
    return pd.DataFrame(
        [
            {
                "audit": result.audited.name,
                "finds": result.audited.finds,
                "power": math.nan if result.audited.power is None else result.audited.power,
                "delta": result.claim.delta,
                "claimed": result.claim.epsilon,
                "measured": result.measured,
                "estimate": result.estimate,
                **asdict(result.errors),
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
