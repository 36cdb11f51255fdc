"""What may still be spent: a cap on the total of a cohort's people, and the permission of another attempt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from zetadp.account.attempts import Attempt, protected_attempts, require_attempts
from zetadp.account.book import Book, hold_locks
from zetadp.account.declaration import Declaration, Limit
from zetadp.account.exposure import Run, condition_of, declared_run, name_in_errors, one_unit, runs_of, total
from zetadp.account.ledger import Ledger
from zetadp.account.offers import KEEP_RESULTS, cause_of_another, offer
from zetadp.account.totals import Total
from zetadp.accounting.events import Event
from zetadp.base.epsilon import rounded_up
from zetadp.base.validation import UserError, counted


class CapError(UserError):
    """A release would bring the total above the cap. It was neither recorded nor made."""


@dataclass(frozen=True)
class Cap(Limit):
    """The largest epsilon that all runs in the book of a cohort may cost one of its people together.

    The cap and the total are one computation: what `zetadp.account.exposure.total` says of `Book.runs`, shared patients
    of other cohorts included. Before an attempt starts, its declared cost is added. An attempt does not declare
    repeated releases of a round, so the total is computed again before each of them. If it exceeds the cap, nothing is
    recorded or released. In a cohort of records, the cap is for one record. Masked sums count as the server sees them.

    Attributes
    ----------
    epsilon, delta
        The cap, and the delta at which it holds.
    """

    def noted(self, declaration: Declaration) -> Declaration:
        """Return a declaration with this cap: recorded before the first release, it is a promise."""
        return replace(declaration, cap=Limit(self.epsilon, self.delta))

    @contextmanager
    def starting(self, ledger: Path, declaration: Declaration, attempts: int = 1) -> Iterator[Declaration]:
        """Refuse attempts that would exceed the cap. Within the block, no other attempt of the cohort can start.

        The block is given the declaration with the cap, for the ledger.

        Parameters
        ----------
        ledger
            The run's ledger, which need not exist yet.
        declaration
            What the attempt declares. If it names a node, the ledgers are about the people of that node.
        attempts
            Number of attempts to be reserved: this one, and those that may follow it without being asked again.

        Raises
        ------
        CapError
            If the total would exceed the cap.
        """
        with hold_locks(ledger.parent):
            self.check_plan(ledger, declaration, attempts)
            yield self.noted(declaration)

    def check_plan(self, ledger: Path, declaration: Declaration, attempts: int = 1) -> None:
        """Refuse attempts as `starting` does, without holding a lock.

        Raises
        ------
        CapError
            If the total would exceed the cap.
        """
        new = declared_run(f"{ledger.stem} next", declaration)
        before = Book.read(ledger.parent).runs(about=ledger)
        self._refuse(before, [*before, *[new] * attempts], "The run")

    def continuing(self, ledger: Path) -> None:
        """Refuse to continue if the recorded runs, each counted to its declared end, exceed the cap.

        Raises
        ------
        CapError
            If they exceed it, for example because the cap was lowered after the attempt had started.
        """
        runs = Book.read(ledger.parent).runs(about=ledger)
        epsilon = total(runs, self.delta)
        if epsilon > self.epsilon:
            raise CapError(
                f"The runs recorded in {ledger.parent} cost their patients epsilon {rounded_up(epsilon)} at delta "
                f"{self.delta:g} when they are finished{condition_of(runs)}. The cap is {self.epsilon:g}. The run does "
                "not continue."
            )

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
        book = Book.read(ledger.path.parent)
        more = book.with_releases(ledger.path, again)
        self._refuse(book.runs(ledger.path), more.runs(ledger.path), "Another release of a round")

    def _refuse(self, before: Sequence[Run], after: Sequence[Run], what: str) -> None:
        epsilon = total(after, self.delta)
        if epsilon > self.epsilon:
            raise CapError(
                f"{what} would bring the total of all runs on these patients from epsilon "
                f"{rounded_up(total(before, self.delta))} to {rounded_up(epsilon)} at delta {self.delta:g}"
                f"{condition_of(after)}. The cap is {self.epsilon:g}. Nothing was released."
            )


def check_unit(ledger: Path, declaration: Declaration) -> None:
    """Refuse an attempt that protects another unit than earlier runs on the same people: their costs do not add up.

    Parameters
    ----------
    ledger
        The run's ledger, which need not exist yet.
    declaration
        What the attempt declares.

    Raises
    ------
    UserError
        If the units differ.
    """
    one_unit(Book.declared(ledger).units(about=ledger) | {declaration.cohort_unit: f"{ledger.stem} next"})


def begin_attempt(
    ledger: Ledger,
    declaration: Declaration,
    cap: Cap | None,
    *,
    attempts: int = 1,
    draws: Mapping[str, str] | None = None,
) -> None:
    """Begin an attempt in a ledger; where there is a cap, its check and the ledger's new line are one step.

    Parameters
    ----------
    ledger
        The run's open ledger.
    declaration, attempts
        As in `Cap.starting`.
    cap
        The cap; None sets no limit.
    draws
        As in `Ledger.start`.

    Raises
    ------
    CapError
        If the total would exceed the cap.
    """
    with nullcontext(declaration) if cap is None else cap.starting(ledger.path, declaration, attempts) as declared:
        ledger.start(declared, draws)


def check_permitted(ledger: Ledger, declaration: Declaration) -> None:
    """Refuse an attempt that the ledger does not permit, and state the total to which it would lead.

    A run with protecting noise has one attempt, unless its ledger permits more. Attempts that released nothing do not
    count, nor do attempts with seeded noise.

    Parameters
    ----------
    ledger
        The run's open ledger.
    declaration
        What the attempt declares.

    Raises
    ------
    UserError
        If the run has as many attempts as permitted.
    """
    n_attempts = protected_attempts(ledger.attempts)
    if n_attempts < ledger.permitted:
        return
    last = next(attempt for attempt in reversed(ledger.attempts) if attempt.releases())
    cause = cause_of_another(last.declaration.to_json(), declaration.to_json())
    paid = f"permit another attempt (zetadp permit {ledger.path})"
    raise UserError(
        f"{ledger.path.stem} has {counted(n_attempts, 'attempt')} already. {cause} {offer(KEEP_RESULTS, paid)} After "
        f"another attempt, {cost_of_another(ledger.path, ledger.attempts, declaration)}."
    )


def cost_of_another(ledger: Path, attempts: Sequence[Attempt], declaration: Declaration | None = None) -> str:
    """Return in words the totals after another attempt, at its delta; by default it is like the last in the ledger."""
    with name_in_errors(ledger, "the declaration of the last attempt"):
        new = declared_run(f"{ledger.stem} again", declaration or require_attempts(ledger, attempts)[-1].declaration)
    recorded, cohort = runs_of(ledger, attempts), Book.read(ledger.parent).runs()

    def of(runs: Sequence[Run]) -> Total:
        return Total.of([run for run in runs if run.private], new.delta)

    before, after = (rounded_up(of(runs).spent) for runs in (recorded, [*recorded, new]))
    earlier, together = rounded_up(of(cohort).spent), of([*cohort, new])
    return (
        f"epsilon of this run would rise from {before} to {after}, and that of all private runs recorded in "
        f"{ledger.parent} from {earlier} to {rounded_up(together.spent)}, at delta {new.delta:g}. "
        f"{together.simulation} {together}"
    ).rstrip(" .")
