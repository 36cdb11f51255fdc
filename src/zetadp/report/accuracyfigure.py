"""The first figure of an experiment: its metric against epsilon, with public weights and the best run without noise."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zetadp.base.epsilon import epsilon_order, epsilon_value
from zetadp.core.metrics import LEVEL
from zetadp.report.figures import draw_chance
from zetadp.report.figurestyle import (
    LOOKS,
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
)
from zetadp.report.tables import holders, metric_shown, not_empty

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

    With one arm, there are up to two panels: one for the networks that start from public weights, one for the others.
    The axis of the first begins higher if all its values are high, and its title says so. With several arms, each
    network has a panel with one line for each arm.

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
    """Divide the rows into panels: networks share one if there is one arm and there are at most `LOOKS` of them."""
    networks = {str(name): rows for name, rows in table.groupby("network", sort=False)}
    if table["arm"].nunique() == 1 < len(networks) <= LOOKS:
        groups: dict[str, list[tuple[int, str, pd.DataFrame]]] = {FROM_PUBLIC: [], FROM_RANDOM: []}
        for look, (name, rows) in enumerate(networks.items()):
            groups[FROM_RANDOM if _start(rows) is None else FROM_PUBLIC].append((look, f"network {called[name]}", rows))
        return [_Panel(title, lines) for title, lines in groups.items() if lines]
    shown = list(arms_shown(table).items())
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
