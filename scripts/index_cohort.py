"""Check a cohort and write the table of its records."""

import logging
from pathlib import Path

import pandas as pd

from zetadp.base.storage import read_json
from zetadp.base.tables import write_table
from zetadp.base.validation import UserError
from zetadp.base.workflow import run
from zetadp.mri.index import index_cohort


def main(
    *,
    dataset: Path,
    receipts: list[Path],
    table: Path,
    train_patients: int,
    test_patients: int,
    slices: int,
    spacing: float,
    patient_key: str | None,
    threads: int,
) -> None:
    """Run every check that needs no voxels, and write one row for each record."""
    records = index_cohort(
        dataset.parent,
        train_patients=train_patients,
        test_patients=test_patients,
        slices=slices,
        spacing=spacing,
        patient_key=Path(patient_key) if patient_key else None,
        threads=threads,
    )
    check_receipts(records, receipts)
    write_table(table, records)
    logging.getLogger(__name__).info("%d records of %d patients", len(records), records["patient"].nunique())


def check_receipts(records: pd.DataFrame, receipts: list[Path]) -> None:
    """Raise a `UserError` if simulated volumes differ from those in the receipts.

    Volumes are not outputs of a rule. An experiment whose cohort has the same name overwrites them, and does not
    replace the receipts if its number of shards differs.
    """
    hashes_by_file = dict(zip(records["file"], records["sha256"], strict=True))
    wrong = {}
    for receipt in receipts:
        hashes = {name: file["sha256"] for name, file in read_json(receipt)["files"].items() if name in hashes_by_file}
        changed = [name for name, sha256 in hashes.items() if sha256 != hashes_by_file[name]]
        if changed:
            wrong[receipt] = changed[0]
    if wrong:
        message = (
            f"Expected the volumes that were simulated for this experiment, found others in {len(wrong)} shard(s), the "
            f"first is {next(iter(wrong.values()))}. Another experiment whose cohort has the same name has overwritten "
            f"them: give its cohort a name of its own. Delete {' '.join(map(str, wrong))} and run again."
        )
        raise UserError(message)


if __name__ == "__main__":
    run(main)
