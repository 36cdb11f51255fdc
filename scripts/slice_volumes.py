"""Cut the centre slices out of one shard of volumes."""

import logging
from pathlib import Path

import numpy as np

from zetadp.base.storage import Items
from zetadp.base.tables import read_table
from zetadp.base.validation import UserError
from zetadp.base.workflow import run
from zetadp.mri.decathlon import AXES, SEQUENCES, read_task
from zetadp.mri.nifti import ChangedError
from zetadp.mri.volumes import read_centre_slices


def main(
    *,
    dataset: Path,
    table: Path,
    slices: Path,
    shard: str,
    shards: int,
    slice_count: int,
    spacing: float,
    size: int,
) -> None:
    """Write the slices of a shard's records, one volume in memory at a time."""
    records = read_table(table)
    rows = records.iloc[np.array_split(np.arange(len(records)), shards)[int(shard)]]
    task = read_task(dataset.parent)
    values = np.empty((len(rows), len(SEQUENCES), slice_count, size, size), dtype=np.float32)
    for index, (file, indexed) in enumerate(zip(rows["file"], rows["sha256"], strict=True)):
        volume = dataset.parent / file
        order = task.sequences_of(file)
        try:
            values[index] = read_centre_slices(volume, order, slice_count, size, spacing, sha256=indexed)
        except ChangedError as error:
            raise UserError(f"{error} Delete {table} and run again.") from None
    files = dict(zip(rows["record"], rows["sha256"], strict=True))
    provenance = {"slices": slice_count, "spacing": spacing, "size": size, "resize": "area", "files": files}
    Items({"values": values}, rows[["record"]], provenance=provenance).write(
        slices, AXES, "scanner intensity, arbitrary"
    )
    logging.getLogger(__name__).info("sliced %d volumes", len(rows))


if __name__ == "__main__":
    run(main)
