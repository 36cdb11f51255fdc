"""Look for records that are nearly the same images under different names."""

import logging
from pathlib import Path

import numpy as np

from zetadp.base.storage import Items
from zetadp.base.tables import write_table
from zetadp.base.validation import counted
from zetadp.base.workflow import run
from zetadp.mri.duplicates import check_different, near_duplicates
from zetadp.training.partition import read_partition


def main(*, slices: list[Path], partition: Path, duplicates: Path) -> None:
    """Refuse equal images, and write every suspicious pair with the role and node of both records.

    A person with two records has less protection than stated.
    """
    shards = [Items.read(path, ("values",)) for path in slices]
    names = [name for shard in shards for name in shard.names["record"]]
    stack = np.concatenate([shard.arrays["values"] for shard in shards])
    check_different(stack, names)
    pairs = near_duplicates(stack, names)
    rows = read_partition(partition).set_index("record")
    for side in ("a", "b"):
        pairs[f"role_{side}"] = rows["role"].reindex(pairs[f"patient_{side}"]).to_numpy()
        pairs[f"node_{side}"] = rows["node"].reindex(pairs[f"patient_{side}"]).to_numpy()
    write_table(duplicates, pairs)
    if len(pairs):
        count = counted(len(pairs), "pair of records", "pairs of records")
        logging.getLogger(__name__).warning("Nearly the same images: %s, see %s", count, duplicates)


if __name__ == "__main__":
    run(main)
