"""Train the public encoder of digits on simulated digits."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.base.validation import settings_of
from zetadp.base.workflow import run
from zetadp.tasks.phase_mnist.encoder import DigitEncoder, DigitEncoderSettings

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, encoder: Path, settings: dict[str, Any]) -> None:
    """Write the encoder."""
    chosen = settings_of(DigitEncoderSettings, settings)
    logging.getLogger(__name__).info("learning to read %d simulated digits", chosen.digits)
    DigitEncoder.fit(chosen).save(encoder)


if __name__ == "__main__":
    run(main, snakemake)
