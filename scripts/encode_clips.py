"""Compute the public encoder's features of clips."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.base.workflow import run
from zetadp.tasks.speech_commands.cohort import names_of, read_written
from zetadp.tasks.speech_commands.encoder import WordEncoder
from zetadp.tasks.speech_commands.task import write_inputs

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, clips: Path, encoder: Path, features: Path) -> None:
    """Write complex features of every clip."""
    found = read_written(clips)
    values = WordEncoder.load(encoder).features(found.waves)
    write_inputs(features, values, found.labels, names_of(found))
    logging.getLogger(__name__).info("computed the features of %d clips", len(values))


if __name__ == "__main__":
    run(main, snakemake)
