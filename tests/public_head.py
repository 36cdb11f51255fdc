"""A finished model that is the public head of the shipped backbone, as training writes one; run it to write a file."""

from __future__ import annotations

import sys
from pathlib import Path

from zetadp.base.tensors import save_tensors
from zetadp.brain.backbone import load_backbone, shipped_backbone
from zetadp.nn.settings import NetworkSettings
from zetadp.training.pretrained import BACKBONE, model_content

TASK = {"name": "brain_sequences", "slices": 20, "size": 32, "decision": "image"}


def write_public_head(path: Path, domain: str = "features", **trained_on: object) -> Path:
    """Write the model; keywords say what it was trained on."""
    settings = NetworkSettings("head", domain, components=4, start="public")
    backbone = load_backbone(shipped_backbone(settings))
    tensors = {**backbone.start(settings), **{f"{BACKBONE}{key}": value for key, value in backbone.tensors().items()}}
    content = {**model_content(settings, TASK, backbone.components), "public": backbone.content()}
    save_tensors(path, tensors, content | ({"trained_on": trained_on} if trained_on else {}))
    return path


if __name__ == "__main__":
    write_public_head(Path(sys.argv[1]))
