"""Find the noise that a target epsilon needs under a plan, before any training."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.epsilon import epsilon_value
from zetadp.privacy.calibration import noise_of_plan
from zetadp.storage import write_json
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, noise: Path, calibration: str, delta: float, target: dict[str, Any]) -> None:
    """Write the noise multiplier beside what it was found for; a target that cannot be met ends the workflow here."""
    multiplier = noise_of_plan(epsilon_value(target["epsilon"]), delta, target["plan"])
    logging.getLogger(__name__).info("%s: noise multiplier %g", calibration, multiplier)
    write_json(noise, {"noise_multiplier": multiplier, "delta": delta, **target})


if __name__ == "__main__":
    run(main, snakemake)
