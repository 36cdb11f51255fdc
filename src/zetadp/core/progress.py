"""Log lines of a run: speed, metric and time left; and waiting, so that the end does not reveal how long a run took."""

from __future__ import annotations

import logging
import math
import sys
import time
from typing import TYPE_CHECKING

from zetadp.base.logs import NOTICE, Pace, time_left
from zetadp.base.workflow import PROGRESS

if TYPE_CHECKING:
    from zetadp.core.plan import Plan
    from zetadp.core.settings import TrainingSettings

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
        self.timed = plan.training.noise != "os"
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


class RoundsShown:
    """Show how far a run of the library has come: in one line of a terminal, or in a few lines of a file.

    With noise from the operating system no time is shown, and lines depend on the number of rounds alone: how long
    rounds took depends on how many patients were drawn.

    Parameters
    ----------
    name
        Name of the run, with which lines begin.
    training
        Its settings.
    """

    def __init__(self, name: str, training: TrainingSettings) -> None:
        self.name, self.rounds, self.timed = name, training.rounds, training.noise != "os"
        self.pace, self.first = Pace(), (-1, 0.0)

    def report(self, done: int, *, last: bool) -> None:
        """Write a line if one is due; the last one always is."""
        now, terminal = time.monotonic(), sys.stderr.isatty()
        begins = self.first[0] < 0
        if begins:
            self.first = done, now
        parts = 20 if terminal else 5
        in_parts = begins or parts * done // self.rounds > parts * (done - 1) // self.rounds
        if not (last or (self.pace.due() if self.timed and not terminal else in_parts)):
            return
        left = ""
        if self.timed and not (last or begins):
            seconds = (now - self.first[1]) / (done - self.first[0]) * (self.rounds - done)
            left = f", about {time_left(seconds)} left"
        text = f"{self.name}: round {done} of {self.rounds}{left}"
        # A shorter text must leave nothing of the line that it overwrites.
        sys.stderr.write(f"{text:<79}" if terminal else text)
        sys.stderr.write("\r" if terminal and not last else "\n")
        sys.stderr.flush()


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


def seconds_to_tick(begun: float, tick: float) -> float:
    """Return the seconds until a whole number of ticks has passed.

    Parameters
    ----------
    begun
        Start of the work, as `time.monotonic` returned it then.
    tick
        Length of a tick in seconds. Zero does not wait.
    """
    passed = time.monotonic() - begun
    return max(0.0, math.ceil(passed / tick) * tick - passed) if tick > 0 else 0.0
