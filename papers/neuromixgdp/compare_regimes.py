"""Find out when released rows are better than private descent, for numbers of classes, people and data holders.

    python -m papers.neuromixgdp.compare_regimes

The classes are the digits of MNIST, then the clothes of Fashion-MNIST. The features are those of the public encoder.
Each person has one image. All people belong to one data holder or are divided among eleven, and each holder adds its
own noise. All methods have the same true epsilon. For every number of people and holders, the learning rate of private
descent is the best on simulated digits. Rows and class means have no setting to choose. A head is fitted to rows once
with the known noise subtracted and once without. Heads are tested on training images that no person contributed. Each
run is stored in results/release_mnist, so that an interrupted comparison continues. Writes regimes.csv, regimes.md and
regimes.svg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import pandas as pd
import torch

from papers.complex_dp.phase_mnist.encoder import simulated_digits
from papers.digits import KEPT, TESTED, described, encoder, split
from papers.experiments import ended, parser_of, save_figure, write_table
from papers.keptruns import KeptRuns, environments
from papers.neuromixgdp.compare_mnist import DELTA, accuracy, descent, real_parts, released_rows
from papers.neuromixgdp.moments import ClassMoments, nearest_mean
from papers.sizes import by_size
from zetadp.accounting import gaussian
from zetadp.base.randomness import Purpose, stream
from zetadp.base.tables import MISSING, Sheet
from zetadp.base.validation import UserError
from zetadp.nn.heads import RowExamples, fit_head_to_rows
from zetadp.report.figurestyle import (
    SMALL,
    WIDTH,
    figure_style,
    line_look,
    name_panel,
    panel_grid,
    set_legend,
    set_title,
    wrap_text,
)
from zetadp.report.provenance import origin, seeds_shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure
    from torch import Tensor

EPSILON = 1.0
CLASSES = by_size((5, 10, 20), smoke=(5, 10))
PEOPLE = by_size((1000, 4000, 16_000), smoke=(100, 200))
HOLDERS = by_size((1, 11), smoke=(1, 2))
SEEDS = by_size((0, 1, 2), smoke=(0,))
RATES = by_size((3.0, 10.0, 30.0, 100.0, 300.0), smoke=(3.0, 30.0))
OPEN = 3
"""Average number of classes that a row is open to, under hierarchical sampling."""
METHODS = {
    "gradients": "private descent of a head",
    "means": "noisy class means",
    "open_rows": "released rows, hierarchical sampling",
    "rows": "released rows, Poisson sampling",
    "plain_open_rows": "the same hierarchical rows, noise not subtracted",
    "plain_rows": "the same Poisson rows, noise not subtracted",
}
DRAWN = tuple(METHODS)[:4]
"""Methods in the figure."""


@dataclass(frozen=True)
class Run:
    """One head: the settings that identify it."""

    classes: int
    people: int
    holders: int
    method: str
    seed: int


def all_runs() -> Iterator[Run]:
    """Return all runs."""
    for values in product(CLASSES, PEOPLE, HOLDERS, METHODS, SEEDS):
        yield Run(*values)


def head_of(run: Run, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return real weight and bias of the head that a method learns from all holders."""
    mu, random = gaussian.mu(EPSILON, DELTA), stream(run.seed, Purpose.NOISE)
    if run.method == "gradients":
        rate = chosen_rate(run.people, run.holders)
        return descent(x, labels, EPSILON, rate, run.seed, run.holders)
    parts = list(zip(x.tensor_split(run.holders), labels.tensor_split(run.holders), strict=True))
    if run.method == "means":
        moments = ClassMoments(run.classes)
        sums = sum(moments.released(*part, mu, random) for part in parts)
        weight, bias = nearest_mean(moments.means(sums))
        return weight.float(), bias.float()
    rows = join_releases([rows_of(run, holder, *part) for holder, part in enumerate(parts)])
    return real_parts(fit_head_to_rows(RowExamples(*rows[:2]) if run.method.startswith("plain") else rows))


def rows_of(run: Run, holder: int, x: Tensor, labels: Tensor) -> RowExamples:
    """Return the examples in the rows of one holder, who releases as many rows as people."""
    cohort = f"regimes-{run.classes}-{run.people}-{run.holders}-{holder}-{run.seed}"
    active = OPEN / run.classes if run.method.endswith("open_rows") else 1.0
    return released_rows(x, labels, cohort, epsilon=EPSILON, delta=DELTA, classes=run.classes, active=active)[0]


def join_releases(releases: list[RowExamples]) -> RowExamples:
    """Return the rows of all holders as one release, whose noise is the mean over its rows.

    The head subtracts the noise from second moments, in which variances add up.
    """
    features, labels = (torch.cat([release[part] for release in releases]) for part in (0, 1))
    return RowExamples(features, labels, sum(len(rows.labels) * rows.noise for rows in releases) / len(labels))


@lru_cache
def chosen_rate(people: int, holders: int) -> float:
    """Return the best rate of private descent on equally many simulated digits of equally many holders."""
    accuracies = []
    digits, labels = public_digits()
    people_alike = slice(None, people)
    for rate in RATES:
        head = descent(digits[people_alike], labels[people_alike], EPSILON, rate, 0, holders)
        accuracies.append(accuracy(head, digits[PEOPLE[-1] :], labels[PEOPLE[-1] :]))
    return RATES[accuracies.index(max(accuracies))]


@lru_cache
def public_digits() -> tuple[Tensor, Tensor]:
    """Return features and labels of simulated digits: as many as the largest number of people, and more for testing."""
    digits, labels = simulated_digits(PEOPLE[-1] + TESTED, encoder().recipe["seed"], 10_001)
    return encoder().unit_features(digits), labels


def fill(store: KeptRuns[Run]) -> None:
    """Make every run that is not stored yet."""
    for run in store.missing(all_runs()):
        x, labels, tests, test_labels = split(run.classes, run.people, run.seed)
        # Those of one class come one after the other; every holder gets some of each.
        order = torch.from_numpy(stream(run.seed, Purpose.PARTITION, run.classes, run.people).permutation(len(x)))
        try:
            reached = accuracy(head_of(run, x[order], labels[order]), tests, test_labels)
        except UserError:  # so few people allow no degree of mixing
            reached = math.nan
        rate = chosen_rate(run.people, run.holders) if run.method == "gradients" else math.nan
        store.add(run, rate=rate, accuracy=f"{reached:.2f}")
        print(run, f"{reached:.2f}", flush=True)


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each number of classes, people and holders, and method."""
    groups = runs.groupby(["classes", "people", "holders", "method"])
    frame = groups.agg(
        mean=("accuracy", "mean"), std=("accuracy", "std"), seeds=("seed", "size"), rate=("rate", "first")
    )
    return frame.reindex(
        pd.MultiIndex.from_product((CLASSES, PEOPLE, HOLDERS, METHODS), names=frame.index.names)
    ).reset_index()


def sheet(frame: pd.DataFrame) -> Sheet:
    """Lay the table out."""
    cells = frame.set_index(["classes", "people", "holders", "method"])
    lines = []
    for classes, people, holders in product(CLASSES, PEOPLE, HOLDERS):
        rows = [cells.loc[classes, people, holders, method] for method in METHODS]
        cells_shown = (MISSING if math.isnan(row["mean"]) else f"{row['mean']:.2f} ± {row['std']:.2f}" for row in rows)
        lines.append((str(classes), str(people), str(holders), *cells_shown))
    notes = (
        f"Accuracy in % on training images that nobody contributed; mean ± standard deviation over {len(SEEDS)} seeds.",
        f"ε = {EPSILON:g} per image, at δ = {DELTA:g}, for every method. Each holder adds noise of its own, which is "
        "seeded, so it simulates and protects nobody.",
        "As many rows as people; none where a holder has so few people that less than one would be in a row.",
        "The rate of descent was chosen on simulated digits; rows and means have no such setting.",
    )
    return Sheet(
        "Released rows and private descent at equal ε", ("classes", "people", "holders", *METHODS.values()),
        tuple(lines), notes, names=3,
    )  # fmt: skip


def figure(frame: pd.DataFrame) -> Figure:
    """Draw accuracy against people, a panel for each number of classes and holders."""
    with figure_style():
        canvas, panels = panel_grid(len(CLASSES) * len(HOLDERS), len(CLASSES), 2.9)
        for panel, (holders, classes) in zip(panels, product(HOLDERS, CLASSES), strict=True):
            rows = frame[(frame["classes"] == classes) & (frame["holders"] == holders)]
            for number, method in enumerate(DRAWN):
                line = rows[rows["method"] == method].sort_values("people")
                panel.errorbar(
                    line["people"],
                    line["mean"],
                    yerr=line["std"],
                    capsize=3,
                    label=METHODS[method],
                    **line_look(number),
                )
            panel.set_xscale("log")
            panel.set_xticks(PEOPLE, [f"{people:,}" for people in PEOPLE])
            panel.minorticks_off()
            panel.set_ylim(45, 100)
            panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)
            holding = "one holder" if holders == 1 else f"{holders} holders"
            name_panel(panel, f"{classes} classes, {holding}", len(CLASSES))
            if classes == CLASSES[0]:
                panel.set_ylabel("accuracy in %")
            if holders == HOLDERS[-1]:
                panel.set_xlabel("people")
        set_title(canvas, f"Released rows and private descent, at ε = {EPSILON:g} for each person")
        meaning = f"Mean of {len(SEEDS)} seeds, bars: standard deviation; δ = {DELTA:g}; seeded (simulated) noise."
        set_legend(canvas, panels, wrap_text(meaning, SMALL, 0.97 * WIDTH))
    return canvas


def main() -> None:
    """Make the runs that are missing, and write table and figure."""
    arguments = parser_of(__doc__, "neuromixgdp").parse_args()
    store = KeptRuns(KEPT / "regimes.csv", Run, "rate", "accuracy")
    fill(store)
    runs = store.read()
    cohorts = described("MNIST and Fashion-MNIST, training images, not simulated")
    source = origin(cohorts, seeds_shown(SEEDS), runs=environments(runs))
    frame = table(runs)
    write_table(arguments.output / "regimes", frame, sheet(frame), source)
    save_figure(figure(frame), arguments.output / "regimes.svg")


if __name__ == "__main__":
    ended(main)
