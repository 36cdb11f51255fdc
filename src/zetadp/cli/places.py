"""Where the ledgers of a run are, for commands that take the folder of a run of the library or of the pipeline."""

from __future__ import annotations

from pathlib import Path

from zetadp.base.storage import read_json
from zetadp.base.validation import UserError

LEDGER = "ledger.jsonl"
"""Sealed copy of the ledger, in the folder of a finished run."""


def ledger_of(place: Path) -> Path:
    """Return a ledger that was named, or the ledger of a run whose folder was named.

    Raises
    ------
    UserError
        If there is none.
    """
    sealed = place / LEDGER if place.is_dir() else place
    live = _live_ledger(place) if place.is_dir() else None
    found = live if live is not None and not sealed.is_file() else sealed
    if not found.is_file():
        raise UserError(f"Expected a finished run or a ledger, found no {found}.")
    return found


def account_of(run: Path) -> Path | None:
    """Return the folder of the live ledgers of a run's patients; None if it is not where it was.

    A run of the library stores the way to its ledger. The pipeline has ``ledgers/COHORT`` in a folder above the run.
    """
    live = _live_ledger(run)
    if live is not None:
        return live.parent if live.parent.is_dir() else None
    try:
        cohort = read_json(run / "plan.json")["cohort"]
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return None
    found = (parent / "ledgers" / str(cohort) for parent in run.resolve().parents)
    return next((folder for folder in found if cohort and folder.is_dir()), None)


def _live_ledger(run: Path) -> Path | None:
    """Return the ledger that a run of the library names as its own; None for other folders."""
    from zetadp.privacy.verification import RUN

    try:
        return (run / str(read_json(run / RUN)["ledger"])).resolve()
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return None
