"""Figures of the task's metric: curves of a network against epsilon, and many networks next to each other.

References (public weights, the best network without noise, guessing) are labelled next to the curves, so the legend
names only the curves. All results are on held-out patients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zetadp.accounting.threat import MASKED_SUMS, arm_shown
from zetadp.base.epsilon import Target
from zetadp.report.figurestyle import (
    GREY,
    SMALL,
    WIDTH,
    figure_style,
    guarantee_shown,
    legend_columns,
    line_look,
    networks_shown,
    panel_grid,
    set_legend,
    set_title,
    without_noise_shown,
    wrap_text,
)
from zetadp.report.provenance import Cohort
from zetadp.report.tables import (
    best_without_noise,
    chance_named,
    holders,
    metric_shown,
    not_empty,
    private_rows,
    seeds_in_words,
)
from zetadp.training.metrics import LEVEL

PUBLIC = "public weights alone"
BEST = "best without noise"
_THREATS: dict[str, str] = {"local": "local noise", MASKED_SUMS: "masked sums", "central": "one holder"}
_BAND, _AREA, _TEXT, _GRID = "#CFCFCF", "#EEEEEE", "#333333", "#DDDDDD"
_GAP = 0.4
"""Distance, in powers of ten, from the largest epsilon to infinity, and from there to runs without clipping."""


def accuracy_against_epsilon(
    table: pd.DataFrame, cohort: Cohort, *, networks: Sequence[str] | None = None, chance: float | None = None
) -> Figure:
    """Draw the task's metric against epsilon, with one curve for each network and arm.

    Parameters
    ----------
    table
        Result of `tables.table1`.
    cohort
        The cohort that the title names.
    networks
        Networks that have curves; by default all. The best network without noise is that of the whole table.
    chance
        Score of guessing, in %; no line by default, or if the vertical axis begins above it.

    Returns
    -------
    Figure with a logarithmic axis of epsilon. Runs without noise have hollow marks at its right end. Bars, and the band
    around the best mean without noise, are intervals over patients. The area below the metric of public weights, before
    any private training, is shaded.
    """
    not_empty(table)
    selected = _select_networks(table, networks)
    curves, positions, starts, best = (
        _group_curves(selected),
        _axis_positions(selected["epsilon"]),
        _public_starts(selected),
        best_without_noise(table),
    )
    lowest, highest = _axis_limits(
        [*selected["mean"], *selected["ci_low"], *selected["ci_high"], *best["mean"], *starts]
    )
    metric = metric_shown(table["metric"].iloc[0])
    with figure_style():
        figure, (panel,) = panel_grid(1, 1, 3.5)
        span = highest - lowest
        panel.set_ylim(lowest, max([highest + 0.02 * span, *(best["ci_high"] + 0.08 * span)]))
        for start, names in starts.items():
            panel.axhspan(0, start, color=_AREA, linewidth=0, zorder=0)
            panel.axhline(start, color=GREY, linewidth=1, zorder=1)
            owners = f" of {', '.join(names)}" if len(starts) > 1 else ""
            _write(panel, 0.99, start, f"{PUBLIC}{owners}, {start:.1f} %", ha="right", va="top")
        for row in best.to_dict("records"):
            panel.axhspan(row["ci_low"], row["ci_high"], color=_BAND, linewidth=0, zorder=0)
            panel.axhline(row["mean"], color="black", linewidth=1, zorder=1)
            _write(
                panel, 0.01, np.fmax(row["mean"], row["ci_high"]), _best_label(row, selected), ha="left", va="bottom"
            )
        if chance is not None and chance >= lowest:
            panel.axhline(chance, color=GREY, linewidth=1, zorder=1)
            _write(panel, 0.01, chance, chance_named(chance), ha="left", va="bottom")
        width = max(positions.values()) - min(positions.values()) + 0.3
        for number, (label, rows) in enumerate(curves.items()):
            shift = 0.008 * width * (number - (len(curves) - 1) / 2)  # keeps bars apart
            _draw_curve(
                panel, rows, {target: position + shift for target, position in positions.items()}, label, number
            )
        panel.set_xticks(list(positions.values()), [target.short for target in positions])
        panel.set_xlim(min(positions.values()) - 0.15, max(positions.values()) + 0.15)
        step = 20 if span > 50 else 10 if span > 25 else 5
        panel.set_yticks(range(step * math.ceil(lowest / step), highest + 1, step))
        panel.grid(axis="y", color=_GRID, linewidth=0.6)
        panel.set_xlabel(guarantee_shown(selected) or "ε")
        panel.set_ylabel(f"test {metric} in %")
        if len(curves) > 1:
            columns = legend_columns(list(curves), 0.9 * WIDTH)
            panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, borderaxespad=0.2)
        set_title(figure, f"{metric[:1].upper()}{metric[1:]}{_title_subject(selected, curves)} against ε, {cohort}")
        meaning = "; ".join(filter(None, (_describe_marks(selected), without_noise_shown(positions))))
        figure.supxlabel(wrap_text(meaning, SMALL, 0.97 * WIDTH), x=0.01, ha="left", fontsize=SMALL)
    return figure


def compare_networks(
    table: pd.DataFrame, cohort: Cohort, *, networks: Sequence[str] | None = None, chance: float | None = None
) -> Figure:
    """Draw the task's metric of networks, one row for each network and arm.

    Parameters
    ----------
    table, cohort, networks, chance
        As for `accuracy_against_epsilon`, but guessing always has a line.

    Returns
    -------
    Figure with one mark for each epsilon, hollow without noise, whose bar is the interval over patients. A vertical
    stroke shows public weights before any private training.
    """
    not_empty(table)
    selected = _select_networks(table, networks)
    rows, targets = _row_labels(selected), sorted(set(selected["epsilon"]))
    heights = {cell: height for height, cell in enumerate(rows)}
    shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.65, len(targets)))
    metric = metric_shown(table["metric"].iloc[0])
    with figure_style():
        figure, (panel,) = panel_grid(1, 1, 0.7 + max(0.4, 0.12 * len(targets)) * len(rows))
        started = selected.dropna(subset=["public_start"]).drop_duplicates(["network", "arm"])
        if len(started):
            start_heights = _row_heights(started, heights)
            panel.plot(started["public_start"], start_heights, "|", markersize=15, mew=1.5, color=_TEXT, label=PUBLIC)
        for number, (target, shade) in enumerate(zip(targets, shades, strict=True)):
            group = selected[selected["epsilon"] == target]
            shift = min(0.16, 0.7 / len(targets)) * (number - (len(targets) - 1) / 2)  # keeps bars apart
            look = {**line_look(number), "color": shade, "linestyle": "none", "label": target.title}
            if not target.private:
                look["markerfacecolor"] = "white"
            shifted = [height + shift for height in _row_heights(group, heights)]
            panel.errorbar(group["mean"], shifted, xerr=_bars(group), capsize=2, **look)
        for row in best_without_noise(table).to_dict("records"):
            panel.axvline(row["mean"], color="black", linewidth=1, zorder=1, label=_best_label(row, selected))
        if chance is not None:
            panel.axvline(chance, color=GREY, linewidth=1, zorder=1, label=chance_named(chance))
        panel.set_yticks(range(len(rows)), [wrap_text(label, SMALL, 2.4) for label in rows.values()])
        panel.set(xlim=(0, 101), ylim=(len(rows) - 0.4, -0.6))
        panel.grid(axis="x", color=_GRID, linewidth=0.6)
        panel.set_xlabel(f"test {metric} in %")
        set_title(figure, f"{metric[:1].upper()}{metric[1:]} of {'other ' if networks else ''}networks, {cohort}")
        meaning = "; ".join(filter(None, (guarantee_shown(selected), without_noise_shown(targets))))
        set_legend(figure, [panel], _describe_marks(selected), meaning)
    return figure


def _select_networks(table: pd.DataFrame, networks: Sequence[str] | None) -> pd.DataFrame:
    return table if networks is None else table[table["network"].isin(networks)]


def _group_curves(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of each curve by its label, which names the differences between the curves."""
    pairs = [(str(network), str(arm), rows) for (network, arm), rows in table.groupby(["network", "arm"], sort=False)]
    arms: dict[str, str] = dict(table[["arm", "threat"]].drop_duplicates().itertuples(index=False))
    by_threat = len(set(arms.values())) == len(arms)
    words = {arm: _THREATS[threat] if by_threat else arm_shown(arm, threat) for arm, threat in arms.items()}
    network_names = networks_shown(table)
    if len(network_names) == 1:
        return {words[arm]: rows for _, arm, rows in pairs}
    return {
        f"{network_names[network]}{f', {words[arm]}' if len(arms) > 1 else ''}": rows for network, arm, rows in pairs
    }


def _title_subject(table: pd.DataFrame, curves: Mapping[str, pd.DataFrame]) -> str:
    """Return the part of the title about the only network and its only curve; empty for several networks."""
    network_names = networks_shown(table)
    if len(network_names) > 1:
        return ""
    curve = f" with {next(iter(curves))}" if len(curves) == 1 and len(private_rows(table)) else ""
    return f" of network {next(iter(network_names.values()))}{curve}"


def _axis_positions(targets: Iterable[Target]) -> dict[Target, float]:
    """Return the position of each target on the axis: its logarithm, then infinity, then runs without clipping."""
    ordered = sorted(set(targets))
    positions = {target: math.log10(target.epsilon) for target in ordered if target.private}
    for target in ordered[len(positions) :]:
        positions[target] = max(positions.values(), default=-_GAP) + _GAP
    return positions


def _public_starts(table: pd.DataFrame) -> dict[float, list[str]]:
    """Return the networks that start from public weights, by the metric of these weights in %."""
    starts: dict[float, list[str]] = {}
    for row in table.dropna(subset=["public_start"]).drop_duplicates("network").to_dict("records"):
        starts.setdefault(row["public_start"], []).append(row["network"])
    return starts


def _axis_limits(values: Iterable[float]) -> tuple[int, int]:
    """Return the ends of the vertical axis: multiples of five around values that are all above 50, else 0 and 100."""
    low, high = np.nanmin([*values]) / 5, np.nanmax([*values]) / 5
    below, above = 5 * math.floor(low - 0.4), 5 * math.ceil(high + 0.2)
    return (below, min(above, 100)) if below >= 50 else (0, 100)


def _draw_curve(panel: Axes, rows: pd.DataFrame, positions: Mapping[Target, float], label: str, number: int) -> None:
    """Draw a curve through the finite epsilons, and hollow marks for runs without noise."""
    look, private = line_look(number), private_rows(rows)
    free, hollow = rows.drop(private.index), {**look, "markerfacecolor": "white", "linestyle": "none"}
    for part, style in ((private, look), (free, hollow)):
        if len(part):
            x, is_labelled = part["epsilon"].map(positions), part is private or private.empty
            panel.errorbar(x, part["mean"], _bars(part), label=label if is_labelled else None, capsize=3, **style)


def _bars(rows: pd.DataFrame) -> np.ndarray:
    """Return the lengths of error bars below and above means: intervals over patients, else the spread over seeds."""
    spread = rows["std"].fillna(0.0)
    below = (rows["mean"] - rows["ci_low"]).clip(lower=0).fillna(spread)
    above = (rows["ci_high"] - rows["mean"]).clip(lower=0).fillna(spread)
    return np.stack([below, above])


def _describe_marks(table: pd.DataFrame) -> str:
    """Return the meaning of marks and bars: the number of seeds, and intervals or spreads."""
    seeds = seeds_in_words(table["seeds"])
    count = seeds if table["seeds"].max() == 1 else f"mean of {seeds}"
    units = holders(table)
    if table["ci_low"].notna().any():
        bars = f"; bars: {100 * LEVEL:g} % interval over {units}"
    else:
        bars = "; bars: ± one standard deviation over seeds" if table["std"].notna().any() else ""
    return f"Held-out test {units}; {count}{bars}"


def _row_labels(table: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the label of the row of each network and arm."""
    network_names, several = networks_shown(table), table["arm"].nunique() > 1
    cells = table[["network", "arm", "threat"]].drop_duplicates().itertuples(index=False)
    return {
        (str(network), str(arm)): network_names[str(network)]
        + (f", {arm_shown(arm, threat)}" if several or threat == MASKED_SUMS else "")
        for network, arm, threat in cells
    }


def _row_heights(rows: pd.DataFrame, heights: Mapping[tuple[str, str], int]) -> list[int]:
    return [heights[str(network), str(arm)] for network, arm in zip(rows["network"], rows["arm"], strict=True)]


def _best_label(row: Mapping[Any, Any], table: pd.DataFrame) -> str:
    """Return the label of the best mean without noise; it names the network unless the figure shows no other."""
    is_only = set(table["network"]) == {row["network"]}
    suffix = "" if is_only else f" ({row['network']})"
    return f"{BEST}{suffix}, {row['mean']:.1f} %"


def _write(panel: Axes, x: float, y: float, text: str, *, ha: str, va: str) -> None:
    """Write the label of a reference at a share of the width and a height of the axis."""
    panel.annotate(
        text,
        (x, y),
        xycoords=panel.get_yaxis_transform(),
        xytext=(0, 2 if va == "bottom" else -3),
        textcoords="offset points",
        fontsize=SMALL,
        color=_TEXT,
        ha=ha,
        va=va,
    )
