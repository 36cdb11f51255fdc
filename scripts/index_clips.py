"""Read clips of spoken words, keep at most the declared number of each training speaker, and list them."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.base.tables import write_table
from zetadp.base.workflow import run
from zetadp.tasks.speech_commands.clips import read_clips
from zetadp.tasks.speech_commands.cohort import chosen, index, write_clips

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, clips: Path, table: Path, source: str, unit: str, clips_of_a_speaker: int, sizes: dict[str, int]) -> None:
    """Write the clips, and one row for each unit: patient, record, part, scanner, sha256."""
    found = chosen(read_clips(Path(source)), clips_of_a_speaker)
    rows = index(found, unit, sizes)
    write_clips(clips, found)
    write_table(table, rows)
    logging.getLogger(__name__).info("%d clips in %d units", len(found.names), len(rows))


if __name__ == "__main__":
    run(main, snakemake)
