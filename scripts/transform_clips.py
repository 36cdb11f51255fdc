"""Compute the complex spectrograms of clips, and their magnitudes."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zetadp.base.workflow import run
from zetadp.tasks.speech_commands.cohort import names_of, read_written
from zetadp.tasks.speech_commands.spectra import spectrogram
from zetadp.tasks.speech_commands.task import write_inputs

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, clips: Path, spectra: Path, magnitudes: Path) -> None:
    """Write spectrograms and magnitudes, each computed from one clip alone."""
    found = read_written(clips)
    values = np.concatenate([spectrogram(part) for part in np.array_split(found.waves, 1 + len(found.waves) // 500)])
    write_inputs(spectra, values, found.labels, names_of(found))
    write_inputs(magnitudes, np.abs(values), found.labels, names_of(found))
    logging.getLogger(__name__).info("%d spectrograms of %d x %d", *values.shape)


if __name__ == "__main__":
    run(main, snakemake)
