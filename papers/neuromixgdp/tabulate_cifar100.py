"""Put the accuracies of the paper's Table 9 at the true epsilons of their noise.

    python -m papers.neuromixgdp.tabulate_cifar100

Li, Cao and Yao (arXiv:2202.06467) print accuracies of CIFAR-100 by private descent, by rows of Poisson sampling and by
hierarchical rows at equal epsilons. That of hierarchical rows counts on a draw that does not hide (see README.md).
Nothing is trained here. Writes cifar100.csv, cifar100.md and cifar100.svg.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from papers.experiments import parser_of, write_table
from papers.neuromixgdp.printed import PrintedRelease
from papers.neuromixgdp.tabulate_accounting import CLOSE, DELTA, EPSILONS, MIXED, RECORDS
from zetadp.base.tables import Sheet
from zetadp.privacy import accounting, gaussian
from zetadp.report.figurestyle import SMALL, blank, figure_style, line_look, save_svg, set_title
from zetadp.report.provenance import origin

ACCURACIES = {
    "private descent": (18.25, 38.90, 59.53, 68.13, 71.37, 72.40, 72.77),
    "rows, Poisson": (2.72, 12.54, 43.21, 54.32, 60.61, 64.32, 67.15),
    "rows, hierarchical": (57.53, 65.78, 70.23, 71.72, 71.88, 72.54, 73.39),
}
"""Accuracy in % as printed, by method, at `EPSILONS`."""
OPEN = 0.03
"""Chance of a class to be in a row: three of a hundred, as the paper advises."""


def true_epsilon(method: str, printed: float) -> float:
    """Return the epsilon of the noise that the paper's formula gives; that of descent is taken as printed."""
    if method == "private descent":
        return printed
    release = PrintedRelease(RECORDS, MIXED, RECORDS, OPEN if "hierarchical" in method else 1.0)
    noise = release.nominal_noise(gaussian.mu(printed, DELTA))
    return accounting.epsilon(release.mechanisms(noise), DELTA, CLOSE)


def table() -> pd.DataFrame:
    """Return each printed accuracy with its true epsilon, and what descent reaches at that, between printed points."""
    descent = ACCURACIES["private descent"]
    rows = []
    for method, accuracies in ACCURACIES.items():
        for printed, accuracy in zip(EPSILONS, accuracies, strict=True):
            true = true_epsilon(method, printed)
            beside = float(np.interp(np.log(true), np.log(EPSILONS), descent))
            rows.append({"method": method, "printed": printed, "true": true, "accuracy": accuracy, "descent": beside})
    return pd.DataFrame(rows)


def sheet(found: pd.DataFrame) -> Sheet:
    """Lay the table out."""
    lines = [
        (row["method"], f"{row['printed']:g}", f"{row['true']:.3g}", f"{row['accuracy']:.1f}", f"{row['descent']:.1f}")
        for row in found.to_dict("records")
    ]
    heads = ("method", "printed ε", "true ε", "accuracy, printed", "private descent at this true ε")
    notes = (
        f"n = T = {RECORDS}, m = {MIXED}, p = {OPEN}, δ = {DELTA:g}. Descent is interpolated between printed points "
        "in the logarithm of ε, and beyond ε = 8 it stays at its last.",
    )
    return Sheet("CIFAR-100 (Table 9) at true ε", heads, tuple(lines), notes, names=1)


def figure(found: pd.DataFrame) -> Figure:
    """Draw accuracies against the printed and against the true epsilon."""
    with figure_style():
        drawn = blank(3.8, h_pad=0.08, w_pad=0.08)
        panels = drawn.subplots(1, 2, sharey=True)
        for panel, column in zip(panels, ("printed", "true"), strict=True):
            for number, method in enumerate(ACCURACIES):
                own = found[found["method"] == method]
                panel.plot(own[column], own["accuracy"], label=method, **line_look(number))
            panel.set(xscale="log", xlim=(0.08, 70), xlabel=f"{column} ε")
        panels[0].set_ylabel("accuracy in %, printed")
        panels[1].legend(frameon=False, fontsize=SMALL, loc="lower right")
        set_title(drawn, "Hierarchical rows lead at the printed ε and trail at the true one")
    return drawn


def main() -> None:
    """Write table and figure."""
    given = parser_of(__doc__, "neuromixgdp").parse_args()
    found = table()
    write_table(given.output / "cifar100", found, sheet(found), origin("none", "none"))
    save_svg(figure(found), given.output / "cifar100.svg")


if __name__ == "__main__":
    main()
