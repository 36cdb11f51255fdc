"""Train the public backbone on public simulated patients."""

import logging
from pathlib import Path
from typing import Any

from zetadp.base.tensors import pick_device
from zetadp.base.workflow import run
from zetadp.nn.settings import BackboneTraining, NetworkSettings
from zetadp.tasks.brain_sequences.pretraining import pretrain, read_public


def main(
    *,
    images: list[Path],
    backbone: Path,
    network: dict[str, Any],
    settings: dict[str, Any],
    held_out: int,
    simulation: dict[str, Any],
    device: str,
) -> None:
    """Write the backbone: the network, the readout of its features, and its provenance."""
    values = read_public(images)
    logging.getLogger(__name__).info("%d public patients, %d of them held out", len(values), held_out)
    made = pretrain(
        NetworkSettings(**network),
        BackboneTraining(**settings),
        values[held_out:],
        values[:held_out],
        device=pick_device(device),
    )
    made.provenance["simulation"] = simulation
    made.save(backbone)


if __name__ == "__main__":
    run(main)
