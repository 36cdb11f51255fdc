"""Add up what every training ever made on a cohort cost its patients."""

from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.privacy.events import histories
from zetadp.privacy.exposure import Run
from zetadp.privacy.ledger import read_ledger
from zetadp.privacy.statement import plain_text, total_statement
from zetadp.storage import write_json, write_text
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    *, ledgers: list[Path], total: Path, text: Path, ledger_folder: str, delta: float, unit: str, noise: str
) -> None:
    """Write the total over all ledgers of the cohort: also those of deleted results, failed and repeated trainings.

    ``ledgers`` are the sealed copies of the present grid. They only make this job run again when a run is added: what
    counts is the folder.
    """
    runs = []
    for path in sorted(Path(ledger_folder).glob("*.jsonl")):
        for number, attempt in enumerate(read_ledger(path), start=1):
            if not attempt.events:
                continue
            name = path.stem if number == 1 else f"{path.stem} (attempt {number})"
            runs.append(Run(name, histories(attempt.releases()), attempt.header["training"]["rounds"]))
    statement = total_statement(runs, delta=delta, unit=unit, noise_source=noise)
    write_json(total, statement)
    write_text(text, plain_text(statement))


if __name__ == "__main__":
    run(main, snakemake)
