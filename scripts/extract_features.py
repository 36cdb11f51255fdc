"""Compute the public backbone's features of one shard of k-space."""

import logging
from dataclasses import replace
from pathlib import Path

from zetadp.base.storage import Items
from zetadp.base.tensors import keep_freed_memory, pick_device
from zetadp.base.workflow import run
from zetadp.brain.backbone import load_backbone
from zetadp.brain.images import check_backbone
from zetadp.mri.decathlon import AXES


def main(*, kspace: Path, backbone: Path, features: Path, device: str) -> None:
    """Write the features of every image, in the layout of images of one row."""
    keep_freed_memory()
    network = check_backbone(load_backbone(backbone, pick_device(device)))
    shard = Items.read(kspace, ("values",))
    values = network.record_features(shard.arrays["values"])
    features_of_shard = replace(
        shard, arrays={"values": values}, provenance={**shard.provenance, "backbone": network.provenance}
    )
    features_of_shard.write(
        features, (*AXES[:4], "component"), "standard deviations of the component over public images"
    )
    logging.getLogger(__name__).info("computed the features of %d records", len(shard.names))


if __name__ == "__main__":
    run(main)
