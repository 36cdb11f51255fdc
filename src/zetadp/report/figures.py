"""Figures of training and of classes: the metric against rounds, and confusion.

Every function returns a matplotlib figure; `figurestyle.save_svg` writes it as the same bytes each time. All results
are on held-out patients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from zetadp.base.epsilon import Target
from zetadp.report.figurestyle import (
    GREY,
    SMALL,
    WIDTH,
    arms_shown,
    columns_for,
    figure_style,
    guarantee_shown,
    label_outer,
    line_look,
    name_panel,
    networks_shown,
    panel_grid,
    percent_axis,
    set_legend,
    set_title,
    without_noise_shown,
    wrap_text,
)
from zetadp.report.provenance import Cohort
from zetadp.report.tables import CELL, chance_named, holders, metric_shown, not_empty, seeds_in_words

Cell = tuple[str, str, Target]
MAX_MATRICES = 12
MANY_CLASSES = 6
"""Largest number of classes for which the fields of a matrix have room for two numbers."""


def training_curves(histories: pd.DataFrame, cohort: Cohort, *, chance: float | None = None) -> Figure:
    """Draw the task's metric on held-out validation patients against rounds, one line for each epsilon.

    Parameters
    ----------
    histories
        Result of `tables.histories`; its ``value`` is in [0, 1], and missing if no patient was watched.
    cohort
        The cohort that the title names.
    chance
        Score of guessing, in %; no line by default.

    Returns
    -------
    Figure with means over seeds and, if there are several seeds, bands of one standard deviation to either side.
    """
    not_empty(histories)
    targets = sorted(histories["epsilon"].unique())
    with figure_style():
        # Epsilon has an order, so its lines take their colours from a map: lighter is less private.
        shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.8, len(targets)))
        arm_names, network_names = arms_shown(histories), networks_shown(histories)
        cells = list(histories.groupby(["network", "arm"], sort=False))
        columns = columns_for(len(cells))
        figure, panels = panel_grid(len(cells), columns, 3.1)
        for panel, ((network, arm), cell) in zip(panels, cells, strict=True):
            name_panel(panel, f"network {network_names[str(network)]}, {arm_names[str(arm)]}", columns)
            for index, target in enumerate(targets):
                run = cell[cell["epsilon"] == target].dropna(subset=["value"])
                if not run.empty:
                    _draw_curve(panel, run, target.title, index, shades[index])
            draw_chance(panel, chance)
            percent_axis(panel)
            panel.set_xlim(left=0)
            panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        label_outer(panels, columns, "round", f"validation {metric_shown(histories['metric'].iloc[0])} in %")
        set_title(figure, f"Training, {cohort}")
        seeds = histories.groupby(["network", "arm", "epsilon"])["seed"].nunique()
        meaning = f"Held-out validation {holders(histories)}; {_describe_spread(seeds)}"
        set_legend(figure, panels, meaning, guarantee_shown(histories), without_noise_shown(targets))
    return figure


def _describe_spread(seeds: pd.Series) -> str:
    """Return a phrase on the number of seeds behind lines, and on the meaning of bands."""
    if seeds.max() == 1:
        return "one seed, so no spread over seeds is known or shown"
    several = f"mean of {seeds_in_words(seeds)}; bands: ± one standard deviation over seeds"
    return several if seeds.min() > 1 else f"{several}, none with one seed"


def draw_chance(panel: Axes, chance: float | None) -> None:
    """Draw a line at the score of guessing, if it is known."""
    if chance is not None:
        panel.axhline(chance, color=GREY, linewidth=0.8, label=chance_named(chance), zorder=1)


def _draw_curve(panel: Axes, run: pd.DataFrame, label: str, index: int, colour: Sequence[float]) -> None:
    """Draw the mean over seeds against rounds and, with several seeds, a band of one standard deviation."""
    summary = 100 * run.groupby("round")["value"].agg(["mean", "std"])
    rounds, mean, std = summary.index.to_numpy(), summary["mean"], summary["std"]
    if std.notna().any():
        panel.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
    # A few markers distinguish the lines in grey without hiding them.
    every = (min(index % 3, len(rounds) - 1), max(1, len(rounds) // 6))
    panel.plot(rounds, mean, label=label, markevery=every, **{**line_look(index), "color": colour})


def confusion_matrices(runs: pd.DataFrame, cohort: Cohort) -> Figure:
    """Draw the confusion matrix of each network, arm and epsilon in ``runs``, counts summed over seeds.

    The colour and the upper number are the share of the true class (row) in %; the lower number counts images. With
    more than `MANY_CLASSES` classes, only shares of at least 0.05 % are written, and no counts. At most `MAX_MATRICES`
    matrices are drawn: the most accurate of those that are clipped without noise, for comparison, and those of the
    smallest epsilons, at the same epsilon of the most accurate networks. A note names the others.
    """
    not_empty(runs)
    accuracy: dict[Any, float] = runs.groupby(CELL, sort=False)["value"].mean().to_dict()
    without_noise = max(
        (cell for cell in accuracy if cell[2] == Target(math.inf)), key=lambda cell: accuracy[cell], default=""
    )
    ranked: list[Cell] = sorted(accuracy, key=lambda cell: (cell != without_noise, cell[2], -accuracy[cell]))
    order = list(accuracy)
    cells, others = (sorted(part, key=order.index) for part in (ranked[:MAX_MATRICES], ranked[MAX_MATRICES:]))
    groups = {(str(n), str(a), target): group for (n, a, target), group in runs.groupby(CELL)}
    columns = min(3, len(cells))
    arm_names, network_names, word = arms_shown(runs), networks_shown(runs), runs["called"].iloc[0]
    with figure_style():
        figure, panels = panel_grid(len(cells), columns, 3.0, {1: 4.6, 2: 7.0, 3: WIDTH}[columns])
        for panel, (network, arm, target) in zip(panels, cells, strict=True):
            group = groups[network, arm, target]
            image = _draw_matrix(panel, group)
            seeds = f"{len(group)} seeds" if len(group) > 1 else "one seed"
            # A label that does not fit next to the colour bar would cover it.
            name_panel(panel, f"{network_names[network]}, {arm_names[arm]}\n{target.title}, {seeds}", 3, 0.58)
        label_outer(panels, columns, f"predicted {word}", f"true {word}")
        figure.colorbar(image, ax=panels, label=f"share of the true {word} in %", shrink=0.6, aspect=30, pad=0.02)
        set_title(figure, f"Confusion on held-out test {holders(runs)}, {cohort}")
        left_out = _name_cells(others, network_names, arm_names)
        meaning = [guarantee_shown(runs), without_noise_shown(target for _, _, target in cells)]
        notes = ["; ".join(filter(None, meaning)), f"Not shown, for lack of room: {left_out}" if left_out else ""]
        text = wrap_text("\n".join(filter(None, notes)), SMALL, 0.97 * figure.get_figwidth())
        figure.supxlabel(text, x=0.01, ha="left", fontsize=SMALL)
    return figure


def _draw_matrix(panel: Axes, group: pd.DataFrame) -> AxesImage:
    """Draw one matrix, and return its image for the colour bar."""
    counts = np.sum([np.array(matrix) for matrix in group["confusion"]], axis=0)
    totals = counts.sum(axis=1, keepdims=True)
    share = np.divide(100.0 * counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    names = group["classes"].iloc[0]
    many = len(names) > MANY_CLASSES
    for (row, column), value in np.ndenumerate(share):
        colour = "white" if value > 55 else "black"
        if many:
            text = f"{value:.1f}".removesuffix(".0") if value >= 0.05 else ""
        else:
            text = f"{value:.1f}\n{counts[row, column]}" if totals[row] else "–"
        panel.text(
            column, row, text, ha="center", va="center", color=colour, fontsize=5 if many else 8, linespacing=1.3
        )
    panel.set_xticks(range(len(names)), names)
    panel.set_yticks(range(len(names)), names)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    return panel.imshow(share, cmap="Blues", norm=Normalize(0, 100))


def _name_cells(cells: Sequence[Cell], network_names: dict[str, str], arm_names: dict[str, str]) -> str:
    """Name cells in words, grouped by network and arm."""
    targets: dict[str, list[str]] = {}
    for network, arm, target in cells:
        targets.setdefault(f"{network_names[network]}, {arm_names[arm]}", []).append(target.title)
    return "; ".join(f"{name}: {', '.join(titles)}" for name, titles in targets.items())
