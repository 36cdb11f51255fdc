"""Picture of the audits: what was claimed, what attacks could show, and the errors that they made."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from zetadp.figures import WIDTH, figure_style
from zetadp.privacy import accounting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from zetadp.audit.detection import AuditResult
    from zetadp.privacy.accounting import Mechanisms

WIDEST = 1.6
"""Bars are cut here, in units of the claim."""

MOST_CURVES = 4

_STANDS, _REFUTED, _FORBIDDEN, _GREY = "#0072B2", "#D55E00", "#F7DCCB", "#777777"
_CURVES = ("#000000", "#0072B2", "#CC79A7", "#009E73")
# Numbers of points that fall together stand on different sides of them.
_BESIDE = ((4, 4), (-10, -11), (4, -11), (-10, 4))
_LINES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1, 1.5)))


def audit_figure(results: Sequence[AuditResult], powers: Sequence[float | None], experiment: str) -> Figure:
    """Draw what each audit measured against its claim, and its errors against the claimed trade-off curves.

    Parameters
    ----------
    results
        Results of audits, whole trainings last.
    powers
        For each audit the chance to find what it looks for, or None where that is nearly certain.
    experiment
        Name of the experiment for the title.

    Returns
    -------
    Figure. Above: one bar an audit, up to the lower confidence bound, with the estimate and the upper end of what this
    attack finds, in units of the claim. Below: false-alarm rate and rate of misses of each attack, with confidence
    limits, for one round and for trainings. No attack on a mechanism as claimed gets into the shaded region.
    """
    numbered = list(enumerate(results, start=1))
    once = [(n, r) for n, r in numbered if r.errors is not None and sum((r.mechanisms or {}).values()) == 1]
    often = [(n, r) for n, r in numbered if r.errors is not None and (n, r) not in once]
    groups = [group for group in (("one round", once), ("whole trainings", often)) if group[1]]
    with figure_style():
        figure = Figure(figsize=(WIDTH, 1.6 + 0.36 * len(results) + (3.9 if groups else 0)))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.08)
        above, *below = figure.subfigures(
            1 + bool(groups), 1, height_ratios=[0.9 + 0.36 * len(results), 3.9][: 1 + bool(groups)], squeeze=False
        ).ravel()
        _bars(above.subplots(), numbered, powers)
        if below:
            panels = np.atleast_1d(below[0].subplots(1, len(groups)))
            for panel, (name, group) in zip(panels, groups, strict=True):
                _errors(panel, name, group)
        title = f"Claimed against measured privacy, {experiment}"
        figure.suptitle(title, x=0.01, ha="left")
    return figure


def _bars(panel: Axes, numbered: Sequence[tuple[int, AuditResult]], powers: Sequence[float | None]) -> None:
    """Draw one bar an audit, in units of its claim."""
    for row, ((_, result), power) in enumerate(zip(numbered, powers, strict=True)):
        claim = result.claimed or math.inf
        low, middle, high = (min(v / claim, WIDEST) for v in (result.measured, result.estimate, result.highest))
        # Where the attack has no upper end, the line ends at the estimate.
        high = high if math.isfinite(result.highest) else max(low, middle)
        colour = _STANDS if result.passed else _REFUTED
        panel.barh(row, low, height=0.5, color=colour)
        panel.plot([low, high], [row, row], color=_GREY, linewidth=1.2)
        panel.plot(middle, row, "o", color="white", markeredgecolor=_GREY, markeredgewidth=1.3, markersize=5.5)
        sign = "μ" if result.quantity == "mu" else "ε"
        text = f"{sign} ≥ {result.measured:.2f} of {result.claimed:.2f}"
        text += ("" if power is None else f", power {power:.2f}") if result.passed else ", refuted"
        panel.text(1.02, row, text, transform=panel.get_yaxis_transform(), va="center", fontsize=8.5)
    panel.axvspan(1, WIDEST, color=_FORBIDDEN, linewidth=0, zorder=0)
    panel.axvline(1, color="black", linewidth=1.2)
    panel.text(0.985, -0.95, "claimed", ha="right", va="center", fontsize=9)
    panel.text(1.015, -0.95, "refuted: more than claimed", ha="left", va="center", fontsize=9)
    panel.set_yticks(range(len(numbered)), [f"{_wrapped(result.name)}  {number}" for number, result in numbered])
    panel.set_ylim(len(numbered) - 0.4, -1.4)
    panel.set_xlim(0, WIDEST)
    panel.set_xticks(np.arange(0, WIDEST + 0.01, 0.2))
    panel.tick_params(axis="y", length=0, labelsize=8.5)
    panel.set_xlabel("share of the claim; bar: shown beyond chance, ○: estimate, line: confidence interval")
    panel.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    panel.set_axisbelow(True)


def _errors(panel: Axes, name: str, group: Sequence[tuple[int, AuditResult]]) -> None:
    """Draw the errors of attacks and the trade-off curves of what was claimed."""
    claims: dict[tuple[tuple[tuple[float, float], int], ...], Mechanisms] = {}
    for _, result in group:
        mechanisms = result.mechanisms or {}
        claims.setdefault(tuple(sorted(mechanisms.items())), mechanisms)
    rates = np.linspace(0.0, 1.0, 201)
    curves = [np.array(accounting.trade_off(one, rates.tolist())) for one in list(claims.values())[:MOST_CURVES]]
    # What every claim forbids, not only the strictest one.
    panel.fill_between(rates, np.min(curves, axis=0), 0, color=_FORBIDDEN, linewidth=0, zorder=0)
    panel.plot(rates, 1 - rates, color=_GREY, linewidth=0.8, label="guessing")
    for curve, key, colour, style in zip(curves, claims, _CURVES, _LINES, strict=False):
        numbers = ", ".join(str(n) for n, r in group if tuple(sorted((r.mechanisms or {}).items())) == key)
        panel.plot(rates, curve, color=colour, linestyle=style, linewidth=1.4, label=f"claimed for {numbers}")
    edge = 0.0
    for place, (number, result) in enumerate(group):
        errors = result.errors
        assert errors is not None
        colour = _STANDS if result.passed else _REFUTED
        panel.errorbar(
            errors.alpha,
            errors.beta,
            xerr=[[errors.alpha - errors.alpha_lower], [errors.alpha_upper - errors.alpha]],
            yerr=[[errors.beta - errors.beta_lower], [errors.beta_upper - errors.beta]],
            fmt="o",
            color=colour,
            markersize=3.5,
            linewidth=1,
            zorder=3,
        )
        panel.annotate(
            str(number),
            (errors.alpha, errors.beta),
            _BESIDE[place % len(_BESIDE)],
            textcoords="offset points",
            fontsize=9,
            color=colour,
        )
        edge = max(edge, errors.alpha_upper, errors.beta_upper)
    limit = min(1.0, math.ceil(10 * edge + 1.5) / 10)
    panel.set_xlim(0, limit)
    panel.set_ylim(0, limit)
    panel.set_aspect("equal")
    panel.set_title(f"errors, {name}", loc="left")
    panel.set_xlabel("false alarms (said “in”, was out)")
    panel.set_ylabel("misses (said “out”, was in)")
    panel.text(0.03, 0.03, "no attack gets here\nif the claim is true", transform=panel.transAxes, fontsize=8.5)
    panel.legend(loc="upper right", framealpha=0.9, edgecolor="white", fontsize=8.5)


def _wrapped(name: str) -> str:
    """Break a long name at a comma near its middle."""
    if len(name) < 44:
        return name
    commas = [index for index, letter in enumerate(name) if letter == ","]
    if not commas:
        return name
    middle = min(commas, key=lambda index: abs(index - len(name) / 2))
    return f"{name[: middle + 1]}\n{name[middle + 2 :]}"
