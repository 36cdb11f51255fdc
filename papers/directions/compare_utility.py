"""Measure the accuracy of networks trained with directions, with Gaussian noise and without noise.

This repeats Table V of Biswas et al. (arXiv:2502.04045): MNIST and Fashion-MNIST at 16 x 16 pixels, a network of
256-50-15-10 units without biases, sigmoid, three epochs in batches of 16 to 128, Adam. A step is a node's round of the
library: people are drawn independently, clipped gradients are summed, and the library makes the release. The pairs of
mechanisms are the paper's, although their true epsilons differ. A third mechanism has the concentration that
`training.mechanism: von_mises_fisher` chooses for the noise of the Gaussian mechanism. The paper prints a weight decay
of 0.1. In the gradient of Adam it reduces the accuracy to chance, so a single row has it there. Some rows have it apart
from the gradient (AdamW).

    python -m papers.directions.compare_utility

Networks of one data set, batch and seed have the same first weights and the same images, and are trained together. They
are stored in results/directions_utility, so that an interrupted comparison continues. Writes utility (batches of 128)
and utility_small, each as .csv and .md.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch.nn import functional

from papers import digits
from papers.digits import NAMES
from papers.directions.mechanism import gaussian_bound
from papers.directions.sampler import draw_direction
from papers.directions.tabulate_capacity import (
    BATCH,
    DELTA,
    DIMENSION,
    RECORDS,
    TABLE_4,
    direction_epsilon,
    gaussian_epsilon,
    steps_of,
)
from papers.experiments import laid_out, parser_of, write_table
from papers.keptruns import KeptRuns, environments
from papers.sizes import by_size, stored
from zetadp.accounting.seeded_noise import noisy_mean
from zetadp.base.randomness import Purpose, stream
from zetadp.report.provenance import origin, seeds_shown

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from papers.complex_dp.phase_mnist.task import Part

SEEDS = {128: (0, 1, 2, 3, 4), 64: (0,), 32: (0,), 16: (0,)}
"""Seeds by size of a batch."""
SIDE, UNITS = 16, (256, 50, 15, 10)
LEARNING_RATE, WEIGHT_DECAY, CLIP = 0.005, 0.1, 1.0
MOMENTS = {"mnist": (0.1307, 0.3081), "fashion": (0.2860, 0.3530)}
"""Mean and standard deviation of the pixels. Both are in common use, and so public."""
PRINTED = Path(__file__).with_name("printed_accuracy.csv")
KAPPAS = by_size((75, 100, 150, 200, 250, 300, 350, 400), smoke=(75, 400))
KAPPAS_APART = by_size((75, 150, 400), smoke=(75,))
"""Pairs that are also trained with AdamW."""
TITLE = "Directions and Gaussian noise: accuracy"
NOTES = (
    "Test accuracy in % of 10000 images. The paper names no seeds. level: kappa or sigma. True ε is per image, at δ = "
    f"1/60000 ({DELTA:.3g}), for people drawn by independent coins and images replaced by zero.",
    "“direction” has the κ that training.mechanism takes for the Gaussian's σ; it costs no more than the Gaussian. The "
    "learning rate is the paper's for all. Nothing was searched. Noise is seeded: a simulation that protects nobody.",
)


@dataclass(frozen=True)
class Run:
    """One training run: the settings that identify it in `runs.csv`.

    Attributes
    ----------
    data, batch, seed
        Images, size of a batch and seed.
    mechanism
        ``gaussian``, ``printed_direction`` (the paper's concentration), ``direction`` (that for the Gaussian's noise)
        or ``none`` (neither noise nor clipping).
    pair
        The paper's concentration; zero without noise.
    decay
        Where the weight decay acts: ``none``, ``gradient`` (Adam) or ``apart`` (AdamW).
    """

    data: str
    batch: int
    mechanism: str
    pair: int
    decay: str
    seed: int


def level(mechanism: str, pair: int) -> float:
    """Return the concentration, or the noise multiplier, of a mechanism; infinity without noise."""
    noise = TABLE_4[pair][1] if pair else math.inf
    if mechanism == "direction":
        return gaussian_bound(noise, DIMENSION)
    return float(pair) if mechanism == "printed_direction" else noise


def together(data: str, batch: int, seed: int) -> list[Run]:
    """Return the runs of one data set, batch and seed."""
    pairs = product(KAPPAS, ("printed_direction", "direction", "gaussian"))
    kinds = [("none", 0, "none"), ("none", 0, "gradient"), *((mechanism, pair, "none") for pair, mechanism in pairs)]
    apart = product(KAPPAS_APART, ("printed_direction", "gaussian"))
    kinds += [("none", 0, "apart"), *((mechanism, pair, "apart") for pair, mechanism in apart)]
    return [Run(data, batch, *kind, seed) for kind in kinds]


@lru_cache(maxsize=4)
def examples(data: str, part: Part) -> tuple[Tensor, Tensor]:
    """Return images, standardised as in the paper, float32 of shape (image, pixel), and labels.

    MNIST is cropped to its centre, Fashion-MNIST made smaller.
    """
    pixels, labels = digits.images(data, part)
    images = torch.from_numpy(pixels.copy())[:, None].float() / 255
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
    inputs, outputs = scores(weights, images)
    errors = [outputs.softmax(dim=2) - functional.one_hot(labels, UNITS[-1])]
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
        return total / run.batch
    if run.mechanism == "gaussian":
        return noisy_mean(total, level(run.mechanism, run.pair) * CLIP, run.batch, noise)
    return draw_direction(total, level(run.mechanism, run.pair), noise)


def first_weights(seed: int) -> Tensor:
    """Return weights before training, float32 of shape (1, weight)."""
    start = stream(seed, Purpose.WEIGHTS)
    parts = [start.uniform(-1, 1, after * before) / math.sqrt(before) for before, after in pairwise(UNITS)]
    return torch.cat([torch.from_numpy(part) for part in parts]).float()[None]


def trained(data: str, batch: int, seed: int) -> list[float]:
    """Train the networks of one data set, batch and seed, and return their accuracies on the test images, in %."""
    runs, (images, labels) = together(data, batch, seed), examples(data, "train")
    draws = stream(seed, Purpose.SAMPLING)
    noises = {decay: stream(seed, Purpose.NOISE, *extra) for decay, extra in (("none", ()), ("apart", (1,)))}
    weights = first_weights(seed).repeat(len(runs), 1)
    decays, apart = (
        torch.tensor([WEIGHT_DECAY if run.decay == name else 0.0 for run in runs])[:, None]
        for name in ("gradient", "apart")
    )
    bounds = torch.tensor([CLIP if run.pair else math.inf for run in runs])
    optimiser = torch.optim.Adam([weights], lr=LEARNING_RATE)
    for _ in range(steps_of(batch)):
        members = torch.from_numpy((draws.random(len(images)) < batch / len(images)).nonzero()[0])
        totals = clipped_sums(weights, images[members], labels[members], bounds)
        gradients = [
            released(run, total, noises["apart" if run.decay == "apart" else "none"])
            for run, total in zip(runs, totals, strict=True)
        ]
        weights.grad = torch.stack(gradients) + decays * weights
        weights.mul_(1 - LEARNING_RATE * apart)
        optimiser.step()
    tested, right = examples(data, "test")
    predictions = torch.cat([scores(weights, part)[1].argmax(dim=2) for part in tested.split(500)], dim=1)
    return [100 * float(share) for share in (predictions == right).float().mean(dim=1)]


def fill(store: KeptRuns[Run], batches: list[int], seeds: int) -> None:
    """Make every run with these batches and the first seeds that is not there yet, first those of the first seed."""
    combinations = product(SEEDS[BATCH][:seeds], batches, NAMES)
    batches_wanted = [(data, batch, seed) for seed, batch, data in combinations if seed in SEEDS[batch]]
    for run in [*store.missing(together(*combination)[-1] for combination in batches_wanted)]:
        runs = together(run.data, run.batch, run.seed)
        before = time.process_time()
        accuracies = trained(run.data, run.batch, run.seed)
        seconds = (time.process_time() - before) / len(runs)
        for member, accuracy in zip(runs, accuracies, strict=True):
            store.add(member, accuracy=f"{accuracy:.2f}", seconds=f"{seconds:.2f}")


@lru_cache
def true_epsilon(mechanism: str, pair: int, batch: int = BATCH) -> float:
    """Return epsilon of one image for all steps of a mechanism."""
    if not pair:
        return math.inf
    cost = gaussian_epsilon if mechanism == "gaussian" else direction_epsilon
    return cost(level(mechanism, pair), steps_of(batch), batch / RECORDS)


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each data set, batch, mechanism, pair and decay, with what the paper prints."""
    keys = ["data", "batch", "mechanism", "pair", "decay"]
    grouped = runs.groupby(keys, sort=False)["accuracy"]
    frame = grouped.agg(accuracy="mean", accuracy_std="std", seeds="size").reset_index()
    kinds = list(zip(frame["mechanism"], frame["pair"], frame["batch"], strict=True))
    frame["level"] = [level(mechanism, pair) for mechanism, pair, _ in kinds]
    frame["printed_epsilon"] = [TABLE_4[pair][0] if pair else math.inf for _, pair, _ in kinds]
    frame["true_epsilon"] = [true_epsilon(*kind) for kind in kinds]
    return frame.merge(pd.read_csv(PRINTED, comment="#"), how="left", on=keys[:4])


def main() -> None:
    """Make the runs that are missing, and write the table."""
    parser = parser_of(__doc__, "directions")
    parser.add_argument(
        "--batches", type=int, nargs="*", default=[128, 64, 32], choices=SEEDS, help="batches (%(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS[BATCH]), help="number of seeds, at most (%(default)s)")
    arguments = parser.parse_args()
    store = KeptRuns(stored("directions_utility") / "runs.csv", Run, "accuracy", "seconds")
    fill(store, arguments.batches, arguments.seeds)
    frame = store.read()
    for name, part in (("utility", frame[frame["batch"] == BATCH]), ("utility_small", frame[frame["batch"] < BATCH])):
        if len(part):
            minutes = f"All runs took {part['seconds'].sum() / 60:.0f} min of processor time."
            cohorts = digits.described("MNIST and Fashion-MNIST, 60000 + 10000 images each, not simulated")
            accuracies, source = table(part), origin(cohorts, seeds_shown(part["seed"]), runs=environments(part))
            write_table(arguments.output / name, accuracies, laid_out(TITLE, accuracies, (*NOTES, minutes)), source)


if __name__ == "__main__":
    main()
