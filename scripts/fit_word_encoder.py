"""Train the public encoder of clips on simulated words."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.tasks.speech_commands.encoder import PublicEncoder, about
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, encoder: Path, settings: dict[str, Any]) -> None:
    """Write the encoder."""
    chosen = about(settings)
    logging.getLogger(__name__).info("learning to tell %d simulated words", chosen.words)
    PublicEncoder.fit(chosen).save(encoder)


if __name__ == "__main__":
    run(main, snakemake)
