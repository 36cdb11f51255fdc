"""Assign every patient to a node or to the server."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from zetadp.base.storage import written_whole
from zetadp.base.workflow import run
from zetadp.federation import partition as federation

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, table: Path, partition: Path, settings: dict[str, Any], sizes: list[int]) -> None:
    """Write one row for each record: patient, record, role, node."""
    records = pd.read_csv(table, dtype=str, keep_default_na=False)
    assigned = federation.partition(records, federation.PartitionSettings(**settings), sizes)
    with written_whole(partition) as temporary:
        assigned.to_csv(temporary, index=False)


if __name__ == "__main__":
    run(main, snakemake)
