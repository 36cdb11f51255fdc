"""Check a cohort and write the table of its records."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.cohort.index import index_cohort
from zetadp.storage import written_whole
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    *,
    dataset: Path,
    table: Path,
    train_patients: int,
    test_patients: int,
    slices: int,
    patient_key: str | None,
    threads: int,
) -> None:
    """Run every check that needs no voxels and write one row a record."""
    records = index_cohort(
        dataset.parent,
        train_patients=train_patients,
        test_patients=test_patients,
        slices=slices,
        patient_key=Path(patient_key) if patient_key else None,
        threads=threads,
    )
    with written_whole(table) as temporary:
        records.to_csv(temporary, index=False)
    logging.getLogger(__name__).info("%d records of %d patients", len(records), records["patient"].nunique())


if __name__ == "__main__":
    run(main, snakemake)
