"""Cut the centre slices out of one shard of volumes."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from zetadp.cohort.decathlon import SEQUENCES, read_task
from zetadp.kspace.volumes import read_centre_slices
from zetadp.storage import ImageStack, write_stack
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, dataset: Path, table: Path, slices: Path, shard: str, shards: int, slice_count: int, size: int) -> None:
    """Write the slices of a shard's records, one volume in memory at a time."""
    records = pd.read_csv(table, dtype=str)
    rows = records.iloc[np.array_split(np.arange(len(records)), shards)[int(shard)]]
    order = read_task(dataset.parent).sequences
    values = np.empty((len(rows), len(SEQUENCES), slice_count, size, size), dtype=np.float32)
    for place, file in enumerate(rows["file"]):
        values[place] = read_centre_slices(dataset.parent / file, order, slice_count, size)
    stack = ImageStack(
        values=values,
        patients=tuple(rows["record"]),
        sequences=SEQUENCES,
        axes=("record", "sequence", "slice", "row", "column"),
        units="scanner intensity, arbitrary",
        provenance={
            "slices": slice_count,
            "size": size,
            "resize": "area",
            "files": dict(zip(rows["record"], rows["sha256"], strict=True)),
        },
    )
    write_stack(slices, stack)
    logging.getLogger(__name__).info("sliced %d volumes", len(rows))


if __name__ == "__main__":
    run(main, snakemake)
