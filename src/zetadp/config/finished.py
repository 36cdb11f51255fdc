"""Finished runs that a configuration must leave as they are, and add to only with consent."""

from __future__ import annotations

from pathlib import Path

from zetadp.account.attempts import permitted_attempts, protected_attempts, read_ledger
from zetadp.account.book import ledger_files
from zetadp.account.offers import offer
from zetadp.base.differences import differences
from zetadp.base.runfolder import RunFolder
from zetadp.base.validation import UserError, counted
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


def check_trainings(config: Config, ledgers: Path) -> None:
    """Refuse new runs on real patients that would exceed the permitted number together with the recorded runs.

    A run with another epsilon, seed or experiment name is a new run, whose cost is added to that of the earlier ones.

    Parameters
    ----------
    config
        The configuration.
    ledgers
        Folder of the cohort's ledgers.

    Raises
    ------
    UserError
        If runs of the configuration have released nothing yet, and are too many together with all others.
    """
    if not config.cohort.real:
        return
    planned = {f"{config.name}-{run.label}" for run in config.run_names}
    files = {file.stem: file for file in ledger_files(ledgers)}
    # Reading ledgers takes long: only where their names alone are too many, and some of the runs have none.
    if planned <= set(files) or len(planned | set(files)) <= config.privacy.trainings:
        return
    recorded = {name for name, file in files.items() if protected_attempts(read_ledger(file))}
    new, total = sorted(planned - recorded), len(planned | recorded)
    if not new or total <= config.privacy.trainings:
        return
    raise UserError(
        f"privacy.trainings: expected at most {counted(config.privacy.trainings, 'run')} on real patients, found "
        f"{counted(len(new), 'new run')} ({new[0]}{', ...' if len(new) > 1 else ''}) and {len(recorded)} recorded in "
        f"{ledgers}. Each of them costs the same patients again (zetadp budget {ledgers} prints the total). "
        + offer("return to the settings of a recorded run", f"write privacy.trainings: {total}")
    )


def _is_permitted(ledger: Path) -> bool:
    """Return whether a ledger permits an attempt after those that it has."""
    attempts = read_ledger(ledger)
    return protected_attempts(attempts) < permitted_attempts(attempts)
