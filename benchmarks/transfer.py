"""How well the public backbone tells sequences of real patients whom nothing was trained or tuned on.

    python benchmarks/transfer.py FOLDER

FOLDER is a task in the layout of the Decathlon (`dataset.json` in it). Each image is told by the public head; a
volume's sequence is told by the vote of its slices. Chance is 25 %.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from zetadp.cohort.decathlon import SEQUENCES, read_task
from zetadp.kspace.fourier import to_kspace
from zetadp.kspace.volumes import read_centre_slices
from zetadp.kspace.whitening import whiten
from zetadp.nn.backbone import load_backbone
from zetadp.nn.projection import head_scores

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print, for every patient and number of components, the share of images and of volumes told right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backbone", type=Path, default=ROOT / "src/zetadp/data/backbone.safetensors")
    parser.add_argument("--slices", type=int, default=20)
    given = parser.parse_args()
    backbone = load_backbone(given.backbone)
    task = read_task(given.folder)
    labels = np.repeat(np.arange(4), given.slices)
    files = [*task.training, *task.test]
    images = [read_centre_slices(given.folder / file, task.sequences, given.slices, backbone.size) for file in files]
    features = [
        torch.from_numpy(backbone.features(whiten(to_kspace(each)))).reshape(len(labels), -1) for each in images
    ]
    for components, head in sorted(backbone.heads.items()):
        shares, volumes = [], []
        for each in features:
            told = head_scores(each, head).argmax(dim=1).numpy()
            votes = [np.bincount(part, minlength=4).argmax() for part in np.split(told, 4)]
            shares.append(100 * (told == labels).mean())
            volumes.append(sum(vote == place for place, vote in enumerate(votes)))
        by_patient = ", ".join(
            f"{file.name.split('.')[0]} {share:.1f} %" for file, share in zip(files, shares, strict=True)
        )
        print(
            f"{components} components: {np.mean(shares):.1f} % of images ({by_patient}); "
            f"{sum(volumes)} of {4 * len(files)} volumes"
        )
    counts = np.zeros((4, 4), dtype=int)
    head = backbone.heads[max(backbone.heads)]
    for each in features:
        np.add.at(counts, (labels, head_scores(each, head).argmax(dim=1).numpy()), 1)
    print("\nrows: true; columns: told as", ", ".join(SEQUENCES))
    for name, row in zip(SEQUENCES, counts, strict=True):
        print(f"{name:6}", *(f"{count:4d}" for count in row))


if __name__ == "__main__":
    main()
