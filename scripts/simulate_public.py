"""Simulate one shard of the public patients and write their images."""

import logging
from pathlib import Path

import numpy as np
import pandas as pd

from zetadp.base.storage import Items
from zetadp.base.workflow import run
from zetadp.mri.decathlon import AXES, SEQUENCES
from zetadp.phantom.public import simulate_public_patient
from zetadp.phantom.public_brains import draw_anatomy, draw_shapes


def main(
    *, images: Path, shard: str, shards: int, settings: dict[str, int], anatomy: str, slice_count: int, size: int
) -> None:
    """Write the images of a shard's patients, who have consecutive numbers."""
    brain = draw_shapes if anatomy == "shapes" else draw_anatomy
    numbers = np.array_split(np.arange(settings["patients"]), shards)[int(shard)].tolist()
    values = np.empty((len(numbers), len(SEQUENCES), slice_count, size, size), dtype=np.float32)
    for index, number in enumerate(numbers):
        values[index] = simulate_public_patient(settings["seed"], number, slice_count, size, brain)
    names = pd.DataFrame({"record": [f"public-{number:04d}" for number in numbers]})
    provenance = {"slices": slice_count, "size": size, "resize": "area", "simulated": {**settings, "anatomy": anatomy}}
    Items({"values": values}, names, provenance=provenance).write(images, AXES, "mean signal of the brain")
    logging.getLogger(__name__).info("simulated %d public patients", len(numbers))


if __name__ == "__main__":
    run(main)
