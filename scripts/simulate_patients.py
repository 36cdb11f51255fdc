"""Simulate one shard of the cohort's patients and write their volumes."""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from zetadp.base.storage import write_json
from zetadp.base.workflow import run
from zetadp.phantom.cohort import PhantomSettings, write_patients


def main(*, receipt: Path, shard: str, shards: int, folder: str, settings: dict[str, Any]) -> None:
    """Write the volumes of a shard, then a receipt with the hash of every file."""
    phantom = PhantomSettings(**settings)
    numbers = np.array_split(np.arange(1, phantom.train_patients + phantom.test_patients + 1), shards)[int(shard)]
    files = write_patients(phantom, Path(folder), numbers.tolist())
    write_json(receipt, {"settings": settings, "files": files})
    logging.getLogger(__name__).info("simulated %d patients", len(numbers))


if __name__ == "__main__":
    run(main)
