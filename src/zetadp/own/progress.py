"""How far a run of the library has come, on the terminal or in a file."""

from __future__ import annotations

import sys
import time

from zetadp.base.logs import Pace, is_milestone, time_left
from zetadp.training.settings import TrainingSettings


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
        self.name, self.rounds, self.timed = name, training.rounds, training.seeded
        self.pace, self.first = Pace(), (-1, 0.0)

    def report(self, done: int, *, last: bool) -> None:
        """Write a line if one is due; the last one always is."""
        now, terminal = time.monotonic(), sys.stderr.isatty()
        begins = self.first[0] < 0
        if begins:
            self.first = done, now
        in_parts = begins or is_milestone(done, self.rounds, 20 if terminal else 5)
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
