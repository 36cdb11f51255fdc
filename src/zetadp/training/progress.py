"""Log lines of a run: speed, metric and time left; and waiting, so that the end does not reveal how long a run took."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from zetadp.base.logs import NOTICE, PROGRESS, time_left

if TYPE_CHECKING:
    from zetadp.training.plan import Plan

OF_TRAINING = f"{PROGRESS}.training"
"""Name of the logger of a training's lines."""
logger = logging.getLogger(OF_TRAINING)

EVERYBODY_SECONDS = 5.0
"""Longest tick at which a run ends where every patient takes part in every round: nobody is drawn, so the time of the
rounds shows no draw. What is left is the time in which one patient's further scans are read and chosen from, some
milliseconds. A tick of 5 s hides 3 ms except with probability 0.0006, below the usual delta."""
SECONDS = 30.0
"""Seconds between two lines of the log."""
ROUGH_SECONDS = 600.0
"""Seconds between two lines of the log if they must not reveal how long rounds took."""


class Progress:
    """Log the progress of a run, at most one line in `SECONDS`.

    Where noise protects real patients, the log must not reveal how long rounds took, because that depends on how many
    patients were drawn. Lines then appear every ten minutes and give the share of finished rounds in steps of 5 %.

    Parameters
    ----------
    plan
        Plan of the run.
    metric
        Name of the reported metric.
    start
        Number of rounds done before.
    """

    def __init__(self, plan: Plan, metric: str, start: int) -> None:
        self.run, self.start, self.rounds = plan.run, start, plan.training.rounds
        self.timed = plan.training.seeded
        self.begun = self.reported = time.monotonic()
        self.name, self.metric = metric, math.nan

    def seconds(self) -> float:
        """Return the seconds since training started or continued."""
        return time.monotonic() - self.begun

    def report(self, done: int) -> None:
        """Log the number of rounds done, if a line is due."""
        now, last = time.monotonic(), done == self.rounds
        due = now - self.reported >= (SECONDS if self.timed else ROUGH_SECONDS)
        if not (self.timed if last else due):
            return
        self.reported = now
        watched = "" if math.isnan(self.metric) else f", held-out {self.name} {100 * self.metric:.1f} %"
        if not self.timed:
            logger.info("%s: about %d %%%s", self.run, 5 * (20 * done // self.rounds), watched)
            return
        speed = (done - self.start) / max(now - self.begun, 1e-9)
        left = "" if last else f", about {time_left((self.rounds - done) / speed)} left"
        logger.info("%s: round %d of %d, %.1f rounds/s%s%s", self.run, done, self.rounds, speed, watched, left)


def announced_tick(plan: Plan, tick: float) -> float:
    """Return the tick at whose multiples a run on real patients ends; log at its start when a long one is and why.

    The time that rounds took depends on how many patients were drawn, so nothing may be logged when they are done.
    Where every patient takes part in every round, that number is public, and `EVERYBODY_SECONDS` are enough.

    Parameters
    ----------
    plan
        Plan of the run.
    tick
        ``privacy.finish_seconds``; zero for a run that ends at any time.
    """
    if tick <= 0:
        return 0.0
    if all(plan.probability(node.name) == 1 for node in plan.nodes):
        return min(tick, EVERYBODY_SECONDS)
    ends = [time.strftime("%H:%M:%S", time.localtime(time.time() + number * tick)) for number in (1, 2)]
    logger.log(
        NOTICE,
        "%s: results are written at %s, %s or a later multiple of %g s after the start (privacy.finish_seconds). Until "
        "then the run waits silently, because the time of the rounds would show how many patients were drawn",
        *(plan.run, *ends, tick),
    )
    return tick


def seconds_to_tick(started: float, tick: float) -> float:
    """Return the seconds until a whole number of ticks has passed.

    Parameters
    ----------
    started
        Start of the work, as `time.monotonic` returned it then.
    tick
        Length of a tick in seconds. Zero does not wait.
    """
    passed = time.monotonic() - started
    return max(0.0, math.ceil(passed / tick) * tick - passed) if tick > 0 else 0.0
