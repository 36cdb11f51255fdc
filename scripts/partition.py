"""Assign every patient to a node or to the server."""

from pathlib import Path
from typing import Any

from zetadp.base.tables import read_table, write_table
from zetadp.base.workflow import run
from zetadp.federation import partition as federation


def main(*, table: Path, partition: Path, settings: dict[str, Any], sizes: list[int]) -> None:
    """Write one row for each record: patient, record, role, node."""
    records = read_table(table)
    assigned = federation.partition(records, federation.PartitionSettings(**settings), sizes)
    write_table(partition, assigned)


if __name__ == "__main__":
    run(main)
