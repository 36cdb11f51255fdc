"""Find the noise that every target epsilon needs, before any training."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.epsilon import epsilon_value
from zetadp.privacy.calibration import noise_of_plan
from zetadp.storage import write_json
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, noise: Path, delta: float, plans: dict[str, dict[str, dict[str, Any]]], epsilons: list[str]) -> None:
    """Write the noise multiplier of every network, arm and target; one that cannot be met ends the workflow here."""
    multipliers: dict[str, dict[str, dict[str, float]]] = {}
    for network, arms in plans.items():
        multipliers[network] = {}
        for arm, plan in arms.items():
            found = {epsilon: noise_of_plan(epsilon_value(epsilon), delta, plan) for epsilon in epsilons}
            multipliers[network][arm] = found
            logging.getLogger(__name__).info("%s, %s: noise multipliers %s", network, arm, found)
    write_json(noise, {"delta": delta, "noise_multipliers": multipliers})


if __name__ == "__main__":
    run(main, snakemake)
