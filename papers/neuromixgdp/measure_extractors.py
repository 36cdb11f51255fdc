"""Measure how well public extractors suit mixing, and compare random weights with equal weights.

    python -m papers.neuromixgdp.measure_extractors

For each extractor, the first table has the paper's measures on training images of MNIST: neural collapse, and the
distance of mixed rows (arXiv:2202.06467, Section 4). They do not measure privacy. The second table compares random
weights (`papers.neuromixgdp.weights`) with equal weights at equal epsilon, on other training images. No test image
is read. Writes measures.csv and measures.md.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import pandas as pd
import torch

from papers.digits import features, images, split
from papers.experiments import ended
from papers.neuromixgdp.compare_mnist import CLASSES, DELTA, KINDS, accuracy, real_parts
from papers.neuromixgdp.measures import distance_of_mixed, neural_collapse
from papers.neuromixgdp.weights import RandomWeights
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import write_text
from zetadp.core.assembly import mixture_of
from zetadp.core.task import Classification
from zetadp.nn.row_heads import learnt_head
from zetadp.release.release import ReleaseSettings
from zetadp.report.provenance import origin, seeds_shown
from zetadp.report.rendering import Sheet, to_csv, to_markdown

SEEDS = range(2)
MEASURED, MIXED = 5000, 2000
"""Number of images for the collapse, and numbers of images and of rows for the distance."""
PEOPLE, EPSILON = 2000, 1.0
LAWS = ((math.inf, 1.0), (4.0, 1.0), (4.0, 2.0), (1.0, 1.0), (1.0, 4.0))
"""Concentration of the weights, and largest weight in units of 1/m."""
PRINTED = {"pixels": 1.53, "scattering": 1.16}
"""Collapse of MNIST as the paper prints it."""


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return "MNIST, training images, not simulated", seeds_shown(SEEDS)


def measured() -> pd.DataFrame:
    """Return both measures of each extractor."""
    labels, rows = torch.from_numpy(images("mnist", "train")[1]), []
    for kind in KINDS:
        x = torch.from_numpy(features("mnist", kind, "train")[:MEASURED])
        distance = distance_of_mixed(x[:MIXED], labels[:MIXED], MIXED, stream(0, Purpose.IMAGES))
        collapse = neural_collapse(x, labels[:MEASURED])
        rows.append({"features": kind, "collapse": collapse, "printed": PRINTED.get(kind), "distance": distance})
    return pd.DataFrame(rows)


def weighted() -> pd.DataFrame:
    """Return the accuracy of heads that learn from rows with random weights, at equal epsilon."""
    settings, rows = ReleaseSettings(EPSILON, DELTA, people=PEOPLE, classes=CLASSES), []
    plan = settings.plan(real=True, noise="seeded")
    node = plan.nodes[0]
    for concentration, most in LAWS:
        law, found = RandomWeights(node.expected, concentration, most), []
        for seed in SEEDS:
            x, labels, tests, wanted = split(CLASSES, PEOPLE, seed)
            mixture = mixture_of(plan, Classification(CLASSES), x.shape[1])
            vectors = mixture(x.to(torch.complex64)[:, None, None, None], labels[:, None]) / plan.clip
            drawn = law.rows(vectors, PEOPLE, node.noise_multiplier, stream(seed, Purpose.SAMPLING))
            head = real_parts(learnt_head(mixture.examples(drawn * plan.clip)))
            found.append(accuracy(head, tests, wanted))
        rows.append({"concentration": concentration, "most": most, "mean": pd.Series(found).mean()})
        rows[-1] |= {"std": pd.Series(found).std(), "seeds": len(found)}
        print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def main() -> None:
    """Measure, compare, and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/papers/neuromixgdp"))
    given = parser.parse_args()
    suited, weights, made = measured(), weighted(), origin(*declared())
    both = pd.concat([suited.assign(part="extractors"), weights.assign(part="weights")], ignore_index=True)
    write_text(given.output / "measures.csv", to_csv(both, made, float_format="%.4g"))
    cells = [
        (KINDS[row["features"]], f"{row['collapse']:.2f}", "" if math.isnan(row["printed"]) else f"{row['printed']:g}",
         f"{row['distance']:.3f}")
        for row in suited.to_dict("records")
    ]  # fmt: skip
    notes = (
        f"Collapse is Tr(Σ_W Σ_B^+) / K of {MEASURED} images: the smaller, the more the features of a class are alike. "
        f"Distance is the least from {MIXED} rows of two images to one of {MIXED} images with another label: the "
        "larger, the better. All features have norm one at most.",
    )
    heads = ("features of MNIST", "collapse", "printed by the paper", "distance of mixed rows")
    first = to_markdown(Sheet("How well extractors suit mixing", heads, tuple(cells), notes))
    cells = [
        ("equal weights" if row["concentration"] == math.inf else f"{row['concentration']:g}", f"{row['most']:g}/m",
         f"{row['mean']:.2f} ± {row['std']:.2f}")
        for row in weights.to_dict("records")
    ]  # fmt: skip
    notes = (
        f"Accuracy in % on other training images, mean and standard deviation over {len(SEEDS)} seeds; {PEOPLE} images "
        f"and rows, ε = {EPSILON:g} per image at δ = {DELTA:g}, simulated noise. Noise grows with the clip.",
        *made,
    )
    heads = ("concentration", "weights clipped to", "accuracy")
    second = to_markdown(Sheet("Random weights at equal ε", heads, tuple(cells), notes))
    write_text(given.output / "measures.md", f"{first}\n{second}")
    print(first, second)


if __name__ == "__main__":
    ended(main)
