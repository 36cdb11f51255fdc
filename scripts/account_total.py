"""Add up what every training ever made on a cohort cost its patients."""

from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.privacy.account import cohort_runs, runs_of_others, shared_records
from zetadp.privacy.exposure import noise_of
from zetadp.privacy.statement import Terms, total_statement
from zetadp.privacy.wording import plain_text
from zetadp.storage import write_json, write_text
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    *,
    ledgers: list[Path],
    table: Path,
    total: Path,
    text: Path,
    ledger_folder: str,
    others: str,
    delta: float,
    unit: str,
) -> None:
    """Write the total over all ledgers of the cohort: also those of deleted results, failed and repeated trainings.

    What counts is the folder of ledgers. ``ledgers`` are the sealed copies of the present grid, which it must hold.
    ``others``, a hash of the ledgers of other experiments, makes this job run again when something is added to them.
    """
    folder = Path(ledger_folder)
    shared = shared_records(folder, table)
    runs = cohort_runs(folder, ledgers) + runs_of_others(shared)
    names = {other.name: count for other, count in shared.items()}
    statement = total_statement(runs, Terms(delta, unit, noise_of(runs)), shared=names)
    write_json(total, statement)
    write_text(text, plain_text(statement))


if __name__ == "__main__":
    run(main, snakemake)
