"""Simulate or read ECG recordings, and write the inputs of networks and the table of patients."""

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.base.tables import write_table
from zetadp.base.workflow import run
from zetadp.tasks.ecg.collection import Choice, Cohort, collect

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    *,
    spectrum: Path,
    signal: Path,
    beats: Path,
    table: Path,
    files: list[Path],
    choice: dict[str, Any],
    folder: str | None,
    seed: int,
    sizes: dict[str, int],
) -> None:
    """Write spectra, signals and usual beats, and one row for each recording: patient, record, part, scanner, hash."""
    found = collect(Cohort(folder and Path(folder), seed, sizes["train"], sizes["test"]), Choice(**choice))
    rows = found.table.assign(sha256=[hashlib.sha256(each.tobytes()).hexdigest() for each in found.beats])
    found.write(spectrum, signal, beats)
    write_table(table, rows)
    logging.getLogger(__name__).info("%d recordings of %d patients", len(rows), rows["patient"].nunique())


if __name__ == "__main__":
    run(main, snakemake)
