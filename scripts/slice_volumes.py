"""Cut the centre slices out of one shard of volumes."""

import logging
from pathlib import Path

import numpy as np

from zetadp.base.storage import ImageStack, content_hash, write_stack
from zetadp.base.tables import read_table
from zetadp.base.validation import UserError
from zetadp.base.workflow import run
from zetadp.mri.decathlon import SEQUENCES, read_task
from zetadp.mri.volumes import read_centre_slices


def main(*, dataset: Path, table: Path, slices: Path, shard: str, shards: int, slice_count: int, size: int) -> None:
    """Write the slices of a shard's records, one volume in memory at a time."""
    records = read_table(table)
    rows = records.iloc[np.array_split(np.arange(len(records)), shards)[int(shard)]]
    order = read_task(dataset.parent).sequences
    values = np.empty((len(rows), len(SEQUENCES), slice_count, size, size), dtype=np.float32)
    for place, (file, indexed) in enumerate(zip(rows["file"], rows["sha256"], strict=True)):
        volume = dataset.parent / file
        values[place] = read_centre_slices(volume, order, slice_count, size)
        if content_hash(volume) != indexed:
            msg = f"Expected {volume} as {table} has it, found another content. Delete {table} and run again."
            raise UserError(msg)
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
    run(main)
