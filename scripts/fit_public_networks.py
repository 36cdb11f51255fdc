"""Train the public networks for reconstruction on simulated patients."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.base.validation import settings_of
from zetadp.base.workflow import run
from zetadp.tasks.reconstruction.masks import MaskSettings
from zetadp.tasks.reconstruction.pretraining import fit
from zetadp.tasks.reconstruction.public import PublicNetworkSettings

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, networks: Path, settings: dict[str, Any], mask: dict[str, Any], size: int) -> None:
    """Write the networks."""
    chosen = settings_of(PublicNetworkSettings, settings, "public")
    logging.getLogger(__name__).info("learning from %d simulated patients", chosen.patients)
    fit(chosen, MaskSettings(**mask), size).save(networks)


if __name__ == "__main__":
    run(main, snakemake)
