"""Measure how well public extractors suit mixing.

    python -m papers.neuromixgdp.measure_extractors

For each extractor, the table has the paper's measures on training images of MNIST: neural collapse, and the distance of
mixed rows (arXiv:2202.06467, Section 4). They do not measure privacy. Writes measures.csv and measures.md.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import pandas as pd
import torch

from papers.digits import features, images
from papers.experiments import ended
from papers.neuromixgdp.compare_mnist import KINDS
from papers.neuromixgdp.measures import distance_of_mixed, neural_collapse
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import write_text
from zetadp.base.tables import Sheet
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv, to_markdown

MEASURED, MIXED = 5000, 2000
"""Number of images for the collapse, and numbers of images and of rows for the distance."""
PRINTED = {"pixels": 1.53, "scattering": 1.16}
"""Collapse of MNIST as the paper prints it."""


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return "MNIST, training images, not simulated", "0"


def measured() -> pd.DataFrame:
    """Return both measures of each extractor."""
    labels, rows = torch.from_numpy(images("mnist", "train")[1]), []
    for kind in KINDS:
        x = torch.from_numpy(features("mnist", kind, "train")[:MEASURED])
        distance = distance_of_mixed(x[:MIXED], labels[:MIXED], MIXED, stream(0, Purpose.IMAGES))
        collapse = neural_collapse(x, labels[:MEASURED])
        rows.append({"features": kind, "collapse": collapse, "printed": PRINTED.get(kind), "distance": distance})
    return pd.DataFrame(rows)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/papers/neuromixgdp"))
    given = parser.parse_args()
    suited, made = measured(), origin(*declared())
    write_text(given.output / "measures.csv", to_csv(suited, made, float_format="%.4g"))
    cells = [
        (KINDS[row["features"]], f"{row['collapse']:.2f}", "" if math.isnan(row["printed"]) else f"{row['printed']:g}",
         f"{row['distance']:.3f}")
        for row in suited.to_dict("records")
    ]  # fmt: skip
    notes = (
        f"Collapse is Tr(Σ_W Σ_B^+) / K of {MEASURED} images: the smaller, the more the features of a class are alike. "
        f"Distance is the least from {MIXED} rows of two images to one of {MIXED} images with another label: the "
        "larger, the better. All features have norm one at most.",
        *made,
    )
    heads = ("features of MNIST", "collapse", "printed by the paper", "distance of mixed rows")
    first = to_markdown(Sheet("How well extractors suit mixing", heads, tuple(cells), notes))
    write_text(given.output / "measures.md", first)
    print(first)


if __name__ == "__main__":
    ended(main)
