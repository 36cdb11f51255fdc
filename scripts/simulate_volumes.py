"""Simulate examinations in the layout of fastMRI."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.base.storage import folder_written_whole
from zetadp.base.workflow import run
from zetadp.tasks.reconstruction.examinations import Examinations
from zetadp.tasks.reconstruction.simulated import examinations as simulated
from zetadp.tasks.reconstruction.volumes import PARTS

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, volumes: Path, examinations: dict[str, Any], seed: int, sizes: dict[str, int]) -> None:
    """Write a folder with one HDF5 file for each examination."""
    with folder_written_whole(volumes) as temporary:
        for name in PARTS.values():
            (temporary / name).mkdir(parents=True)
        for part, volume in simulated(Examinations(**examinations), seed, sizes):
            volume.write(temporary / PARTS[part])
    logging.getLogger(__name__).info("%d examinations", sum(sizes.values()))


if __name__ == "__main__":
    run(main, snakemake)
