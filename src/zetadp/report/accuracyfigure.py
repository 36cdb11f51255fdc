"""Figures of the task's metric: curves of a network against epsilon, and many networks next to each other.

References (public weights, the best network without noise, guessing) are labelled next to curves, so that their legend
names nothing else. All results are on held-out patients.
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

from zetadp.base.epsilon import epsilon_named, epsilon_order, epsilon_shown, epsilon_value
from zetadp.core.metrics import LEVEL
from zetadp.privacy.threat import MASKED_SUMS, arm_shown
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
    wrapped,
)
from zetadp.report.provenance import Cohort
from zetadp.report.tables import best_without_noise, chance_named, holders, metric_shown, not_empty, private_rows

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
        Score of guessing, in %; no line by default. There is none either if the vertical axis begins above it.

    Returns
    -------
    Figure with a logarithmic axis of epsilon. Runs without noise have hollow marks at its right end. Bars, and the band
    around the best mean without noise, are intervals over patients. The area below the metric of public weights, before
    any private training, is shaded.
    """
    not_empty(table)
    drawn = _of(table, networks)
    curves, places, starts, best = _curves(drawn), _places(drawn["epsilon"]), _starts(drawn), best_without_noise(table)
    lowest, highest = _ends([*drawn["mean"], *drawn["ci_low"], *drawn["ci_high"], *best["mean"], *starts])
    metric = metric_shown(table["metric"].iloc[0])
    with figure_style():
        figure, (panel,) = panel_grid(1, 1, 3.5)
        span = highest - lowest
        panel.set_ylim(lowest, max([highest + 0.02 * span, *(best["ci_high"] + 0.08 * span)]))
        for start, names in starts.items():
            panel.axhspan(0, start, color=_AREA, linewidth=0, zorder=0)
            panel.axhline(start, color=GREY, linewidth=1, zorder=1)
            whose = f" of {', '.join(names)}" if len(starts) > 1 else ""
            _write(panel, 0.99, start, f"{PUBLIC}{whose}, {start:.1f} %", ha="right", va="top")
        for row in best.to_dict("records"):
            panel.axhspan(row["ci_low"], row["ci_high"], color=_BAND, linewidth=0, zorder=0)
            panel.axhline(row["mean"], color="black", linewidth=1, zorder=1)
            _write(panel, 0.01, np.fmax(row["mean"], row["ci_high"]), _best_named(row, drawn), ha="left", va="bottom")
        if chance is not None and chance >= lowest:
            panel.axhline(chance, color=GREY, linewidth=1, zorder=1)
            _write(panel, 0.01, chance, chance_named(chance), ha="left", va="bottom")
        width = max(places.values()) - min(places.values()) + 0.3
        for number, (label, rows) in enumerate(curves.items()):
            shift = 0.008 * width * (number - (len(curves) - 1) / 2)  # keeps bars apart
            _draw_curve(panel, rows, {epsilon: place + shift for epsilon, place in places.items()}, label, number)
        panel.set_xticks(list(places.values()), [epsilon_shown(epsilon) for epsilon in places])
        panel.set_xlim(min(places.values()) - 0.15, max(places.values()) + 0.15)
        step = 20 if span > 50 else 10 if span > 25 else 5
        panel.set_yticks(range(step * math.ceil(lowest / step), highest + 1, step))
        panel.grid(axis="y", color=_GRID, linewidth=0.6)
        panel.set_xlabel(guarantee_shown(drawn) or "ε")
        panel.set_ylabel(f"test {metric} in %")
        if len(curves) > 1:
            columns = legend_columns(list(curves), 0.9 * WIDTH)
            panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, borderaxespad=0.2)
        set_title(figure, f"{metric[:1].upper()}{metric[1:]}{_subject(drawn, curves)} against ε, {cohort}")
        meaning = "; ".join(filter(None, (_marks(drawn), without_noise_shown(places))))
        figure.supxlabel(wrapped(meaning, SMALL, 0.97 * WIDTH), x=0.01, ha="left", fontsize=SMALL)
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
    drawn = _of(table, networks)
    rows, epsilons = _rows(drawn), sorted(set(drawn["epsilon"]), key=epsilon_order)
    heights = {cell: height for height, cell in enumerate(rows)}
    shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.65, len(epsilons)))
    metric = metric_shown(table["metric"].iloc[0])
    with figure_style():
        figure, (panel,) = panel_grid(1, 1, 0.7 + max(0.4, 0.12 * len(epsilons)) * len(rows))
        started = drawn.dropna(subset=["public_start"]).drop_duplicates(["network", "arm"])
        if len(started):
            where = _heights(started, heights)
            panel.plot(started["public_start"], where, "|", markersize=15, mew=1.5, color=_TEXT, label=PUBLIC)
        for number, (epsilon, shade) in enumerate(zip(epsilons, shades, strict=True)):
            own = drawn[drawn["epsilon"] == epsilon]
            shift = min(0.16, 0.7 / len(epsilons)) * (number - (len(epsilons) - 1) / 2)  # keeps bars apart
            look = {**line_look(number), "color": shade, "linestyle": "none", "label": epsilon_named(epsilon)}
            if math.isinf(epsilon_value(epsilon)):
                look["markerfacecolor"] = "white"
            shifted = [height + shift for height in _heights(own, heights)]
            panel.errorbar(own["mean"], shifted, xerr=_bars(own), capsize=2, **look)
        for row in best_without_noise(table).to_dict("records"):
            panel.axvline(row["mean"], color="black", linewidth=1, zorder=1, label=_best_named(row, drawn))
        if chance is not None:
            panel.axvline(chance, color=GREY, linewidth=1, zorder=1, label=chance_named(chance))
        panel.set_yticks(range(len(rows)), [wrapped(label, SMALL, 2.4) for label in rows.values()])
        panel.set(xlim=(0, 101), ylim=(len(rows) - 0.4, -0.6))
        panel.grid(axis="x", color=_GRID, linewidth=0.6)
        panel.set_xlabel(f"test {metric} in %")
        set_title(figure, f"{metric[:1].upper()}{metric[1:]} of {'other ' if networks else ''}networks, {cohort}")
        meaning = "; ".join(filter(None, (guarantee_shown(drawn), without_noise_shown(epsilons))))
        set_legend(figure, [panel], _marks(drawn), meaning)
    return figure


def _of(table: pd.DataFrame, networks: Sequence[str] | None) -> pd.DataFrame:
    return table if networks is None else table[table["network"].isin(networks)]


def _curves(drawn: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of each curve by its label, which names what distinguishes the curves."""
    pairs = [(str(network), str(arm), rows) for (network, arm), rows in drawn.groupby(["network", "arm"], sort=False)]
    arms: dict[str, str] = dict(drawn[["arm", "threat"]].drop_duplicates().itertuples(index=False))
    by_threat = len(set(arms.values())) == len(arms)
    words = {arm: _THREATS[threat] if by_threat else arm_shown(arm, threat) for arm, threat in arms.items()}
    called = networks_shown(drawn)
    if len(called) == 1:
        return {words[arm]: rows for _, arm, rows in pairs}
    return {f"{called[network]}{f', {words[arm]}' if len(arms) > 1 else ''}": rows for network, arm, rows in pairs}


def _subject(drawn: pd.DataFrame, curves: Mapping[str, pd.DataFrame]) -> str:
    """Return what the title says of the only network, and of its only curve."""
    called = networks_shown(drawn)
    if len(called) > 1:
        return ""
    alone = f" with {next(iter(curves))}" if len(curves) == 1 and len(private_rows(drawn)) else ""
    return f" of network {next(iter(called.values()))}{alone}"


def _places(epsilons: Iterable[str]) -> dict[str, float]:
    """Return where the axis has each epsilon: its logarithm, then infinity, then runs without clipping."""
    ordered = sorted(set(epsilons), key=epsilon_order)
    places = {
        epsilon: math.log10(epsilon_value(epsilon)) for epsilon in ordered if math.isfinite(epsilon_value(epsilon))
    }
    for epsilon in ordered[len(places) :]:
        places[epsilon] = max(places.values(), default=-_GAP) + _GAP
    return places


def _starts(drawn: pd.DataFrame) -> dict[float, list[str]]:
    """Return the metric of the public weights of the networks, in %, each with the networks that start from it."""
    starts: dict[float, list[str]] = {}
    for row in drawn.dropna(subset=["public_start"]).drop_duplicates("network").to_dict("records"):
        starts.setdefault(row["public_start"], []).append(row["network"])
    return starts


def _ends(values: Iterable[float]) -> tuple[int, int]:
    """Return the ends of the vertical axis: multiples of five around values that are all above 50, else 0 and 100."""
    low, high = np.nanmin([*values]) / 5, np.nanmax([*values]) / 5
    below, above = 5 * math.floor(low - 0.4), 5 * math.ceil(high + 0.2)
    return (below, min(above, 100)) if below >= 50 else (0, 100)


def _draw_curve(panel: Axes, rows: pd.DataFrame, places: Mapping[str, float], label: str, number: int) -> None:
    """Draw a curve through the finite epsilons, and hollow marks for runs without noise."""
    look, private = line_look(number), private_rows(rows)
    free, hollow = rows.drop(private.index), {**look, "markerfacecolor": "white", "linestyle": "none"}
    for part, style in ((private, look), (free, hollow)):
        if len(part):
            where, named = part["epsilon"].map(places), part is private or private.empty
            panel.errorbar(where, part["mean"], _bars(part), label=label if named else None, capsize=3, **style)


def _bars(rows: pd.DataFrame) -> np.ndarray:
    """Return the lengths of error bars below and above means: intervals over patients, else the spread over seeds."""
    spread = rows["std"].fillna(0.0)
    below = (rows["mean"] - rows["ci_low"]).clip(lower=0).fillna(spread)
    above = (rows["ci_high"] - rows["mean"]).clip(lower=0).fillna(spread)
    return np.stack([below, above])


def _marks(drawn: pd.DataFrame) -> str:
    """Return what marks and bars show: the number of seeds, and intervals or spreads."""
    fewest, most = int(drawn["seeds"].min()), int(drawn["seeds"].max())
    count = "one seed" if most == 1 else f"mean of {most if fewest == most else f'{fewest} to {most}'} seeds"
    whose = holders(drawn)
    if drawn["ci_low"].notna().any():
        bars = f"; bars: {100 * LEVEL:g} % interval over {whose}"
    else:
        bars = "; bars: ± one standard deviation over seeds" if drawn["std"].notna().any() else ""
    return f"Held-out test {whose}; {count}{bars}"


def _rows(drawn: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the label of the row of each network and arm."""
    called, several = networks_shown(drawn), drawn["arm"].nunique() > 1
    cells = drawn[["network", "arm", "threat"]].drop_duplicates().itertuples(index=False)
    return {
        (str(network), str(arm)): called[str(network)]
        + (f", {arm_shown(arm, threat)}" if several or threat == MASKED_SUMS else "")
        for network, arm, threat in cells
    }


def _heights(rows: pd.DataFrame, heights: Mapping[tuple[str, str], int]) -> list[int]:
    return [heights[str(network), str(arm)] for network, arm in zip(rows["network"], rows["arm"], strict=True)]


def _best_named(row: Mapping[Any, Any], drawn: pd.DataFrame) -> str:
    """Return the label of the best mean without noise, which names its network unless that is the only one drawn."""
    alone = set(drawn["network"]) == {row["network"]}
    whose = "" if alone else f" ({row['network']})"
    return f"{BEST}{whose}, {row['mean']:.1f} %"


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
