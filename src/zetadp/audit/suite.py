"""The audits of an experiment: attacks, number of trials, and detectable faults."""

from __future__ import annotations

import logging
import math
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pandas as pd
import torch

from zetadp.audit.canary import Audited
from zetadp.audit.detection import FALSE_ALARM, AuditResult, Trials, power_of, trials_for_curve
from zetadp.audit.many_rounds import audit_training, error_rates
from zetadp.audit.one_round import audit_one_round, one_round_rates
from zetadp.audit.settings import LEAST_TRIALS, AuditSettings
from zetadp.base.epsilon import rounded_up
from zetadp.base.tables import MISSING, Sheet
from zetadp.base.workflow import PROGRESS
from zetadp.privacy.accounting import Exposure
from zetadp.privacy.kinds import NoisySum

progress = logging.getLogger(PROGRESS)

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
    if processes == 1:
        return [_told(work(job), number, len(jobs), name) for number, job in enumerate(jobs, start=1)]
    # A server that has imported PyTorch once and runs no thread can be forked safely and quickly.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(processes, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting = [pool.submit(work, job) for job in jobs]
        for number, done in enumerate(as_completed(waiting), start=1):
            _told(done.result(), number, len(jobs), name)
        return [each.result() for each in waiting]


def _told(result: Result, number: int, of: int, name: Callable[[Result], str]) -> Result:
    progress.info("attack %d of %d: %s", number, of, name(result))
    return result


logger = logging.getLogger(__name__)

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
    whole: Exposure = {NoisySum(1.0, 1.0): 1}
    faulty = one_round_rates(1.0, 1 / SHORTFALL)
    trials = trials_for_curve(whole, faulty, false_alarm=alarm)
    power = power_of(whole, faulty, trials, false_alarm=alarm)
    sampled: Exposure = {NoisySum(0.5, 1.0): 1}
    faulty = one_round_rates(0.5, 1 / SHORTFALL)
    sampled_trials = trials_for_curve(sampled, faulty, false_alarm=alarm)

    def of_round(
        attack: Callable[..., AuditResult], count: int, seed: int, finds: str, power: float | None = None
    ) -> PlannedAudit:
        return PlannedAudit(partial(attack, trials=tried(count, seed=seed)), finds, power)

    attack = audit_one_round
    # Three patients, so that a wrong divisor is visible.
    imaginary = partial(attack, audited=Audited(clip=2.0, population=3), direction="imaginary")
    drawn = partial(attack, audited=Audited(probability=0.5, population=2))
    power_drawn = power_of(sampled, faulty, sampled_trials, false_alarm=alarm)
    audits = [
        of_round(attack, trials, 0, LESS_NOISE, power),
        of_round(imaginary, trials, 1, LESS_NOISE, power),
        of_round(partial(attack, audited=Audited(noise="os")), trials, 0, LESS_NOISE, power),
        of_round(drawn, sampled_trials, 2, LESS_NOISE, power_drawn),
        of_round(partial(attack, view="nodes", nodes=3), SHARED_TRIALS, 3, OF_NODES),
        of_round(partial(attack, view="rounds"), SHARED_TRIALS, 4, OF_ROUNDS),
    ]
    for target in targets:
        mechanism = (target.probability, target.noise_multiplier, target.rounds)
        faulty = error_rates(*mechanism, true_noise=target.noise_multiplier / SHORTFALL)
        claim: Exposure = {NoisySum(target.probability, target.noise_multiplier): target.rounds}
        wanted = settings.trials or trials_for_curve(claim, faulty, false_alarm=alarm)
        trials = max(LEAST_TRIALS, min(wanted, settings.most_rounds // (2 * target.rounds)))
        if trials < wanted:
            logger.info("%s: %d trials a side of %d, as audit.most_rounds allows", target.name, trials, wanted)
        audited = Audited(target.noise_multiplier, probability=target.probability, noise=noise)
        run = partial(audit_training, trials=tried(trials), audited=audited, rounds=target.rounds, name=target.name)
        audits.append(PlannedAudit(run, LESS_NOISE, power_of(claim, faulty, trials, false_alarm=alarm)))
    return audits


def carry_out(audits: Sequence[PlannedAudit], processes: int = 1) -> list[AuditResult]:
    """Carry out the audits, each in a temporary folder. No ledger of the experiment is changed.

    The results do not depend on the number of processes. Each audit runs in one process.
    """
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
                "figure": result.quantity,
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
