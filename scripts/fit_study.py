"""Extend the backbone by features from all its layers, minus a patient's mean, which are learnt from public images."""

from pathlib import Path
from typing import Any

from zetadp.base.tensors import pick_device
from zetadp.base.workflow import run
from zetadp.brain.backbone import load_backbone
from zetadp.brain.pretraining import read_public, read_study


def main(
    *,
    backbone: Path,
    atlas: list[Path],
    shapes: list[Path],
    study: Path,
    components: list[int],
    held_out: int,
    simulation: dict[str, Any],
    device: str,
) -> None:
    """Write the backbone with features of a study."""
    kinds = {"atlas": read_public(atlas), "shapes": read_public(shapes)}
    extended = read_study(load_backbone(backbone, pick_device(device)), kinds, components, held_out)
    extended.provenance["layers"]["simulation"] = simulation
    extended.save(study)


if __name__ == "__main__":
    run(main)
