"""Finished runs that a configuration must leave as they are."""

from __future__ import annotations

from pathlib import Path

from zetadp.account.attempts import permitted_attempts, protected_attempts, read_ledger
from zetadp.account.offers import offer
from zetadp.base.differences import differences
from zetadp.base.runfolder import RunFolder
from zetadp.base.validation import UserError
from zetadp.config.experiment import Config
from zetadp.training.plan import Plan


def check_partition(config: Config, results: Path, ledgers: Path) -> None:
    """Refuse another partition than that of finished runs with protecting noise, before any job begins.

    Such a run is not trained again unasked. With another table of who is where it could not be evaluated either.

    Parameters
    ----------
    config
        The configuration.
    results, ledgers
        Folder of the experiment's results, and of the cohort's ledgers.

    Raises
    ------
    UserError
        If the partition has changed and the ledger of a run permits no other attempt, or if the plan of such a run
        cannot be read.
    """
    for name in config.run_names:
        run, ledger = RunFolder(results / name.folder), ledgers / f"{config.name}-{name.label}.jsonl"
        if not (run.plan.exists() and ledger.exists()):
            continue
        try:
            trained = Plan.read(run.plan)
        except UserError:
            if config.privacy.seeded:
                continue  # it is trained again
            raise
        if not trained.protects_people:
            continue
        changed = [
            f"partition.{change.key} (then {change.before}, now {change.now})"
            for change in differences(trained.partition, config.plan(name).partition)
        ]
        if changed and not _is_permitted(ledger):
            raise UserError(
                f"Expected the partition with which {run.path} was trained, found a change of {', '.join(changed)}. "
                f"{offer('undo that', f'permit another attempt (zetadp permit {ledger})')}"
            )


def _is_permitted(ledger: Path) -> bool:
    """Return whether a ledger permits an attempt after those that it has."""
    attempts = read_ledger(ledger)
    return protected_attempts(attempts) < permitted_attempts(attempts)
