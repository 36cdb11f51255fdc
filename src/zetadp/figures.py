"""Pictures of the results against epsilon and rounds: accuracy, recall of each class, training curves.

Every function returns a matplotlib figure; `figurestyle.save_svg` writes it as the same bytes each time. Only held-out
patients appear here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from zetadp.epsilon import epsilon_order
from zetadp.figurestyle import (
    GREY,
    arms_shown,
    columns_for,
    epsilon_axis,
    epsilon_name,
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
    spread_shown,
    without_noise_shown,
)
from zetadp.metrics import LEVEL
from zetadp.tables import PAPER_TABLE_1, not_empty, per_class

PUBLIC_LABEL = "public weights alone, before any private training"
_PAPER_MEANING = (
    "Paper: other patients, another network, ten seeds. Its ε has a weaker unit (its figures fit a guarantee per "
    "image), so its points must not be compared with the others at equal ε."
)


def accuracy_against_epsilon(
    table: pd.DataFrame, cohort_label: str, *, paper: bool | None = None, chance: float | None = None
) -> Figure:
    """Draw the task's metric against epsilon, one panel for each network and one line for each arm.

    Parameters
    ----------
    table
        What `tables.table1` returned.
    cohort_label
        Name of the cohort for the title.
    paper
        Add the paper's printed figures in grey; by default where the table has some.
    chance
        What a guess reaches, in %; no line by default.

    Returns
    -------
    Figure whose bars span one standard deviation over seeds to either side; with one seed, the interval over patients.
    A network that starts from public weights has a line at what these reach before any private training.
    """
    not_empty(table)
    paper = bool(table["paper_mean"].notna().any()) if paper is None else paper
    networks, arms, metric = list(table["network"].unique()), list(table["arm"].unique()), table["metric"].iloc[0]
    shown, called = arms_shown(table), networks_shown(table)
    printed = {epsilon for row in PAPER_TABLE_1.values() for epsilon in row} if paper else set()
    epsilons = sorted({*table["epsilon"], *printed}, key=epsilon_order)
    with figure_style():
        columns = columns_for(len(networks))
        figure, panels = panel_grid(len(networks), columns, 3.3)
        for panel, network in zip(panels, networks, strict=True):
            own = table[table["network"] == network]
            for index, arm in enumerate(arms):
                rows = own[own["arm"] == arm].set_index("epsilon")
                # A small shift keeps the bars of the arms apart.
                shift = 0.12 * (index - (len(arms) - 1) / 2)
                present = [(p + shift, rows.loc[e]) for p, e in enumerate(epsilons) if e in rows.index]
                bars = np.array([_bar(row) for _, row in present]).reshape(-1, 2).T
                heights = [float(row["mean"]) for _, row in present]
                look = line_look(index)
                panel.errorbar([p for p, _ in present], heights, bars, label=shown[arm], capsize=3, **look)
            _draw_chance(panel, chance)
            if paper:
                _draw_paper(panel, epsilons)
            start = _draw_public_start(panel, own)
            name_panel(panel, f"network {called[network]}{start}", columns)
            epsilon_axis(panel, epsilons, columns)
            percent_axis(panel)
        label_outer(panels, columns, guarantee_shown(table) or "ε", f"test {metric} in %")
        set_title(figure, f"{metric.capitalize()} against ε, {cohort_label}")
        spread = spread_shown(table["seeds"], "bars", f"{100 * LEVEL:g} % interval over patients")
        set_legend(
            figure,
            panels,
            f"Held-out test patients; {spread}",
            without_noise_shown(epsilons),
            _PAPER_MEANING if paper else "",
        )
    return figure


def training_curves(histories: pd.DataFrame, cohort_label: str, *, chance: float | None = None) -> Figure:
    """Draw the task's metric on held-out validation patients against rounds, one line for each epsilon.

    Parameters
    ----------
    histories
        What `tables.collect_histories` returned; its ``value`` is a fraction of one, missing where no patient was
        watched.
    cohort_label
        Name of the cohort for the title.
    chance
        What a guess reaches, in %; no line by default.

    Returns
    -------
    Figure with means over seeds and, where there are several, bands of one standard deviation to either side.
    """
    not_empty(histories)
    cells = list(histories.groupby(["network", "arm"], sort=True))
    shown, called = arms_shown(histories), networks_shown(histories)
    watched = histories.dropna(subset=["value"])
    epsilons = sorted(histories["epsilon"].unique(), key=epsilon_order)
    with figure_style():
        # Epsilon has an order, so its lines take their colours from a map: lighter is less private.
        shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.8, len(epsilons)))
        columns = columns_for(len(cells))
        figure, panels = panel_grid(len(cells), columns, 3.1)
        for panel, ((network, arm), cell) in zip(panels, cells, strict=True):
            for index, epsilon in enumerate(epsilons):
                run = cell[cell["epsilon"] == epsilon].dropna(subset=["value"])
                if not run.empty:
                    _draw_curve(panel, run, epsilon_name(epsilon), index, shades[index])
            _draw_chance(panel, chance)
            name_panel(panel, f"network {called[str(network)]}, {shown[str(arm)]}", columns)
            percent_axis(panel)
            panel.set_xlim(left=0)
            panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        label_outer(panels, columns, "round", f"validation {histories['metric'].iloc[0]} in %")
        set_title(figure, f"Training, {cohort_label}")
        meaning = "No patients were watched"
        if not watched.empty:
            seeds = watched.groupby(["network", "arm", "epsilon"])["seed"].nunique()
            meaning = f"Held-out validation patients; {spread_shown(seeds, 'bands')}"
        order = [epsilon_name(epsilon) for epsilon in epsilons]
        set_legend(figure, panels, meaning, guarantee_shown(histories), without_noise_shown(epsilons), order=order)
    return figure


def accuracy_per_class(runs: pd.DataFrame, cohort_label: str) -> Figure:
    """Draw the recall of each class against epsilon, one panel for each network and arm.

    Where there are several seeds, bars span one standard deviation over them to either side.
    """
    table = per_class(runs)
    cells = list(table.groupby(["network", "arm"], sort=True))
    shown, called = arms_shown(runs), networks_shown(runs)
    epsilons = sorted(table["epsilon"].unique(), key=epsilon_order)
    names, word = list(table["class"].unique()), str(runs["called"].iloc[0])
    with figure_style():
        columns = columns_for(len(cells))
        figure, panels = panel_grid(len(cells), columns, 3.1)
        for panel, ((network, arm), cell) in zip(panels, cells, strict=True):
            for index, name in enumerate(names):
                rows = cell[cell["class"] == name].set_index("epsilon")
                shift = 0.1 * (index - (len(names) - 1) / 2)
                present = [(p + shift, rows.loc[e]) for p, e in enumerate(epsilons) if e in rows.index]
                spread = np.array([row["recall_std"] for _, row in present], dtype=float)
                recall = [row["recall"] for _, row in present]
                bars = None if np.isnan(spread).all() else spread
                panel.errorbar([p for p, _ in present], recall, bars, label=name, capsize=2, **line_look(index))
            name_panel(panel, f"network {called[str(network)]}, {shown[str(arm)]}", columns)
            epsilon_axis(panel, epsilons, columns)
            percent_axis(panel)
        label_outer(panels, columns, guarantee_shown(runs) or "ε", "recall in %")
        set_title(figure, f"Accuracy by {word}, {cohort_label}")
        meaning = f"Held-out test patients; {spread_shown(table['seeds'], 'bars')}"
        set_legend(figure, panels, meaning, without_noise_shown(epsilons), order=names)
    return figure


def _draw_chance(panel: Axes, chance: float | None) -> None:
    """Draw a line at what a guess reaches, if there is such a thing."""
    if chance is not None:
        panel.axhline(chance, color="black", linewidth=0.8, linestyle=":", label=f"chance ({chance:g} %)")


def _draw_curve(panel: Axes, run: pd.DataFrame, label: str, index: int, colour: Sequence[float]) -> None:
    """Draw the mean over seeds against rounds, and the band of those that have several."""
    summary = 100 * run.groupby("round")["value"].agg(["mean", "std"])
    rounds, mean, std = summary.index.to_numpy(), summary["mean"], summary["std"]
    if std.notna().any():
        panel.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
    # A marker now and then tells the lines apart in grey without hiding them.
    every = (min(index % 3, len(rounds) - 1), max(1, len(rounds) // 6))
    panel.plot(rounds, mean, label=label, markevery=every, **{**line_look(index), "color": colour})


def _draw_paper(panel: Axes, epsilons: Sequence[str]) -> None:
    """Draw the paper's printed figures behind the runs, in grey."""
    for (arm, cells), marker, fill in zip(PAPER_TABLE_1.items(), ("^", "v"), ("white", GREY), strict=True):
        places = [position for position, epsilon in enumerate(epsilons) if epsilon in cells]
        means = [cells[epsilons[position]][0] for position in places]
        label = f"paper, printed ({arm}), ε of a weaker unit"
        line = panel.plot(places, means, "--", color=GREY, linewidth=1.2, zorder=1, label=label)
        line[0].set(marker=marker, markersize=5, markerfacecolor=fill)


def _draw_public_start(panel: Axes, own: pd.DataFrame) -> str:
    """Draw a line at what the public weights of a network reach, and return its height for the title."""
    found = own["public_start"].dropna() if "public_start" in own else own["mean"].head(0)
    if found.empty:
        return ""
    look: dict[str, Any] = {"color": "black", "linewidth": 1.0, "linestyle": (0, (9, 2.5, 2, 2.5)), "zorder": 3}
    panel.axhline(float(found.iloc[0]), label=PUBLIC_LABEL, **look)
    return f"; public weights alone: {found.iloc[0]:.1f} %"


def _bar(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the lengths of an error bar below and above: the spread over seeds, or the interval with one seed."""
    if not math.isnan(row["std"]):
        return row["std"], row["std"]
    if not math.isnan(row["ci_low"]):
        return max(row["mean"] - row["ci_low"], 0.0), max(row["ci_high"] - row["mean"], 0.0)
    return 0.0, 0.0
