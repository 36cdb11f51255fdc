"""Train the public encoder of heart beats on simulated patients."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.base.validation import settings_of
from zetadp.base.workflow import run
from zetadp.tasks.ecg.encoder import BeatEncoder, BeatEncoderSettings

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, encoder: Path, settings: dict[str, Any]) -> None:
    """Write the encoder."""
    chosen = settings_of(BeatEncoderSettings, settings)
    logging.getLogger(__name__).info("learning from %d simulated patients", chosen.patients)
    BeatEncoder.fit(chosen).save(encoder)


if __name__ == "__main__":
    run(main, snakemake)
