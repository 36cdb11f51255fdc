"""Read examinations in the layout of fastMRI, leave out lines of k-space, and write the table of volumes."""

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.base.tables import write_table
from zetadp.base.workflow import run
from zetadp.tasks.reconstruction.masks import MaskSettings
from zetadp.tasks.reconstruction.slices import Slices
from zetadp.tasks.reconstruction.volumes import read_folder

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, volumes: Path, slices: Path, table: Path, mask: dict[str, Any], size: int, sizes: dict[str, int]) -> None:
    """Write the slices, and one row for each volume: patient, record, part, scanner, sha256."""
    found = Slices.of(read_folder(volumes), MaskSettings(**mask), size)
    index = found.cohort(sizes)
    hashes = {
        record: hashlib.sha256(found.kspace[rows.index].tobytes()).hexdigest()
        for record, rows in found.table.groupby("record")
    }
    index = index.assign(scanner="", sha256=index["record"].map(hashes))
    found.write(slices)
    write_table(table, index)
    logging.getLogger(__name__).info("%d slices of %d patients", len(found.table), index["patient"].nunique())


if __name__ == "__main__":
    run(main, snakemake)
