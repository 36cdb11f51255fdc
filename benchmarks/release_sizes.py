"""Released rows beside private descent as classes become many, and people: where rows win, and where not.

    python benchmarks/release_sizes.py

Heads on the public encoder's features of MNIST, and for twenty classes of Fashion-MNIST as well, at epsilon 1. People
are training images; other training images test, and no test image is read. Private descent may choose the best of
two rates by these, which favours it. Writes sizes.csv and sizes.svg.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from release_inputs import features, images
from release_mnist import DELTA, METHODS, accuracy, descent, real_parts, released_rows
from scenarios import ended

from zetadp.feature_release.heads import learnt_head
from zetadp.feature_release.moments import ClassMoments, nearest_mean
from zetadp.feature_release.release import ReleaseSettings
from zetadp.privacy import gaussian
from zetadp.randomness import Purpose, stream
from zetadp.report.figurestyle import SMALL, WIDTH, figure_style, line_look, save_svg, set_title, wrapped
from zetadp.report.provenance import origin, seeds_shown
from zetadp.report.rendering import to_csv
from zetadp.storage import write_text

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1.0
SEEDS = range(2)
CLASSES, OF_CLASSES = (2, 10, 20), 4000
"""Numbers of classes, and people in all."""
PEOPLE, OF_PEOPLE = (500, 4000, 8000), 10
"""Numbers of people, and classes."""
TESTED = 2000
"""The last training images of each data set, which test."""
RATES = (30.0, 300.0)
COMPARED = ("rows", "open_rows", "means", "gradients")


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return "MNIST and Fashion-MNIST, training images, not simulated", seeds_shown(SEEDS)


def split(classes: int, people: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features and labels of people, as many of each class, and of those who test."""
    random, parts = stream(seed, Purpose.IMAGES, classes, people), []
    for number in range(classes):
        data, own = ("mnist", number) if number < 10 else ("fashion", number - 10)
        labels = images(data, "train")[1]
        there = np.flatnonzero(labels == own)
        trained = random.permutation(there[there < len(labels) - TESTED])[: people // classes]
        tests = there[there >= len(labels) - TESTED]
        x = torch.from_numpy(features(data, "encoder", "train"))
        parts.append((x[trained], torch.full((len(trained),), number), x[tests], torch.full((len(tests),), number)))
    x, labels, tests, wanted = (torch.cat(part) for part in zip(*parts, strict=True))
    return x, labels, tests, wanted


def compared(classes: int, people: int, seed: int) -> list[dict[str, object]]:
    """Return the accuracy of each method."""
    x, labels, tests, wanted = split(classes, people, seed)
    found = {}
    for method, active in (("rows", 1.0), ("open_rows", min(1.0, 3 / classes))):
        settings = ReleaseSettings(
            EPSILON, DELTA, people=people, classes=classes, active=active, cohort=f"{classes}-{people}-{seed}"
        )
        found[method] = accuracy(real_parts(learnt_head(released_rows(x, labels, settings)[0])), tests, wanted)
    moments, mu = ClassMoments(classes), gaussian.mu(EPSILON, DELTA)
    sums = moments.released(x, labels, mu, stream(seed, Purpose.NOISE))
    weight, bias = nearest_mean(moments.means(sums))
    found["means"] = accuracy((weight.float(), bias.float()), tests, wanted)
    found["gradients"] = max(accuracy(descent(x, labels, EPSILON, rate, seed), tests, wanted) for rate in RATES)
    sizes = {"classes": classes, "people": people, "seed": seed}
    return [{**sizes, "method": method, "accuracy": value} for method, value in found.items()]


def drawn(found: pd.DataFrame) -> Figure:
    """Draw accuracy against classes and against people."""
    with figure_style():
        figure = Figure(figsize=(WIDTH, 4.6))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
        sides = (
            ("classes", found[found["people"] == OF_CLASSES], f"{OF_CLASSES} people", CLASSES),
            ("people", found[found["classes"] == OF_PEOPLE], "ten classes", PEOPLE),
        )
        for panel, (axis, rows, name, places) in zip(figure.subplots(1, 2, sharey=True), sides, strict=True):
            for index, method in enumerate(COMPARED):
                own = rows[rows["method"] == method].groupby(axis)["accuracy"].agg(["mean", "std"])
                panel.errorbar(own.index, own["mean"], own["std"], label=METHODS[method], capsize=2, **line_look(index))
            panel.set_xscale("log")
            panel.set_xticks(places, [str(place) for place in places])
            panel.minorticks_off()
            panel.set_xlabel(axis)
            panel.set_title(name, loc="left")
        figure.axes[0].set_ylabel("accuracy in %")
        figure.axes[0].legend(fontsize=SMALL, frameon=False)
        set_title(figure, f"Released rows and private descent at ε = {EPSILON:g} per image, simulated noise")
        text = (
            f"Heads on public features, δ = {DELTA:g}, mean of two seeds; bars: ± one standard deviation. Private "
            "descent has the best of two rates, chosen by the images that test."
        )
        figure.supxlabel(wrapped(text, SMALL, 0.97 * WIDTH), x=0.01, ha="left", fontsize=SMALL)
    return figure


def main() -> None:
    """Compare, and write table and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results/release"))
    given = parser.parse_args()
    sizes = sorted({*((classes, OF_CLASSES) for classes in CLASSES), *((OF_PEOPLE, people) for people in PEOPLE)})
    rows = []
    for classes, people in sizes:
        for seed in SEEDS:
            rows += compared(classes, people, seed)
        print(pd.DataFrame(rows[-4 * len(SEEDS) :]).groupby("method")["accuracy"].mean().round(2).to_dict(), flush=True)
    found = pd.DataFrame(rows)
    write_text(given.output / "sizes.csv", to_csv(found, origin(*declared()), float_format="%.2f"))
    save_svg(drawn(found), given.output / "sizes.svg")


if __name__ == "__main__":
    ended(main)
