"""Train the public encoder of clips on simulated words."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.base.validation import settings_of
from zetadp.base.workflow import run
from zetadp.tasks.speech_commands.encoder import WordEncoder, WordEncoderSettings

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, encoder: Path, settings: dict[str, Any]) -> None:
    """Write the encoder."""
    chosen = settings_of(WordEncoderSettings, settings)
    logging.getLogger(__name__).info("learning from %d simulated words", chosen.words)
    WordEncoder.fit(chosen).save(encoder)


if __name__ == "__main__":
    run(main, snakemake)
