"""Picture of the confusion of the classes: a matrix for each network, arm and epsilon, as many as a page holds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from zetadp.epsilon import epsilon_order, epsilon_value
from zetadp.figurestyle import (
    SMALL,
    WIDTH,
    arms_shown,
    epsilon_name,
    figure_style,
    guarantee_shown,
    label_outer,
    name_panel,
    networks_shown,
    panel_grid,
    set_title,
    without_noise_shown,
    wrapped,
)
from zetadp.tables import CELL, not_empty

Cell = tuple[str, str, str]

MAX_MATRICES = 12


def confusion_matrices(runs: pd.DataFrame, cohort_label: str) -> Figure:
    """Draw the confusion matrix of each network, arm and epsilon in ``runs``, counts summed over seeds.

    The colour and the upper number are the share of the true class (row) in %, the lower number counts images. Where
    a page does not hold all cells, the first of `most_telling` are drawn and the others are named below them.
    """
    not_empty(runs)
    ranked = most_telling(runs)
    cells = sorted(ranked[:MAX_MATRICES], key=_place)
    groups = {(str(n), str(a), str(e)): group for (n, a, e), group in runs.groupby(CELL)}
    columns = min(3, len(cells))
    shown, called, word = arms_shown(runs), networks_shown(runs), runs["called"].iloc[0]
    with figure_style():
        figure, panels = panel_grid(len(cells), columns, 3.0, {1: 4.6, 2: 7.0, 3: WIDTH}[columns])
        for panel, (network, arm, epsilon) in zip(panels, cells, strict=True):
            group = groups[network, arm, epsilon]
            image = _draw_matrix(panel, group)
            seeds = f"{len(group)} seeds" if len(group) > 1 else "one seed"
            # What does not fit beside the colour bar would lie upon it.
            name_panel(panel, f"{called[network]}, {shown[arm]}\n{epsilon_name(epsilon)}, {seeds}", 3, 0.58)
        label_outer(panels, columns, f"predicted {word}", f"true {word}")
        figure.colorbar(image, ax=panels, label=f"share of the true {word} in %", shrink=0.6, aspect=30, pad=0.02)
        set_title(figure, f"Confusion on held-out test patients, {cohort_label}")
        left_out = _named(ranked[MAX_MATRICES:], called, shown)
        meaning = [guarantee_shown(runs), without_noise_shown(epsilon for _, _, epsilon in cells)]
        notes = ["; ".join(filter(None, meaning)), f"Not shown, for lack of room: {left_out}" if left_out else ""]
        text = wrapped("\n".join(filter(None, notes)), SMALL, 0.97 * figure.get_figwidth())
        figure.supxlabel(text, x=0.01, ha="left", fontsize=SMALL)
    return figure


def most_telling(runs: pd.DataFrame) -> list[Cell]:
    """Return all cells of network, arm and epsilon, the most telling first.

    First comes the tightest guarantee of every network in every arm, then the same without noise, then what lies
    between. Among these the smaller epsilon goes first, and at one epsilon the more accurate network.
    """
    accuracy = runs.groupby(CELL)["value"].mean()
    cells = [(str(n), str(a), str(e)) for n, a, e in accuracy.index]
    tightest: dict[tuple[str, str], str] = {}
    for network, arm, epsilon in sorted(cells, key=_place):
        tightest.setdefault((network, arm), epsilon)

    def rank(cell: Cell) -> tuple[int, tuple[float, bool], float]:
        network, arm, epsilon = cell
        private = math.isfinite(epsilon_value(epsilon))
        kind = 0 if private and tightest[network, arm] == epsilon else 1 if epsilon == "inf" else 2 if private else 3
        return kind, epsilon_order(epsilon), -float(accuracy[cell])

    return sorted(cells, key=rank)


def _place(cell: Cell) -> tuple[str, str, tuple[float, bool]]:
    """Return what cells are ordered by on the page."""
    return cell[0], cell[1], epsilon_order(cell[2])


def _draw_matrix(panel: Axes, group: pd.DataFrame) -> AxesImage:
    """Draw one matrix, and return its image for the colour bar."""
    counts = np.sum([np.array(matrix) for matrix in group["confusion"]], axis=0)
    totals = counts.sum(axis=1, keepdims=True)
    share = np.divide(100.0 * counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    for (row, column), value in np.ndenumerate(share):
        colour = "white" if value > 55 else "black"
        text = f"{value:.1f}\n{counts[row, column]}" if totals[row] else "–"
        panel.text(column, row, text, ha="center", va="center", color=colour, fontsize=8, linespacing=1.3)
    names = group["classes"].iloc[0]
    panel.set_xticks(range(len(names)), names)
    panel.set_yticks(range(len(names)), names)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    return panel.imshow(share, cmap="Blues", norm=Normalize(0, 100))


def _named(cells: Sequence[Cell], called: dict[str, str], shown: dict[str, str]) -> str:
    """Name cells in words, those of one network and arm together."""
    found: dict[str, list[str]] = {}
    for network, arm, epsilon in sorted(cells, key=_place):
        found.setdefault(f"{called[network]}, {shown[arm]}", []).append(epsilon_name(epsilon))
    return "; ".join(f"{who}: {', '.join(epsilons)}" for who, epsilons in found.items())
