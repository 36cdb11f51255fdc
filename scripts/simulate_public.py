"""Simulate one shard of the public patients and write their images."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from zetadp.base.storage import Items
from zetadp.base.workflow import run
from zetadp.mri.decathlon import AXES, SEQUENCES
from zetadp.phantom.public import PublicSettings, public_name, simulate_public_patient
from zetadp.phantom.shapes import draw_shapes


def main(
    *, images: Path, shard: str, shards: int, settings: dict[str, Any], anatomy: str, slice_count: int, size: int
) -> None:
    """Write the images of a shard's patients, who have consecutive numbers."""
    public, brain = PublicSettings(**settings), draw_shapes if anatomy == "shapes" else None
    numbers = np.array_split(np.arange(public.patients), shards)[int(shard)].tolist()
    values = np.empty((len(numbers), len(SEQUENCES), slice_count, size, size), dtype=np.float32)
    for place, number in enumerate(numbers):
        values[place] = simulate_public_patient(public, number, slice_count, size, brain)
    names = pd.DataFrame({"record": [public_name(number) for number in numbers]})
    made = {"slices": slice_count, "size": size, "resize": "area", "simulated": {**settings, "anatomy": anatomy}}
    Items({"values": values}, names, provenance=made).write(images, AXES, "mean signal of the brain")
    logging.getLogger(__name__).info("simulated %d public patients", len(numbers))


if __name__ == "__main__":
    run(main)
