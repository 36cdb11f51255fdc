"""Add up what every training ever made on a cohort cost its patients."""

from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.privacy.exposure import recorded_noise, recorded_runs
from zetadp.privacy.statement import plain_text, total_statement
from zetadp.storage import write_json, write_text
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    *, ledgers: list[Path], total: Path, text: Path, ledger_folder: str, others: str, delta: float, unit: str
) -> None:
    """Write the total over all ledgers of the cohort: also those of deleted results, failed and repeated trainings.

    ``ledgers`` are the sealed copies of the present grid, ``others`` is a hash of the ledgers of other experiments.
    They only make this job run again when something is added: what counts is the folder.
    """
    files = sorted(Path(ledger_folder).glob("*.jsonl"))
    runs = [run for path in files for run in recorded_runs(path)]
    statement = total_statement(runs, delta=delta, unit=unit, noise_source=recorded_noise(files))
    write_json(total, statement)
    write_text(text, plain_text(statement))


if __name__ == "__main__":
    run(main, snakemake)
