"""Make a backbone whose features come from all its layers, learnt from public images."""

from pathlib import Path
from typing import Any

from zetadp.base.device import pick_device
from zetadp.base.workflow import run
from zetadp.nn.backbone import load_backbone
from zetadp.tasks.brain_sequences.pretraining import read_all_layers, read_public


def main(
    *,
    backbone: Path,
    atlas: list[Path],
    shapes: list[Path],
    layers: Path,
    components: list[int],
    held_out: int,
    centred: bool,
    simulation: dict[str, Any],
    device: str,
) -> None:
    """Write the backbone with features of all layers; if ``centred``, each patient's mean is subtracted from them."""
    kinds = {"atlas": read_public(atlas), "shapes": read_public(shapes)}
    made = read_all_layers(load_backbone(backbone, pick_device(device)), kinds, components, held_out, centred=centred)
    made.provenance["layers"]["simulation"] = simulation
    made.save(layers)


if __name__ == "__main__":
    run(main)
