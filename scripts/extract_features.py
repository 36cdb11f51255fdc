"""Compute the public backbone's features of one shard of k-space."""

import logging
from dataclasses import replace
from pathlib import Path

from zetadp.base.storage import Items
from zetadp.base.tensors import keep_freed_memory, pick_device
from zetadp.base.workflow import run
from zetadp.mri.decathlon import AXES
from zetadp.nn.backbone import load_backbone
from zetadp.tasks.brain_sequences.images import of_brains


def main(*, kspace: Path, backbone: Path, features: Path, device: str) -> None:
    """Write the features of every image, in the layout of images of one row."""
    keep_freed_memory()
    network = of_brains(load_backbone(backbone, pick_device(device)))
    found = Items.read(kspace, ("values",))
    values = network.record_features(found.arrays["values"])
    made = replace(found, arrays={"values": values}, provenance={**found.provenance, "backbone": network.provenance})
    made.write(features, (*AXES[:4], "component"), "standard deviations of the component over public images")
    logging.getLogger(__name__).info("computed the features of %d records", len(found.names))


if __name__ == "__main__":
    run(main)
