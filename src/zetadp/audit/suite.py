"""The audits of an experiment: attacks, number of trials, and detectable faults."""

from __future__ import annotations

import logging
import math
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pandas as pd
import torch

from zetadp.audit.detection import FALSE_ALARM, AuditResult, Trials, power_of, trials_for_curve
from zetadp.audit.many_rounds import audit_training, error_rates
from zetadp.audit.one_round import USUAL, Audited, audit_one_round, one_round_rates
from zetadp.audit.settings import LEAST_TRIALS, AuditSettings
from zetadp.base.epsilon import rounded_up
from zetadp.base.tables import MISSING, Sheet
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

_COUNTS = ("confidence", "trials_in", "trials_out", "false_alarms", "misses")

SHARED_TRIALS = 300
"""Trials on each side if a fault removes the noise completely."""

LESS_NOISE, OF_NODES, OF_ROUNDS = "noise too small by √2", "noise shared by nodes", "noise shared by rounds"


@dataclass(frozen=True)
class Target:
    """Runs of an experiment that an audit imitates.

    Attributes
    ----------
    name
        Arms and target, for readers.
    probability, noise_multiplier, rounds
        The mechanism of the node that draws its patients most often.
    """

    name: str
    probability: float
    noise_multiplier: float
    rounds: int


@dataclass(frozen=True)
class PlannedAudit:
    """One planned audit.

    Attributes
    ----------
    run
        Carries out the audit in an empty folder.
    finds
        The fault that the audit looks for.
    power
        Chance to find that fault; None if the fault leaves no noise.
    """

    run: Callable[[Path], AuditResult]
    finds: str
    power: float | None = None


def plan(targets: Sequence[Target], *, delta: float, noise: str, settings: AuditSettings) -> list[PlannedAudit]:
    """Return the audits of an experiment: one round with mu = 1, and whole runs.

    The chance that any of them refutes code without a fault is `FALSE_ALARM`.

    Parameters
    ----------
    targets
        Mechanisms of the experiment.
    delta
        The delta of epsilon.
    noise
        Source of the noise of whole runs: ``seeded`` or ``os``.
    settings
        Extent of the audits.
    """
    alarm = FALSE_ALARM / (6 + len(targets))
    tried = partial(Trials, delta=delta, confidence=1 - alarm)

    def of_round(seed: int, audited: Audited = USUAL, direction: str = "general") -> PlannedAudit:
        claim: Exposure = {NoisySum(audited.probability, 1.0): 1}
        faulty = one_round_rates(audited.probability, 1 / SHORTFALL)
        trials = trials_for_curve(claim, faulty, false_alarm=alarm)
        run = partial(audit_one_round, trials=tried(trials, seed=seed), audited=audited, direction=direction)
        return PlannedAudit(run, LESS_NOISE, power_of(claim, faulty, trials, false_alarm=alarm))

    def of_training(target: Target) -> PlannedAudit:
        probability, sigma, rounds = target.probability, target.noise_multiplier, target.rounds
        claim: Exposure = {NoisySum(probability, sigma): rounds}
        faulty = error_rates(probability, sigma, rounds, true_noise=sigma / SHORTFALL)
        wanted = settings.trials or trials_for_curve(claim, faulty, false_alarm=alarm)
        trials = max(LEAST_TRIALS, min(wanted, settings.most_rounds // (2 * rounds)))
        if trials < wanted:
            logger.info("%s: %d trials a side of %d, as audit.most_rounds allows", target.name, trials, wanted)
        audited = Audited(sigma, probability=probability, noise=noise)
        run = partial(audit_training, trials=tried(trials), audited=audited, rounds=rounds, name=target.name)
        return PlannedAudit(run, LESS_NOISE, power_of(claim, faulty, trials, false_alarm=alarm))

    return [
        of_round(0),
        # Three patients, so that a wrong divisor is visible.
        of_round(1, Audited(clip=2.0, population=3), direction="imaginary"),
        of_round(0, Audited(noise="os")),
        of_round(2, Audited(probability=0.5, population=2)),
        PlannedAudit(partial(audit_one_round, trials=tried(SHARED_TRIALS, seed=3), view="nodes", nodes=3), OF_NODES),
        PlannedAudit(partial(audit_one_round, trials=tried(SHARED_TRIALS, seed=4), view="rounds"), OF_ROUNDS),
        *map(of_training, targets),
    ]


def carry_out(audits: Sequence[PlannedAudit], processes: int = 1) -> list[AuditResult]:
    """Carry out the audits, each in a temporary folder and in one process. No ledger of the experiment is changed."""
    # Audits of whole runs take longest. They are last in the list and start first.
    return spread(_carried_out, audits[::-1], processes, lambda result: result.name)[::-1]


def _carried_out(audit: PlannedAudit) -> AuditResult:
    with tempfile.TemporaryDirectory(prefix="zetadp-audit-") as folder:
        return replace(audit.run(Path(folder)), finds=audit.finds, power=audit.power)


def frame(results: Sequence[AuditResult]) -> pd.DataFrame:
    """Return the results as a table, one row per audit."""
    return pd.DataFrame(
        [
            {
                "audit": result.name,
                "finds": result.finds,
                "power": math.nan if result.power is None else result.power,
                "figure": "mu" if result.delta is None else "epsilon",
                "delta": math.nan if result.delta is None else result.delta,
                **{key: getattr(result, key) for key in ("claimed", "measured", "estimate", "highest")},
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
            "μ" if row["figure"] == "mu" else f"ε at δ = {row['delta']:g}",
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
        f"Measured: lower confidence bound on the figure of the code that ran, at {least:.3%} each; the chance that "
        f"any audit refutes code without a fault is at most {FALSE_ALARM:g}. Estimate: the same without a margin.",
        "Refuted: measured above claimed. An audit that refutes nothing proves nothing: it would have found the named "
        "fault with the stated power (–: nearly always), and may miss others.",
        "One round: a stub network and noise of one clipping norm, so that μ is 1. Trainings: a stub network with the "
        "sampling, noise and rounds of this experiment. Neither its patients nor its ledgers are touched.",
    )
    columns = ("audit", "finds", "power", "figure", "claimed", "measured", "estimate", "trials", "verdict")
    return Sheet(f"Claimed against measured privacy, {experiment}", columns, rows, notes, names=2)
