"""The total cost of all runs recorded for a cohort, the cost of a further run, and a cap on the total."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zetadp.base.epsilon import rounded_up
from zetadp.base.storage import make_folder
from zetadp.base.validation import UserError, in_range, positive
from zetadp.privacy import accounting
from zetadp.privacy.account import cohort_ledgers, cohort_runs
from zetadp.privacy.events import Event
from zetadp.privacy.exposure import Run, declared_run, over_runs, run_of, runs_of
from zetadp.privacy.ledger import Attempt, Ledger, read_ledger

LOCK = "cap.lock"
"""Lock file. Only one attempt starts at a time, so two attempts cannot both use the same room under the cap."""


class CapError(UserError):
    """A release would bring the total above the cap. It was neither recorded nor made."""


def total(runs: Iterable[Run], delta: float) -> float:
    """Return epsilon of all runs together for the most exposed patient; infinite if one run had no noise."""
    exposures = over_runs(list(runs), delta).values()
    return max((accounting.epsilon(exposure, delta) for exposure in exposures), default=0.0)


def spent(folder: Path, delta: float) -> float:
    """Return epsilon of all runs recorded in a folder of ledgers, each counted to its declared end.

    Raises
    ------
    UserError
        If a ledger, or the end of one, is missing.
    """
    return total(cohort_runs(folder), delta)


def planned(name: str, header: Mapping[str, Any], node: str | None = None) -> Run:
    """Return all that an attempt with this header will release: at one node, or at all if it does not name that one."""
    run = declared_run(name, header)
    return run if node is None or node not in run.nodes else replace(run, nodes={node: run.nodes[node]})


@dataclass(frozen=True)
class Cap:
    """The largest epsilon that all runs recorded for a cohort may cost one of its patients together.

    Before an attempt starts, its declared cost is added to everything recorded. An attempt does not declare repeated
    releases of a round, so the total is computed again before each of them. If the total exceeds the cap, nothing is
    recorded or released. Runs of other cohorts with the same patients are not counted. In a cohort of records, the cap
    is for one record.

    Attributes
    ----------
    epsilon, delta
        The cap, and the delta at which it holds.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Check both values."""
        positive(epsilon=self.epsilon, delta=self.delta)
        in_range(0, 1, delta=self.delta)

    @classmethod
    def named(cls, text: str, delta: float) -> Cap | None:
        """Return the cap that a rule of the workflow passes on: ``none``, or ``epsilon`` and a number."""
        return None if text == "none" else cls(float(text.removeprefix("epsilon ")), delta)

    @contextmanager
    def starting(self, ledger: Ledger, header: Mapping[str, Any], node: str | None = None) -> Iterator[None]:
        """Refuse an attempt that would exceed the cap. Within the block, no other attempt of the cohort can start.

        Parameters
        ----------
        ledger
            The run's open ledger.
        header
            Description of the attempt.
        node
            The node whose patients the ledgers are about; None for those of all nodes.

        Raises
        ------
        CapError
            If the total would exceed the cap.
        """
        folder = ledger.path.parent
        make_folder(folder)
        with (folder / LOCK).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            ledgers = cohort_ledgers(folder)
            before = [run for path, attempts in ledgers.items() for run in runs_of(path, attempts)]
            # Attempts that have begun and not yet released anything count in full.
            begun = [
                planned(path.stem, attempts[-1].header, node)
                for path, attempts in ledgers.items()
                if path != ledger.path and attempts and not attempts[-1].events
            ]
            self._refuse([*before, *begun], planned(f"{ledger.path.stem} next", header, node), "The run")
            yield

    def check_plan(self, ledger: Path, header: Mapping[str, Any], node: str) -> None:
        """Refuse a plan before a node joins: like `starting` before its first release, like `continuing` afterwards.

        Parameters
        ----------
        ledger
            The ledger of the plan's run, which need not exist yet.
        header
            Header of the plan.
        node
            The node whose patients the ledgers are about.

        Raises
        ------
        CapError
            If the total would exceed the cap.
        """
        if ledger.exists() and any(attempt.events for attempt in read_ledger(ledger)):
            self._refuse_recorded(ledger.parent)
        else:
            self._refuse(cohort_runs(ledger.parent), planned(ledger.stem, header, node), "The run")

    def continuing(self, ledger: Ledger) -> None:
        """Refuse to continue if the recorded runs, each counted to its declared end, exceed the cap.

        Raises
        ------
        CapError
            If they exceed it, for example because the cap was lowered after the attempt had started.
        """
        self._refuse_recorded(ledger.path.parent)

    def check_again(self, ledger: Ledger, events: Sequence[Event]) -> None:
        """Refuse to record releases that an attempt did not declare, if the total would exceed the cap.

        Parameters
        ----------
        ledger
            The run's open ledger.
        events
            Releases that are about to be recorded. Those that were not recorded before are part of the declared plan.

        Raises
        ------
        CapError
            If the total would exceed the cap.
        """
        again = [event for event in events if ledger.holds(event)]
        if not again:
            return
        ledgers = cohort_ledgers(ledger.path.parent)
        last = ledgers[ledger.path].pop()
        runs = [run for path, attempts in ledgers.items() for run in runs_of(path, attempts)]
        more = Attempt(last.header, [*last.events, *again], last.sent, last.torn)
        self._refuse(runs, run_of(f"{ledger.path.stem} again", more), "Another release of a round")

    def _refuse_recorded(self, folder: Path) -> None:
        found = spent(folder, self.delta)
        if found > self.epsilon:
            raise CapError(
                f"The runs recorded in {folder} cost their patients epsilon {rounded_up(found)} at delta "
                f"{self.delta:g} when they are finished. The cap is {self.epsilon:g}. The run does not continue."
            )

    def _refuse(self, runs: Sequence[Run], new: Run, what: str) -> None:
        after = total([*runs, new], self.delta)
        if after > self.epsilon:
            raise CapError(
                f"{what} would bring the total of all runs on these patients from epsilon "
                f"{rounded_up(total(runs, self.delta))} to {rounded_up(after)} at delta {self.delta:g}. The cap is "
                f"{self.epsilon:g}. Nothing was released."
            )
