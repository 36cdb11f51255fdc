"""Simulate one shard of the public patients and write their images."""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from zetadp.base.storage import ImageStack, write_stack
from zetadp.base.workflow import run
from zetadp.mri.decathlon import SEQUENCES
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
    stack = ImageStack(
        values=values,
        patients=tuple(public_name(number) for number in numbers),
        sequences=SEQUENCES,
        axes=("record", "sequence", "slice", "row", "column"),
        units="mean signal of the brain",
        provenance={
            "slices": slice_count,
            "size": size,
            "resize": "area",
            "simulated": {**settings, "anatomy": anatomy},
        },
    )
    write_stack(images, stack)
    logging.getLogger(__name__).info("simulated %d public patients", len(numbers))


if __name__ == "__main__":
    run(main)
