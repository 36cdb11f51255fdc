"""Measure the accuracy of networks trained with directions, with Gaussian noise and without noise.

This repeats Table V of Biswas et al. (arXiv:2502.04045): MNIST and Fashion-MNIST at 16 x 16 pixels, a network of
256-50-15-10 units without biases, sigmoid, 1407 steps, Adam. A step is a node's round of the library: people are drawn
independently, clipped gradients are summed, and the library makes the release. The pairs of mechanisms are the paper's,
although their true epsilons differ. A third mechanism has the concentration that `training.release: von_mises_fisher`
chooses for the noise of the Gaussian mechanism. The paper prints a weight decay of 0.1. Only one row uses it, because
it reduces the accuracy to chance.

    python -m papers.directions.compare_utility

Networks of one data set and seed have the same first weights and the same images, and are trained together. They are
stored in results/directions_utility, so that an interrupted comparison continues. Writes utility.csv and utility.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch.nn import functional

from papers.digits import IMAGES, NAMES, SOURCES
from papers.directions.tabulate_capacity import (
    BATCH,
    DELTA,
    DIMENSION,
    RATE,
    STEPS,
    TABLE_4,
    direction_epsilon,
    gaussian_epsilon,
)
from papers.keptruns import KeptRuns, places
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import write_text
from zetadp.base.tables import MISSING, Sheet
from zetadp.privacy.directions import gaussian_bound
from zetadp.privacy.seeded_noise import draw_direction, noisy_mean
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv, to_markdown
from zetadp.tasks.phase_mnist.digits import fetch_digits, read_digits

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from zetadp.tasks.phase_mnist.digits import Part

SEEDS = (0, 1, 2, 3, 4)
SIDE, UNITS = 16, (256, 50, 15, 10)
LEARNING_RATE, WEIGHT_DECAY, CLIP = 0.005, 0.1, 1.0
MOMENTS = {"mnist": (0.1307, 0.3081), "fashion": (0.2860, 0.3530)}
"""Mean and standard deviation of the pixels. Both are in common use, and so public."""
MECHANISMS = {
    "printed_direction": "direction, the paper's κ",
    "direction": "direction, κ for the Gaussian's σ",
    "gaussian": "Gaussian",
    "none": "no noise, no clip",
    "decay": "the same, weight decay 0.1",
}
PRINTED = {
    ("mnist", "printed_direction"): (0.3297, 0.4182, 0.5293, 0.5948, 0.6502, 0.6940, 0.7267, 0.7535),
    ("mnist", "gaussian"): (0.8656, 0.8880, 0.8977, 0.9000, 0.9034, 0.9091, 0.9135, 0.9159),
    ("fashion", "printed_direction"): (0.4495, 0.4365, 0.4592, 0.4967, 0.5227, 0.5487, 0.5756, 0.6003),
    ("fashion", "gaussian"): (0.7489, 0.7879, 0.7980, 0.8025, 0.8089, 0.8139, 0.8189, 0.8204),
    ("mnist", "none"): (0.9399,),
    ("fashion", "none"): (0.8471,),
}
"""Accuracies of Table V at batch 128, by concentration of the pair, and without noise."""
KAPPAS = (75, 100, 150, 200, 250, 300, 350, 400)


@dataclass(frozen=True)
class Run:
    """One training: what tells it from others, as `runs.csv` keeps it; ``pair`` is the paper's kappa."""

    data: str
    mechanism: str
    pair: int
    seed: int

    @property
    def level(self) -> float:
        """Concentration, or noise multiplier."""
        noise = TABLE_4[self.pair][1] if self.pair else math.inf
        if self.mechanism == "direction":
            return gaussian_bound(noise, DIMENSION)
        return float(self.pair) if self.mechanism == "printed_direction" else noise


def declared() -> tuple[str, str]:
    """Return cohorts and seeds."""
    found = "MNIST, 60000 + 10000 images; Fashion-MNIST, 60000 + 10000 images; not simulated"
    return found, ", ".join(map(str, SEEDS))


def together(data: str, seed: int) -> list[Run]:
    """Return the runs of one data set and seed."""
    pairs = product(KAPPAS, ("printed_direction", "direction", "gaussian"))
    noisy = [Run(data, mechanism, pair, seed) for pair, mechanism in pairs]
    return [Run(data, "none", 0, seed), Run(data, "decay", 0, seed), *noisy]


@lru_cache(maxsize=4)
def examples(data: str, part: Part) -> tuple[Tensor, Tensor]:
    """Return images, standardised as in the paper, float32 of shape (image, pixel), and labels.

    MNIST is cropped to its centre, Fashion-MNIST made smaller.
    """
    fetch_digits(IMAGES / data, SOURCES[data])
    found, labels = read_digits(IMAGES / data, part, SOURCES[data])
    images = torch.from_numpy(found.copy())[:, None].float() / 255
    if data == "mnist":
        edge = (images.shape[-1] - SIDE) // 2
        images = images[..., edge : edge + SIDE, edge : edge + SIDE]
    else:
        images = functional.interpolate(images, size=(SIDE, SIDE), mode="bilinear", antialias=True)
    mean, deviation = MOMENTS[data]
    return ((images - mean) / deviation).flatten(1), torch.from_numpy(labels)


def layers(weights: Tensor) -> list[Tensor]:
    """Return the matrices of networks as views of their flat weights, shape (network, weight)."""
    shapes = [(after, before) for before, after in pairwise(UNITS)]
    parts = weights.split([rows * columns for rows, columns in shapes], dim=1)
    return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]


def scores(weights: Tensor, images: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the inputs of each layer, and class scores, of all networks: shape (network, image, unit).

    Images are of shape (image, pixel), or (network, image, pixel) where every network has its own.
    """
    inputs = [images.expand(len(weights), *images.shape[-2:])]
    *hidden, last = layers(weights)
    for layer in hidden:
        inputs.append((inputs[-1] @ layer.mT).sigmoid())
    return inputs, inputs[-1] @ last.mT


def errors_of(weights: Tensor, images: Tensor, labels: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return each layer's errors and inputs. A person's gradient of the layer is their outer product."""
    inputs, found = scores(weights, images)
    errors = [found.softmax(dim=2) - functional.one_hot(labels, UNITS[-1])]
    for layer, after in zip(layers(weights)[:0:-1], inputs[:0:-1], strict=True):
        errors.insert(0, (errors[0] @ layer) * after * (1 - after))
    return errors, inputs


def clipped_sums(weights: Tensor, images: Tensor, labels: Tensor, bounds: Tensor) -> Tensor:
    """Return the sums of the clipped gradients of the cross-entropy, shape (network, weight).

    A person's gradient of a layer is an outer product, so its norm is a product and no gradient is written out.
    """
    errors, inputs = errors_of(weights, images, labels)
    squares = [e.square().sum(2) * x.square().sum(2) for e, x in zip(errors, inputs, strict=True)]
    norms = torch.stack(squares).sum(0).sqrt()
    factors = (bounds[:, None] / norms.clamp_min(1e-12)).clamp_max(1)[..., None]
    return summed([e * factors for e in errors], inputs)


def summed(errors: list[Tensor], inputs: list[Tensor]) -> Tensor:
    """Return the sums of people's gradients, shape (network, weight)."""
    return torch.cat([(e.mT @ x).flatten(1) for e, x in zip(errors, inputs, strict=True)], dim=1)


def released(run: Run, total: Tensor, noise: np.random.Generator) -> Tensor:
    """Return the release for a clipped sum."""
    if not run.pair:
        return total / BATCH
    if run.mechanism == "gaussian":
        return noisy_mean(total, run.level * CLIP, BATCH, noise)
    return draw_direction(total, run.level, noise)


def begun(seed: int) -> Tensor:
    """Return weights before training, float32 of shape (1, weight)."""
    start = stream(seed, Purpose.WEIGHTS)
    parts = [start.uniform(-1, 1, after * before) / math.sqrt(before) for before, after in pairwise(UNITS)]
    return torch.cat([torch.from_numpy(part) for part in parts]).float()[None]


def trained(data: str, seed: int) -> list[float]:
    """Train the networks of one data set and seed, and return their accuracies on the test images, in %."""
    runs, (images, labels) = together(data, seed), examples(data, "train")
    draws, noise = (stream(seed, purpose) for purpose in (Purpose.SAMPLING, Purpose.NOISE))
    weights = begun(seed).repeat(len(runs), 1)
    decays = torch.tensor([WEIGHT_DECAY if run.mechanism == "decay" else 0.0 for run in runs])[:, None]
    bounds = torch.tensor([CLIP if run.pair else math.inf for run in runs])
    optimiser = torch.optim.Adam([weights], lr=LEARNING_RATE)
    for _ in range(STEPS):
        drawn = torch.from_numpy((draws.random(len(images)) < RATE).nonzero()[0])
        totals = clipped_sums(weights, images[drawn], labels[drawn], bounds)
        gradients = [released(run, total, noise) for run, total in zip(runs, totals, strict=True)]
        weights.grad = torch.stack(gradients) + decays * weights
        optimiser.step()
    tested, right = examples(data, "test")
    found = torch.cat([scores(weights, part)[1].argmax(dim=2) for part in tested.split(500)], dim=1)
    return [100 * float(share) for share in (found == right).float().mean(dim=1)]


class Runs(KeptRuns):
    """All runs so far."""

    COLUMNS = ("data", "mechanism", "pair", "seed", "accuracy", "seconds")
    KEYS = 4

    def fill(self) -> None:
        """Make every run that is not there yet."""
        last = [together(data, seed)[-1] for seed, data in product(SEEDS, NAMES)]
        for data, seed in [(run.data, run.seed) for run in self.missing(last)]:
            runs = together(data, seed)
            before = time.process_time()
            accuracies = trained(data, seed)
            each = (time.process_time() - before) / len(runs)
            for run, accuracy in zip(runs, accuracies, strict=True):
                self.add({**vars(run), "accuracy": f"{accuracy:.2f}", "seconds": f"{each:.2f}"})


@lru_cache
def true_epsilon(mechanism: str, pair: int) -> float:
    """Return epsilon of one image for all steps of a mechanism."""
    if not pair:
        return math.inf
    level = Run("", mechanism, pair, 0).level
    return gaussian_epsilon(level) if mechanism == "gaussian" else direction_epsilon(level)


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each data set, mechanism and pair."""
    grouped = runs.groupby(["data", "mechanism", "pair"], sort=False)["accuracy"]
    found = grouped.agg(["mean", "std", "size"]).reset_index()
    found = found.rename(columns={"mean": "accuracy", "std": "accuracy_std", "size": "seeds"})
    kinds = list(zip(found["data"], found["mechanism"], found["pair"], strict=True))
    found["level"] = [Run(*kind, 0).level for kind in kinds]
    found["printed_epsilon"] = [TABLE_4[pair][0] if pair else math.inf for *_, pair in kinds]
    found["true_epsilon"] = [true_epsilon(mechanism, pair) for _, mechanism, pair in kinds]
    found["printed_accuracy"] = [printed(*kind) for kind in kinds]
    return found


def printed(data: str, mechanism: str, pair: int) -> float:
    """Return the accuracy in % that the paper prints, NaN where it prints none."""
    values = PRINTED.get((data, mechanism))
    return math.nan if values is None else 100 * values[KAPPAS.index(pair) if pair else 0]


def sheet(found: pd.DataFrame, made: tuple[str, ...], minutes: float) -> Sheet:
    """Lay the table out."""
    rows = []
    for row in found.sort_values(["data", "pair", "mechanism"], ascending=[False, True, True]).itertuples():
        shown = [MISSING if math.isnan(row.printed_accuracy) else f"{row.printed_accuracy:.2f}"]
        level = f"{row.level:.4g}" if row.pair else MISSING
        epsilons = (f"{row.printed_epsilon:g}", f"{row.true_epsilon:.3g}") if row.pair else ("∞", "∞")
        accuracy = f"{row.accuracy:.2f} ± {row.accuracy_std:.2f}"
        rows.append((NAMES[row.data], MECHANISMS[row.mechanism], level, *epsilons, accuracy, *shown))
    notes = (
        f"Test accuracy in % of 10000 images, mean and standard deviation of {len(SEEDS)} seeds; batch {BATCH} on "
        f"average, {STEPS} steps.",
        f"True ε is per image, at δ = 1/60000 ({DELTA:.3g}), for people drawn by independent coins and images replaced "
        "by zero. The printed one holds for none of these releases. Noise is seeded: a simulation that protects "
        "nobody.",
        "“κ for the Gaussian's σ” is what training.release takes; it costs no more than the Gaussian.",
        "The learning rate is the paper's for all. Nothing was searched.",
        f"All runs took {minutes:.0f} min of processor time.",
        *made,
    )
    headings = ("data", "mechanism", "κ or σ", "printed ε", "true ε", "accuracy", "printed")
    return Sheet("Directions and Gaussian noise: accuracy", headings, tuple(rows), notes, names=2)


def main() -> int:
    """Make the runs that are missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/papers/directions"), help="folder (%(default)s)")
    given = parser.parse_args()
    folder = Path("results/directions_utility")
    folder.mkdir(parents=True, exist_ok=True)
    runs = Runs(folder / "runs.csv")
    runs.fill()
    frame = runs.read()
    found, made = table(frame), origin(*declared(), runs=places(frame))
    write_text(given.output / "utility.csv", to_csv(found, made, float_format="%.5g"))
    write_text(given.output / "utility.md", to_markdown(sheet(found, made, frame["seconds"].sum() / 60)))
    print(f"{given.output}: utility.csv, utility.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
