"""Compute the public encoder's features of examples of digits."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zetadp.base.workflow import run
from zetadp.tasks.phase_mnist.encoder import DigitEncoder, composite_features
from zetadp.tasks.phase_mnist.task import read_examples, write_features

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, examples: Path, encoder: Path, features: Path, composite: str) -> None:
    """Write complex features of every example, each image encoded once."""
    found = read_examples(examples)
    parts = [found.real] if composite == "none" else [found.real, found.imaginary]
    used, places = np.unique(np.concatenate(parts), return_inverse=True)
    encoded = DigitEncoder.load(encoder).features(found.images[used])
    real, *imaginary = (encoded[part] for part in np.split(places, len(parts)))
    values = composite_features(real, imaginary[0] if imaginary else None)
    write_features(features, values, found.labels, found.names)
    logging.getLogger(__name__).info("computed the features of %d examples", len(values))


if __name__ == "__main__":
    run(main, snakemake)
