"""Figures of results: the metric against epsilon, training curves, and confusion.

Every function returns a matplotlib figure; `figurestyle.save_svg` writes it as the same bytes each time. All results
are on held-out patients.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from zetadp.base.epsilon import epsilon_named, epsilon_order, epsilon_value
from zetadp.core.metrics import LEVEL
from zetadp.report.figurestyle import (
    LOOKS,
    SMALL,
    WIDTH,
    arms_shown,
    columns_for,
    epsilon_axis,
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
    wrapped,
)
from zetadp.report.tables import CELL, holders, metric_shown, not_empty

Cell = tuple[str, str, str]
MAX_MATRICES = 12
MANY_CLASSES = 6
"""Largest number of classes for which the fields of a matrix have room for two numbers."""
PUBLIC = "public\nweights"
"""Tick label, left of every epsilon, for the metric of public weights before any private training."""
FROM_PUBLIC, FROM_RANDOM = "networks from public weights", "networks from random weights"


@dataclass(frozen=True)
class _Panel:
    """One panel: its title and its lines, each with the number of its look, its label and its rows of the table."""

    title: str
    lines: list[tuple[int, str, pd.DataFrame]]

    @property
    def public(self) -> bool:
        """Whether a line starts from public weights."""
        return any(_start(rows) is not None for _, _, rows in self.lines)

    @property
    def lowest(self) -> int:
        """Lower end of an axis that begins near the lowest value: a multiple of ten if it is at least 50, else 0."""
        values = [value for _, _, rows in self.lines for value in (*rows["mean"], _start(rows) or math.nan)]
        below = 10 * math.floor(np.nanmin(values) / 10 - 0.2)
        return below if below >= 50 else 0


def accuracy_against_epsilon(table: pd.DataFrame, cohort_label: str, *, chance: float | None = None) -> Figure:
    """Draw the task's metric against epsilon.

    If at most one network has several arms, there are up to two panels: one for the networks that start from public
    weights, one for the others. The axis of the first begins higher if all its values are high, and its title says so.
    Otherwise each network has a panel with one line for each arm.

    Parameters
    ----------
    table
        Result of `tables.table1`.
    cohort_label
        Name of the cohort for the title.
    chance
        Score of guessing, in %; no line by default.

    Returns
    -------
    Figure whose bars span one standard deviation over seeds to either side; with one seed, the interval over patients.
    The hollow point at the left end of a line, and the dotted line at its height, show the metric of public weights
    before any private training. If there are runs without noise, every panel has a line at their best mean, so that
    the cost of privacy can be seen.
    """
    not_empty(table)
    metric, called = metric_shown(table["metric"].iloc[0]), networks_shown(table)
    laid = _panels(table, called)
    epsilons = sorted(set(table["epsilon"]), key=epsilon_order)
    with figure_style():
        columns = columns_for(len(laid))
        wide = columns < 3  # narrow panels have no room for one more place on the axis
        figure, panels = panel_grid(len(laid), columns, 4.2 if len(laid) <= columns else 3.3)
        for panel, content in zip(panels, laid, strict=True):
            for place, (look, label, rows) in enumerate(content.lines):
                # A small shift keeps the bars apart.
                shift = min(0.12, 0.6 / len(content.lines)) * (place - (len(content.lines) - 1) / 2)
                _draw_line(panel, rows, epsilons, shift, label, line_look(look), marked=wide)
            _draw_best(panel, table, called)
            lowest = content.lowest if len(laid) == 2 and content.title == FROM_PUBLIC else 0
            draw_chance(panel, None if lowest else chance)
            name_panel(panel, content.title + (f", axis from {lowest} %" if lowest else ""), columns)
            epsilon_axis(panel, epsilons, columns, first=PUBLIC if content.public and wide else "")
            percent_axis(panel, lowest)
        label_outer(panels, columns, guarantee_shown(table) or "ε", f"test {metric} in %")
        set_title(figure, f"{metric[:1].upper()}{metric[1:]} against ε, {cohort_label}")
        spread = spread_shown(table["seeds"], "bars", f"{100 * LEVEL:g} % interval over {holders(table)}")
        public = "Dotted: public weights, before any private training" if any(panel.public for panel in laid) else ""
        set_legend(
            figure,
            panels,
            f"Held-out test {holders(table)}; {spread}",
            "; ".join(filter(None, (public, without_noise_shown(epsilons)))),
        )
    return figure


def _panels(table: pd.DataFrame, called: dict[str, str]) -> list[_Panel]:
    """Divide the rows into panels: with at most `LOOKS` lines, networks share one if at most one has several arms."""
    networks = {str(name): rows for name, rows in table.groupby("network", sort=False)}
    arms, shown = {name: rows["arm"].nunique() for name, rows in networks.items()}, list(arms_shown(table).items())
    if sum(number > 1 for number in arms.values()) <= 1 < len(networks) and sum(arms.values()) <= LOOKS:
        groups: dict[str, list[tuple[int, str, pd.DataFrame]]] = {FROM_PUBLIC: [], FROM_RANDOM: []}
        pairs = [(str(name), str(arm), rows) for (name, arm), rows in table.groupby(["network", "arm"], sort=False)]
        for look, (name, arm, rows) in enumerate(pairs):
            label = f"network {called[name]}" + (f", {dict(shown)[arm]}" if arms[name] > 1 else "")
            groups[FROM_RANDOM if _start(rows) is None else FROM_PUBLIC].append((look, label, rows))
        return [_Panel(title, lines) for title, lines in groups.items() if lines]
    lines = {
        name: [(look, label, rows[rows["arm"] == arm]) for look, (arm, label) in enumerate(shown)]
        for name, rows in networks.items()
    }
    return [
        _Panel(f"network {called[name]}", [line for line in own if not line[2].empty]) for name, own in lines.items()
    ]


def _start(rows: pd.DataFrame) -> float | None:
    """Return the metric of the public weights that these runs started from, in %; None if there are none."""
    found = rows["public_start"].dropna() if "public_start" in rows else rows["mean"].head(0)
    return None if found.empty else float(found.iloc[0])


def _draw_line(
    panel: Axes,
    rows: pd.DataFrame,
    epsilons: Sequence[str],
    shift: float,
    label: str,
    look: dict[str, Any],
    *,
    marked: bool,
) -> None:
    """Draw one line with its bars, and the public weights that it starts from."""
    rows = rows.sort_values("epsilon", key=lambda column: column.map(epsilons.index))
    places = [epsilons.index(epsilon) + shift for epsilon in rows["epsilon"]]
    bars = np.array([_bar(row) for row in rows.to_dict("records")]).T
    panel.errorbar(places, rows["mean"], bars, label=label, capsize=3, **look)
    if (start := _start(rows)) is not None:
        if marked:
            panel.plot([shift - 1], [start], **{**look, "markerfacecolor": "white", "linestyle": "none"})
        panel.axhline(start, color=look["color"], linewidth=0.8, linestyle=":", zorder=1)


def _draw_best(panel: Axes, table: pd.DataFrame, called: dict[str, str]) -> None:
    """Draw a line at the best mean of a network without noise, if there is any."""
    free = table[[math.isinf(epsilon_value(epsilon)) for epsilon in table["epsilon"]]]
    if not free.empty:
        best = free.sort_values("mean").iloc[-1]
        label = f"best without noise: network {called[best['network']]}, {best['mean']:.1f} %"
        panel.axhline(best["mean"], label=label, color="black", linewidth=1.2, linestyle=(0, (5, 2)), zorder=3)


def _bar(row: Mapping[Hashable, Any]) -> tuple[float, float]:
    """Return the lengths of an error bar below and above: the spread over seeds, or the interval with one seed."""
    if not math.isnan(row["std"]):
        return row["std"], row["std"]
    if not math.isnan(row["ci_low"]):
        return max(row["mean"] - row["ci_low"], 0.0), max(row["ci_high"] - row["mean"], 0.0)
    return 0.0, 0.0


def training_curves(histories: pd.DataFrame, cohort_label: str, *, chance: float | None = None) -> Figure:
    """Draw the task's metric on held-out validation patients against rounds, one line for each epsilon.

    Parameters
    ----------
    histories
        Result of `tables.histories`; its ``value`` is in [0, 1], and missing if no patient was watched.
    cohort_label
        Name of the cohort for the title.
    chance
        Score of guessing, in %; no line by default.

    Returns
    -------
    Figure with means over seeds and, if there are several seeds, bands of one standard deviation to either side.
    """
    not_empty(histories)
    watched = histories.dropna(subset=["value"])
    epsilons = sorted(histories["epsilon"].unique(), key=epsilon_order)
    with figure_style():
        # Epsilon has an order, so its lines take their colours from a map: lighter is less private.
        shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.8, len(epsilons)))
        shown, called = arms_shown(histories), networks_shown(histories)
        cells = list(histories.groupby(["network", "arm"], sort=True))
        columns = columns_for(len(cells))
        figure, panels = panel_grid(len(cells), columns, 3.1)
        for panel, ((network, arm), cell) in zip(panels, cells, strict=True):
            name_panel(panel, f"network {called[str(network)]}, {shown[str(arm)]}", columns)
            for index, epsilon in enumerate(epsilons):
                run = cell[cell["epsilon"] == epsilon].dropna(subset=["value"])
                if not run.empty:
                    _draw_curve(panel, run, epsilon_named(epsilon), index, shades[index])
            draw_chance(panel, chance)
            percent_axis(panel)
            panel.set_xlim(left=0)
            panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        label_outer(panels, columns, "round", f"validation {metric_shown(histories['metric'].iloc[0])} in %")
        set_title(figure, f"Training, {cohort_label}")
        meaning = f"No {holders(histories)} were watched"
        if not watched.empty:
            seeds = watched.groupby(["network", "arm", "epsilon"])["seed"].nunique()
            meaning = f"Held-out validation {holders(histories)}; {spread_shown(seeds, 'bands')}"
        set_legend(figure, panels, meaning, guarantee_shown(histories), without_noise_shown(epsilons))
    return figure


def draw_chance(panel: Axes, chance: float | None) -> None:
    """Draw a line at the score of guessing, if there is one."""
    if chance is not None:
        panel.axhline(chance, color="black", linewidth=0.8, linestyle=":", label=f"chance ({chance:g} %)")


def _draw_curve(panel: Axes, run: pd.DataFrame, label: str, index: int, colour: Sequence[float]) -> None:
    """Draw the mean over seeds against rounds and, with several seeds, a band of one standard deviation."""
    summary = 100 * run.groupby("round")["value"].agg(["mean", "std"])
    rounds, mean, std = summary.index.to_numpy(), summary["mean"], summary["std"]
    if std.notna().any():
        panel.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
    # A few markers distinguish the lines in grey without hiding them.
    every = (min(index % 3, len(rounds) - 1), max(1, len(rounds) // 6))
    panel.plot(rounds, mean, label=label, markevery=every, **{**line_look(index), "color": colour})


def confusion_matrices(runs: pd.DataFrame, cohort_label: str) -> Figure:
    """Draw the confusion matrix of each network, arm and epsilon in ``runs``, counts summed over seeds.

    The colour and the upper number are the share of the true class (row) in %; the lower number counts images. With
    more than `MANY_CLASSES` classes, only shares of at least 0.05 % are written, and no counts. At most `MAX_MATRICES`
    matrices are drawn: the most accurate of those that are clipped without noise, to compare with, and those of the
    smallest epsilons, at the same epsilon of the most accurate networks. A note names the others.
    """
    not_empty(runs)
    accuracy = runs.groupby(CELL)["value"].mean()
    without_noise = max(
        (cell for cell in accuracy.index if cell[2] == "inf"), key=lambda cell: accuracy[cell], default=""
    )
    ranked: list[Cell] = sorted(
        accuracy.index, key=lambda cell: (cell != without_noise, epsilon_order(cell[2]), -accuracy[cell])
    )
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
            # A label that does not fit next to the colour bar would cover it.
            name_panel(panel, f"{called[network]}, {shown[arm]}\n{epsilon_named(epsilon)}, {seeds}", 3, 0.58)
        label_outer(panels, columns, f"predicted {word}", f"true {word}")
        figure.colorbar(image, ax=panels, label=f"share of the true {word} in %", shrink=0.6, aspect=30, pad=0.02)
        set_title(figure, f"Confusion on held-out test {holders(runs)}, {cohort_label}")
        left_out = _named(ranked[MAX_MATRICES:], called, shown)
        meaning = [guarantee_shown(runs), without_noise_shown(epsilon for _, _, epsilon in cells)]
        notes = ["; ".join(filter(None, meaning)), f"Not shown, for lack of room: {left_out}" if left_out else ""]
        text = wrapped("\n".join(filter(None, notes)), SMALL, 0.97 * figure.get_figwidth())
        figure.supxlabel(text, x=0.01, ha="left", fontsize=SMALL)
    return figure


def _place(cell: Cell) -> tuple[str, str, tuple[float, bool]]:
    """Return the sort key of a cell on the page."""
    return cell[0], cell[1], epsilon_order(cell[2])


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


def _named(cells: Sequence[Cell], called: dict[str, str], shown: dict[str, str]) -> str:
    """Name cells in words, those of one network and arm together."""
    found: dict[str, list[str]] = {}
    for network, arm, epsilon in sorted(cells, key=_place):
        found.setdefault(f"{called[network]}, {shown[arm]}", []).append(epsilon_named(epsilon))
    return "; ".join(f"{who}: {', '.join(epsilons)}" for who, epsilons in found.items())
