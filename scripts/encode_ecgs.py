"""Compute the public encoder's features of heart beats."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zetadp.base.workflow import run
from zetadp.tasks.ecg.encoder import BeatEncoder
from zetadp.tasks.ecg.values import read_values, write_values

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, beats: Path, encoder: Path, features: Path) -> None:
    """Write features of every recording, each computed from the recording's own usual beat alone."""
    found, labels, names = read_values(beats)
    values = BeatEncoder.load(encoder).features(found)[:, None, None].astype(np.complex64)
    write_values(features, values, labels, names, "1")
    logging.getLogger(__name__).info("computed the features of %d recordings", len(values))


if __name__ == "__main__":
    run(main, snakemake)
