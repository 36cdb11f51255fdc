"""Put the accuracies of the paper's Tables 9 and 10 at the true epsilons of their noise.

    python -m papers.neuromixgdp.tabulate_cifar100

Li, Cao and Yao (arXiv:2202.06467) print accuracies of CIFAR-100 and ImageNet by private descent, by rows of Poisson
sampling and by hierarchical rows at equal epsilons. That of hierarchical rows counts on a draw that does not hide (see
README.md). The true one depends on the share p of classes that are open in a row. The paper names no p; the authors'
code has 3 / K for K classes, and the paper's sweep has 0.1 and 0.3 as well. Nothing is trained here. Writes
cifar100.csv, cifar100.md and cifar100.svg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from papers.experiments import parser_of, save_figure, write_table
from papers.neuromixgdp.printed import PrintedRelease
from papers.neuromixgdp.tabulate_accounting import DELTA, MIXED, RECORDS
from zetadp.accounting import gaussian
from zetadp.base.tables import Sheet
from zetadp.report.figurestyle import SMALL, blank, figure_style, line_look, set_title
from zetadp.report.provenance import origin

DESCENT, POISSON, HIERARCHICAL = "private descent", "rows, Poisson", "rows, hierarchical"


@dataclass(frozen=True)
class Printed:
    """Accuracies in % as a table prints them, by method, at its epsilons, and the shares p to assume."""

    records: int
    delta: float
    epsilons: tuple[float, ...]
    class_rates: tuple[float, ...]
    accuracies: Mapping[str, tuple[float, ...]]


TABLES = {
    "CIFAR-100": Printed(
        RECORDS,
        DELTA,
        (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0),
        (0.03, 0.1, 0.3),
        {
            DESCENT: (18.25, 38.90, 59.53, 68.13, 71.37, 72.40, 72.77),
            POISSON: (2.72, 12.54, 43.21, 54.32, 60.61, 64.32, 67.15),
            HIERARCHICAL: (57.53, 65.78, 70.23, 71.72, 71.88, 72.54, 73.39),
        },
    ),
    "ImageNet": Printed(
        1_281_167,
        1e-7,
        (0.1, 0.2, 0.5, 1.0, 2.0),
        (0.003,),
        {DESCENT: (59.07, 72.06, 74.51, 76.90, 77.40), HIERARCHICAL: (74.21, 76.16, 77.30, 77.50, 77.97)},
    ),
}


def true_epsilon(table: Printed, method: str, printed: float, class_rate: float) -> float:
    """Return the epsilon of the noise that the paper's formula gives; that of descent is taken as printed."""
    if method == DESCENT:
        return printed
    release = PrintedRelease(table.records, MIXED, table.records, class_rate)
    noise = release.nominal_noise(gaussian.mu(printed, table.delta))
    return release.true_epsilon(noise, table.delta)


def table() -> pd.DataFrame:
    """Return each printed accuracy with its true epsilon, and what descent reaches at that, between printed points."""
    rows = []
    for data, of in TABLES.items():
        descent = of.accuracies[DESCENT]
        for method, accuracies in of.accuracies.items():
            for class_rate in of.class_rates if method == HIERARCHICAL else (1.0,):
                for printed, accuracy in zip(of.epsilons, accuracies, strict=True):
                    true = true_epsilon(of, method, printed, class_rate)
                    descent_there = float(np.interp(np.log(true), np.log(of.epsilons), descent))
                    row = {"data": data, "method": method, "class_rate": class_rate, "printed": printed, "true": true}
                    rows.append(row | {"accuracy": accuracy, "descent": descent_there})
    return pd.DataFrame(rows)


def sheet(frame: pd.DataFrame) -> Sheet:
    """Lay the table out."""
    lines = [
        (
            *(row["data"], row["method"], f"{row['class_rate']:g}", f"{row['printed']:g}", f"{row['true']:.3g}"),
            *(f"{row['accuracy']:.1f}", f"{row['descent']:.1f}"),
        )
        for row in frame.to_dict("records")
    ]
    heads = ("data", "method", "p", "printed ε", "true ε", "accuracy, printed", "private descent at this true ε")
    notes = (
        f"As many rows as records, m = {MIXED}; n = {RECORDS} at δ = {DELTA:g} for CIFAR-100, 1281167 at 1e-07 for "
        "ImageNet. The paper names no p. Descent is interpolated between printed points in the logarithm of ε, and "
        "beyond the last ε it stays at its last.",
    )
    return Sheet("CIFAR-100 (Table 9) and ImageNet (Table 10) at true ε", heads, tuple(lines), notes, names=2)


def figure(frame: pd.DataFrame) -> Figure:
    """Draw accuracies of CIFAR-100 against the printed and against the true epsilon."""
    frame = frame[frame["data"] == "CIFAR-100"]
    with figure_style():
        canvas = blank(3.8, h_pad=0.08, w_pad=0.08)
        panels = canvas.subplots(1, 2, sharey=True)
        for panel, column in zip(panels, ("printed", "true"), strict=True):
            lines = frame.groupby(["method", "class_rate"], sort=False)
            for number, ((method, class_rate), rows) in enumerate(lines):
                name = f"{method}, p = {class_rate:g}" if method == HIERARCHICAL else method
                panel.plot(rows[column], rows["accuracy"], label=name, **line_look(number))
            panel.set(xscale="log", xlim=(0.08, 70), xlabel=f"{column} ε")
        panels[0].set_ylabel("accuracy in %, printed")
        panels[1].legend(frameon=False, fontsize=SMALL, loc="lower right")
        set_title(canvas, "At the true ε the lead of hierarchical rows depends on the share p of open classes")
    return canvas


def main() -> None:
    """Write table and figure."""
    arguments = parser_of(__doc__, "neuromixgdp").parse_args()
    frame = table()
    write_table(arguments.output / "cifar100", frame, sheet(frame), origin("none", "none"))
    save_figure(figure(frame), arguments.output / "cifar100.svg")


if __name__ == "__main__":
    main()
