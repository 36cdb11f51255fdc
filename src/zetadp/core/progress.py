"""Log lines of a training: speed, held-out accuracy and time left; and an end that does not reveal how long it took."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zetadp.core.plan import Plan

logger = logging.getLogger(__name__)

ROUGH_SECONDS = 600.0
"""Seconds between two lines of the log where times must not show how long rounds took."""


class Progress:
    """Log the progress of a run, at most one line in ten seconds.

    Where noise protects real patients, the log must not show how long rounds took, since that reveals how many patients
    were drawn. Lines then appear every ten minutes and give the share of finished rounds in steps of 5 %.

    Parameters
    ----------
    plan
        Plan of the run.
    metric
        Name of the reported metric.
    start
        Rounds done before.
    """

    def __init__(self, plan: Plan, metric: str, start: int) -> None:
        self.run, self.start, self.rounds = plan.run, start, plan.training.rounds
        self.timed = plan.training.noise != "os"
        self.begun = time.monotonic()
        self.reported = self.begun
        self.name = metric
        self.metric = float("nan")

    def seconds(self) -> float:
        """Return the seconds since training began or went on."""
        return time.monotonic() - self.begun

    def report(self, done: int) -> None:
        """Log where the training stands."""
        now = time.monotonic()
        watched = "" if math.isnan(self.metric) else f", held-out {self.name} {100 * self.metric:.1f} %"
        if not self.timed:
            if now - self.reported >= ROUGH_SECONDS and done < self.rounds:
                self.reported = now
                logger.info("%s: about %d %%%s", self.run, 5 * (20 * done // self.rounds), watched)
            return
        if now - self.reported < 10 and done < self.rounds:
            return
        self.reported = now
        speed = (done - self.start) / max(now - self.begun, 1e-9)
        left = (self.rounds - done) / speed
        logger.info(
            "%s: round %d of %d, %.1f rounds/s%s, %s left",
            self.run,
            done,
            self.rounds,
            speed,
            watched,
            f"{left / 60:.0f} min" if left >= 120 else f"{left:.0f} s",
        )


def wait_for_tick(begun: float, tick: float) -> None:
    """Sleep until a whole number of ticks has passed.

    Parameters
    ----------
    begun
        When the work began, as `time.monotonic` said then.
    tick
        Seconds. Zero does not wait.
    """
    if tick > 0:
        passed = time.monotonic() - begun
        time.sleep(max(0.0, math.ceil(passed / tick) * tick - passed))
