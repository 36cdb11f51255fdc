"""Compute the public backbone's features of one shard of whitened k-space."""

import logging
from pathlib import Path

from zetadp.base.device import keep_freed_memory, pick_device
from zetadp.base.storage import ImageStack, read_stack, write_stack
from zetadp.base.validation import UserError
from zetadp.base.workflow import run
from zetadp.nn.backbone import load_backbone


def main(*, whitened: Path, backbone: Path, features: Path, device: str) -> None:
    """Write the features of every image, in the layout of images of one row."""
    keep_freed_memory()
    network = load_backbone(backbone, pick_device(device))
    stack = read_stack(whitened)
    if stack.sequences != network.sequences:
        msg = (
            f"Expected the sequences {', '.join(network.sequences)} that the backbone was trained on, found "
            f"{', '.join(stack.sequences)}. Pretrain a backbone on these."
        )
        raise UserError(msg)
    write_stack(
        features,
        ImageStack(
            values=network.record_features(stack.values),
            patients=stack.patients,
            sequences=stack.sequences,
            axes=("record", "sequence", "slice", "row", "component"),
            units="standard deviations of the component over public images",
            provenance={**stack.provenance, "backbone": network.provenance},
        ),
    )
    logging.getLogger(__name__).info("computed the features of %d records", len(stack.patients))


if __name__ == "__main__":
    run(main)
