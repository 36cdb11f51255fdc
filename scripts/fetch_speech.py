"""Fetch the official archive of spoken commands."""

from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.base.workflow import run
from zetadp.tasks.speech_commands.clips import fetch_archive

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, archive: Path) -> None:
    """Download the archive, and check it against its published checksum."""
    fetch_archive(archive)


if __name__ == "__main__":
    run(main, snakemake)
