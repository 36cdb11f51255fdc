"""Find the noise that a target epsilon needs under a plan, before any training."""

import logging
from pathlib import Path
from typing import Any

from zetadp.base.storage import write_json
from zetadp.base.workflow import run
from zetadp.core.plan import Plan
from zetadp.core.promise import noise_of_plan


def main(*, noise: Path, calibration: str, plan: dict[str, Any]) -> None:
    """Write the noise multiplier with its inputs; end the workflow if the target cannot be met."""
    declared = Plan.from_json(plan)
    multiplier = noise_of_plan(declared)
    logging.getLogger(__name__).info("%s: noise multiplier %g", calibration, multiplier)
    write_json(noise, {"noise_multiplier": multiplier, "found_for": declared.calibration()})


if __name__ == "__main__":
    run(main)
