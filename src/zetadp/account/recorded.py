"""Where a run is recorded, and whether an account still holds what its runs recorded there."""

from __future__ import annotations

from pathlib import Path

from zetadp.account.attempts import LostError
from zetadp.account.book import Book, ledger_files
from zetadp.account.register import REGISTER
from zetadp.base.runfolder import RunFolder
from zetadp.base.validation import UserError


def check_neighbours(folder: Path, account: Path) -> None:
    """Refuse a new run in an account that lacks what the runs next to it were recorded in.

    Somebody who deletes the ledgers, or puts back older ones, would otherwise begin with a total of zero.

    Parameters
    ----------
    folder
        The new run's folder.
    account
        The folder of ledgers in which it will be recorded.

    Raises
    ------
    UserError
        If the account lacks a ledger or lines of a run next to the new one.
    """
    neighbours = sorted(folder.parent.iterdir()) if folder.parent.is_dir() else []
    runs = {
        run: live
        for run in map(RunFolder, neighbours)
        if (live := run.live_ledger) and live.parent == account.resolve()
    }
    # A run that has no ledger yet was only prepared, unless it left a sealed copy or a checkpoint.
    gone = [live for run, live in runs.items() if not live.exists() and run.checkpoint.exists()]
    try:
        if gone:
            raise LostError(f"{live} is missing" for live in gone)
        Book.read(account, [run.ledger for run in runs if run.ledger.is_file()])
    except LostError as error:
        raise UserError(
            f"account: {error} If a folder next to {folder} is a copy of a run on other people, move it away."
        ) from error


def recorded_in(path: Path) -> Path:
    """Return the ledger of a run's folder, or else the path itself: that of a ledger, or of a folder of ledgers.

    A folder with a register holds the ledgers of an account, whatever one of them is called.

    Raises
    ------
    UserError
        If nothing is recorded at the path.
    """
    if (path / REGISTER).is_file():
        return path
    recorded, run = ledger_files(path), RunFolder(path)
    live = run.live_ledger
    if live is not None:
        if not live.is_file():
            raise UserError(f"{live} is missing, the ledger of the run {path}. Restore it: a copy may lack releases.")
        return live
    if recorded == [run.ledger]:
        return recorded[0]
    if recorded or path.is_file():
        return path
    raise UserError(
        f"Expected a finished run, a ledger or a folder of ledgers, found none in {path}. A hospital "
        "has none before its first run."
    )
