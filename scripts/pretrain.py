"""Train the public backbone on public simulated patients."""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from zetadp.base.tensors import pick_device
from zetadp.base.workflow import run
from zetadp.brain.pretraining import pretrain, read_public
from zetadp.brain.settings import BackboneTraining
from zetadp.nn.settings import NetworkSettings


def main(
    *,
    atlas: list[Path],
    shapes: list[Path],
    backbone: Path,
    network: dict[str, Any],
    settings: dict[str, Any],
    held_out: int,
    simulation: dict[str, Any],
    device: str,
) -> None:
    """Write the backbone: the network, the readout of its features, and its provenance."""
    kinds = [read_public(atlas), read_public(shapes)]
    logging.getLogger(__name__).info("%d public patients, %d of each kind held out", sum(map(len, kinds)), held_out)
    trained = pretrain(
        NetworkSettings(**network),
        BackboneTraining(**settings),
        np.concatenate([images[held_out:] for images in kinds]),
        np.concatenate([images[:held_out] for images in kinds]),
        device=pick_device(device),
    )
    trained.provenance["simulation"] = simulation
    trained.save(backbone)


if __name__ == "__main__":
    run(main)
