"""Rebuild whole batches from one message by the paper's own attack on the paper's own network.

    python -m papers.directions.invert_batches

Biswas et al. (arXiv:2502.04045, Tables II, III and VI) invert gradients (Geiping et al. 2020) of a network of
256-50-15-10 units without biases, sigmoid, for batches of 16 to 128 images of MNIST and Fashion-MNIST: 10,000 steps,
the cosine of all layers together. They do not state the size of steps, start, labels or units of pixels. Here they are
what is usual of that attack: Adam on the signs of the gradient at a rate of 0.1, which falls tenfold after 3/8,
5/8 and 7/8 of the steps, a normal start, pixels held in their range, known labels, weights before
training. Pixels are standardised.

The printed error is that of images in the order of the batch. A message does not change if images of one class change
places, so that error cannot show whether any image was rebuilt. The table therefore has the error with the best match
among images of the same class too, and how large that error is against other batches of the same classes, which the
message says nothing about. Their difference is what the message showed of its own images.

A further mechanism is a direction at the true epsilon of the Gaussian. Attacks of a batch under all mechanisms run
together, and are stored in results/directions_inversion, so that an interrupted run continues. Writes inversion.csv,
inversion.md, judged.csv (what orders the errors) and inversion.svg; of some batches or noise levels alone, matched.csv.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment
from scipy.stats import spearmanr

from papers.digits import NAMES, described
from papers.directions.capacity import direction_capacity, gaussian_capacity
from papers.directions.compare_utility import (
    CLIP,
    KAPPAS,
    MOMENTS,
    SIDE,
    clipped_sums,
    errors_of,
    examples,
    first_weights,
    level,
    summed,
    true_epsilon,
)
from papers.directions.sampler import draw_direction
from papers.directions.tabulate_capacity import DIMENSION
from papers.experiments import laid_out, marked, parser_of, save_figure, write_table
from papers.keptruns import KeptRuns, environments
from papers.sizes import by_size, stored
from zetadp.accounting.seeded_noise import noisy_mean
from zetadp.audit.inversion import invert
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import write_text
from zetadp.mri.similarity import ssim
from zetadp.report.figurestyle import SMALL, blank, figure_style, line_look, set_title
from zetadp.report.provenance import origin, seeds_shown
from zetadp.report.rendering import to_csv

if TYPE_CHECKING:
    from collections.abc import Container

    from matplotlib.figure import SubFigure
    from torch import Tensor

SEEDS = (0,)
BATCHES = by_size((128, 16, 64, 32), smoke=(32, 16))
STEPS, SIZE, FALLS = by_size(10_000, smoke=20), 0.1, (3 / 8, 5 / 8, 7 / 8)
ALIKE = by_size((75, 150, 250, 400), smoke=(75,))
"""Pairs for which a direction has the true epsilon of the Gaussian."""
APART = 0.02
"""Least difference of two mean errors that counts as one."""
MECHANISMS = {
    "none": "no noise",
    "clipped": "no noise, clipped",
    "by_layer": "no noise, clipped by layer",
    "gaussian": "Gaussian",
    "printed_direction": "direction, the paper's κ",
    "direction": "direction, ε of the Gaussian",
}
OTHERS = by_size(50, smoke=3)
"""Number of other batches of the same classes; their mean error is the one that the classes alone explain."""
LESS = {"gaussian_10": 10, "gaussian_100": 100}
"""Gaussian noise divided by a number, to see what noise would give the printed errors; only where pairs are named."""
DLG_BATCH, DLG_STEPS, PICTURES = 8, 50, 6
PRINTED = Path(__file__).with_name("printed.csv")
TITLE = "Batches rebuilt from one message"
NOTE = (
    "Errors are mean squared: mse in the order of the batch, matched with the best match in each class, others the "
    f"mean of matched against {OTHERS} other batches of the same classes, and others_std its standard deviation. "
    "DLG (Table III): pixels of [0, 1]; the others: standardised ones. Means over seeds, one batch each. Noise is "
    "seeded and protects nobody."
)


@dataclass(frozen=True)
class Run:
    """One attack: the settings that identify it in `runs.csv`; ``pair`` is the paper's kappa."""

    data: str
    attack: str
    batch: int
    mechanism: str
    pair: int
    seed: int

    @property
    def level(self) -> float:
        """Concentration, or noise multiplier."""
        if self.mechanism in LESS:
            return level("gaussian", self.pair) / LESS[self.mechanism]
        return level(self.mechanism, self.pair)

    @property
    def capacity(self) -> float:
        """Logarithm of Bayes' capacity of the message in nats, for the largest norm that the clipped sum can have."""
        if not self.pair:
            return math.inf
        if self.mechanism.startswith("gaussian"):
            return gaussian_capacity(self.level, self.batch, DIMENSION)
        return direction_capacity(self.level, DIMENSION)

    def message(self, weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Return what the server sees of a batch, float32."""
        if self.mechanism == "by_layer":
            errors, inputs = errors_of(weights, images, labels)
            norms = [e.norm(dim=2) * x.norm(dim=2) for e, x in zip(errors, inputs, strict=True)]
            clipped = [e * (CLIP / norm).clamp_max(1)[..., None] for e, norm in zip(errors, norms, strict=True)]
            return summed(clipped, inputs)[0] / self.batch
        bound = math.inf if self.mechanism == "none" else CLIP
        total = clipped_sums(weights, images, labels, torch.tensor([bound]))[0]
        noise = stream(self.seed, Purpose.NOISE, self.batch, self.pair, *self.mechanism.encode())
        if not self.pair:
            return total / self.batch
        if self.mechanism.startswith("gaussian"):
            return noisy_mean(total, self.level * CLIP, self.batch, noise)
        return draw_direction(total, self.level, noise)


def together(data: str, attack: str, batch: int, seed: int, only: Container[int] = ()) -> list[Run]:
    """Return the attacks on one batch; with ``only``, those without noise and those of these pairs."""
    if attack == "dlg":
        kinds = [("none", 0), ("gaussian", 500), ("printed_direction", 500)]
    else:
        pairs = (*KAPPAS, 500) if batch == max(BATCHES) else KAPPAS
        kinds = [("none", 0), ("clipped", 0), ("by_layer", 0), *product(("gaussian", "printed_direction"), pairs)]
        kinds += [("direction", pair) for pair in ALIKE]
    if only and attack == "iga" and batch == max(BATCHES):
        kinds += product(LESS, KAPPAS)
    kinds_wanted = [(mechanism, pair) for mechanism, pair in kinds if not (only and pair) or pair in only]
    return [Run(data, attack, batch, mechanism, pair, seed) for mechanism, pair in kinds_wanted]


def batches() -> list[tuple[str, str, int, int]]:
    """Return data, attack, batch and seed of everything, in the order in which it is made."""
    cells = [*product(NAMES, ("iga",), BATCHES), *product(NAMES, ("dlg",), (DLG_BATCH,))]
    return [(*batch, seed) for seed in SEEDS for batch in cells]


def standardised(data: str, pixels: Tensor) -> Tensor:
    """Return pixels of [0, 1] in the units in which the network sees them."""
    mean, deviation = MOMENTS[data]
    return (pixels - mean) / deviation


def searched(weights: Tensor, messages: Tensor, labels: Tensor, start: Tensor, limits: Tensor, steps: int) -> Tensor:
    """Return the images, shape (message, image, pixel), whose gradients have the directions of the messages.

    Parameters
    ----------
    weights
        Weights of the network, shape (1, weight).
    messages
        One row each.
    labels
        Class of each image.
    start
        Where the search starts, shape (image, pixel).
    limits
        Smallest and largest value of a pixel.
    steps
        Number of steps.
    """
    images = start.repeat(len(messages), 1, 1).requires_grad_()
    optimiser = torch.optim.Adam([images], lr=SIZE)
    rate = torch.optim.lr_scheduler.MultiStepLR(optimiser, [int(fall * steps) for fall in FALLS], 0.1)
    networks, seen = weights.expand(len(messages), -1), messages / messages.norm(dim=1, keepdim=True)
    for _ in range(steps):
        gradients = summed(*errors_of(networks, images, labels))
        cost = -((gradients * seen).sum(dim=1) / gradients.norm(dim=1)).sum()
        images.grad = torch.autograd.grad(cost, images)[0].sign_()
        optimiser.step()
        rate.step()
        with torch.no_grad():
            images.clamp_(*limits)
    return images.detach()


def nearest(weights: Tensor, message: Tensor, labels: Tensor, data: str, seed: int) -> Tensor:
    """Return pixels whose mean gradient is nearest to a message (DLG, Zhu et al. 2019, with known labels).

    The search starts from numbers with the mean and the spread of uniform pixels.
    """
    known = weights.double()

    def pixels(numbers: Tensor) -> Tensor:
        return 0.5 + numbers / math.sqrt(12)

    def gradient(numbers: Tensor) -> Tensor:
        return summed(*errors_of(known, standardised(data, pixels(numbers)), labels))[0] / len(labels)

    shape = (len(labels), SIDE * SIDE)
    start = torch.Generator().manual_seed(seed)
    return pixels(invert(message, gradient, shape, start, steps=DLG_STEPS, objective="euclidean"))


def attacked(runs: list[Run], steps: int = STEPS) -> tuple[list[dict[str, float]], Tensor]:
    """Attack one batch under several mechanisms; return the scores, and the images found as pixels of [0, 1]."""
    data, attack, batch, seed = runs[0].data, runs[0].attack, runs[0].batch, runs[0].seed
    images, labels = examples(data, "train")
    members = torch.from_numpy(stream(seed, Purpose.SAMPLING, batch).choice(len(images), batch, replace=False))
    true, classes, weights = images[members], labels[members], first_weights(seed)
    mean, deviation = MOMENTS[data]
    messages = torch.stack([run.message(weights, true, classes) for run in runs])
    others = other_batches(images, labels, members, seed)
    if attack == "dlg":
        rebuilt = [nearest(weights, message, classes, data, seed) for message in messages]
        pictures = torch.stack(rebuilt).float().clamp(0, 1)  # under noise this search leaves every range
        true, others = true * deviation + mean, others * deviation + mean
        return [scores(true, x, true, x, classes, others) for x in pictures], pictures
    start = torch.from_numpy(stream(seed, Purpose.PAIRING, batch).standard_normal(true.shape, dtype=np.float32))
    limits = standardised(data, torch.tensor([0.0, 1.0]))
    rebuilt = searched(weights, messages, classes, start, limits, steps)
    pictures = rebuilt * deviation + mean
    pixels = true * deviation + mean
    return [scores(true, x, pixels, p, classes, others) for x, p in zip(rebuilt, pictures, strict=True)], pictures


def other_batches(images: Tensor, labels: Tensor, batch_members: Tensor, seed: int) -> Tensor:
    """Return other batches with the classes of the drawn one, shape (batch, image, pixel), without its images."""
    random = stream(seed, Purpose.BOOTSTRAP, len(batch_members))
    batches = torch.empty(OTHERS, len(batch_members), images.shape[1])
    free = torch.ones(len(images), dtype=torch.bool)
    free[batch_members] = False
    classes = labels[batch_members]
    for number in classes.unique():
        members = (free & (labels == number)).nonzero()[:, 0].numpy()
        positions = classes == number
        for batch in batches:
            batch[positions] = images[random.choice(members, int(positions.sum()), replace=False)]
    return batches


def costs_of(true: Tensor, rebuilt: Tensor) -> Tensor:
    """Return the mean squared error of every image found against every true one."""
    return torch.cdist(true, rebuilt).square() / true.shape[1]


def matched(true: Tensor, rebuilt: Tensor, classes: Tensor) -> float:
    """Return the mean squared error with the best match among images of the same class."""
    costs = costs_of(true, rebuilt)
    barred = torch.where(classes[:, None] == classes, costs, math.inf)
    rows, columns = linear_sum_assignment(barred.nan_to_num(posinf=1e6).numpy())
    return float(costs[rows, columns].mean())


def scores(
    true: Tensor, rebuilt: Tensor, pixels: Tensor, shown_pixels: Tensor, classes: Tensor, others: Tensor
) -> dict[str, float]:
    """Return errors of images in the network's units, and their similarity as pixels of [0, 1]."""
    by_chance = [matched(batch, rebuilt, classes) for batch in others]
    pictures = (part.unflatten(1, (SIDE, SIDE)).double().numpy() for part in (pixels, shown_pixels))
    return {
        "mse": float(costs_of(true, rebuilt).diagonal().mean()),
        "matched": matched(true, rebuilt, classes),
        "others": float(np.mean(by_chance)),
        "others_std": float(np.std(by_chance)),
        "ssim": float(ssim(*pictures, peak=1.0).mean()),
    }


def fill(store: KeptRuns[Run], sets: Container[str], sizes: Container[int], only: Container[int]) -> None:
    """Make every attack on these batches that is not there yet, and keep pictures of the first large batches."""
    for batch in batches():
        runs = together(*batch, only)
        if batch[0] not in sets or batch[2] not in sizes or not [*store.missing(runs)]:
            continue
        before = time.process_time()
        errors, pictures = attacked(runs)
        seconds = (time.process_time() - before) / len(runs)
        if batch[1:] == ("iga", max(BATCHES), SEEDS[0]) and not only:
            np.save(store.path.with_name(f"{batch[0]}.npy"), pictures[:, :PICTURES].numpy())
        for run, scores_of_run in zip(runs, errors, strict=True):
            store.add(run, **{name: f"{value:.4f}" for name, value in scores_of_run.items()}, seconds=f"{seconds:.1f}")


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each data set, attack, batch, mechanism and pair, with what the paper prints."""
    keys = ["data", "attack", "batch", "mechanism", "pair"]
    frame = runs.groupby(keys, sort=False).agg(
        mse=("mse", "mean"), spread=("mse", "std"), matched=("matched", "mean"), others=("others", "mean"),
        others_std=("others_std", "mean"), ssim=("ssim", "mean"), seeds=("seed", "nunique"),
    ).reset_index()  # fmt: skip
    runs_of_rows = [Run(*key, 0) for key in frame[keys].itertuples(index=False, name=None)]
    frame["level"] = [run.level if run.pair else math.nan for run in runs_of_rows]
    frame["epsilon"] = [
        math.nan if run.mechanism in LESS else true_epsilon(run.mechanism, run.pair) for run in runs_of_rows
    ]
    frame["capacity"] = [run.capacity for run in runs_of_rows]
    printed = pd.read_csv(PRINTED, comment="#").rename(columns={"mse": "printed_mse", "ssim": "printed_ssim"})
    return frame.merge(printed, how="left", on=keys)


def count_ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Count the pairs of errors that each measure orders, at an equal network and batch.

    ``epsilon`` and ``capacity`` are rank correlations with the error over all noisy settings. ``pairs`` counts a
    Gaussian and a direction whose errors differ by `APART`, and how many of them each measure orders; ``alike``
    counts those of equal true epsilon, which epsilon cannot order. ``gaussians`` and ``directions`` count pairs of one
    mechanism, directions with the paper's kappas, and how many of them capacity orders; epsilon orders the same ones.
    """
    rows = []
    noisy = frame[(frame["attack"] == "iga") & (frame["pair"] > 0)]
    for (data, batch), rows_of_batch in noisy.groupby(["data", "batch"], sort=False):
        row = {"data": data, "batch": batch, "settings": len(rows_of_batch)}
        row |= {
            name: spearmanr(rows_of_batch[name], -rows_of_batch["mse"]).statistic for name in ("epsilon", "capacity")
        }
        gaussian = rows_of_batch["mechanism"] == "gaussian"
        gaussian_and_direction = product(rows_of_batch[gaussian].itertuples(), rows_of_batch[~gaussian].itertuples())
        apart = [(a, b) for a, b in gaussian_and_direction if abs(a.mse - b.mse) > APART]
        alike = [(a, b) for a, b in apart if b.mechanism == "direction" and a.pair == b.pair]
        row |= {"pairs": len(apart)} | {f"{name}_orders": ordered(apart, name) for name in ("epsilon", "capacity")}
        row |= {"alike": len(alike), "capacity_orders_alike": ordered(alike, "capacity")}
        for name, mechanism in (("gaussians", "gaussian"), ("directions", "printed_direction")):
            pairs = combinations(rows_of_batch[rows_of_batch["mechanism"] == mechanism].itertuples(), 2)
            apart = [(a, b) for a, b in pairs if abs(a.mse - b.mse) > APART]
            row |= {name: len(apart), f"capacity_orders_{name}": ordered(apart, "capacity")}
        rows.append(row)
    return pd.DataFrame(rows)


def ordered(pairs: list[tuple[Any, Any]], name: str) -> int:
    """Return in how many pairs the setting with more of a measure has the smaller error."""
    return sum((getattr(a, name) > getattr(b, name)) == (a.mse < b.mse) for a, b in pairs)


def figure(frame: pd.DataFrame, folder: Path) -> Figure:
    """Draw the first images of a large batch as each message shows them, and errors against epsilon and capacity."""
    with figure_style():
        canvas = blank(8.2, h_pad=0.06, w_pad=0.06)
        parts = canvas.subfigures(2, 1, height_ratios=(1.2, 1))
        for part, data in zip(parts[0].subfigures(1, 2), NAMES, strict=True):
            pictures(part, data, np.load(folder / f"{data}.npy"))
        for line, data in zip(parts[1].subplots(1, 4, sharey=False).reshape(2, 2), NAMES, strict=True):
            rows_of_data = frame[(frame["data"] == data) & (frame["batch"] == max(BATCHES)) & (frame["pair"] > 0)]
            for panel, name in zip(line, ("epsilon", "capacity"), strict=True):
                for number, mechanism in enumerate(("gaussian", "printed_direction", "direction")):
                    rows = rows_of_data[rows_of_data["mechanism"] == mechanism]
                    look = line_look(number) | {"linestyle": ""}
                    panel.plot(rows[name], rows["mse"], label=MECHANISMS[mechanism], **look)
                panel.set(xscale="log", xlabel="true ε" if name == "epsilon" else "log capacity, nats")
            line[0].set_ylabel(f"error (MSE), {NAMES[data]}")
        parts[1].legend(*line[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        set_title(canvas, f"What one message of {max(BATCHES)} images shows, and which figure orders it")
    return canvas


def pictures(part: SubFigure, data: str, rebuilt: np.ndarray) -> None:
    """Draw true images, and as they are rebuilt under a few mechanisms."""
    runs = together(data, "iga", max(BATCHES), SEEDS[0])
    images = examples(data, "train")[0]
    members = stream(SEEDS[0], Purpose.SAMPLING, max(BATCHES)).choice(len(images), max(BATCHES), replace=False)
    lines = {"true": images[members[:PICTURES]].numpy()}
    for run, pixels in zip(runs, rebuilt, strict=True):
        if run.pair in {0, 75, 500} and run.mechanism in MECHANISMS and run.mechanism not in {"by_layer", "direction"}:
            symbol = "σ" if run.mechanism == "gaussian" else "κ"
            lines[f"{symbol} = {run.level:g}" if run.pair else MECHANISMS[run.mechanism]] = pixels
    panels = part.subplots(len(lines), PICTURES)
    for row, (name, images_of_line) in zip(panels, lines.items(), strict=True):
        for panel, image in zip(row, images_of_line, strict=True):
            panel.imshow(image.reshape(SIDE, SIDE), cmap="gray_r")
            panel.set(xticks=[], yticks=[])
        row[0].set_ylabel(name, fontsize=SMALL, rotation=0, ha="right", va="center")


def main() -> None:
    """Make the attacks that are missing, and write tables and figure."""
    parser = parser_of(__doc__, "directions")
    sizes = [*BATCHES, DLG_BATCH]
    parser.add_argument("--data", nargs="*", default=list(NAMES), choices=NAMES, help="images (all)")
    parser.add_argument("--batches", type=int, nargs="*", default=sizes, choices=sizes, help="batches (all)")
    parser.add_argument("--pairs", type=int, nargs="*", default=[], choices=KAPPAS, help="noise levels (all)")
    arguments = parser.parse_args()
    folder = stored("directions_inversion")
    store = KeptRuns(folder / "runs.csv", Run, "mse", "matched", "others", "others_std", "ssim", "seconds")
    fill(store, arguments.data, arguments.batches, arguments.pairs)
    frame = store.read()
    cohorts = described("MNIST and Fashion-MNIST, training images, not simulated")
    errors, source = table(frame), origin(cohorts, seeds_shown(SEEDS), runs=environments(frame))
    if arguments.pairs or {*arguments.data, *arguments.batches} < {*NAMES, *sizes}:
        write_table(arguments.output / "matched", errors, laid_out(TITLE, errors, (NOTE,)), source)
        return
    write_table(arguments.output / "inversion", errors, laid_out(TITLE, errors, (NOTE,)), source)
    write_text(
        arguments.output / "judged.csv",
        to_csv(count_ordered(errors), (NOTE, *marked(source)), float_format="%.3g"),
    )
    save_figure(figure(errors, folder), arguments.output / "inversion.svg")
    print(f"{arguments.output}: inversion.csv, judged.csv, inversion.md, inversion.svg")


if __name__ == "__main__":
    main()
