"""Picture of the audits: what was claimed, what attacks could show, and the errors that they made."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from zetadp.audit.detection import AuditResult, Errors
from zetadp.epsilon import rounded_up
from zetadp.figurestyle import WIDTH, figure_style
from zetadp.privacy import accounting
from zetadp.privacy.accounting import Mechanisms

WIDEST = 1.6
"""Bars are cut here, in units of the claim."""

MOST_CURVES = 4

_STANDS, _REFUTED, _FORBIDDEN, _GREY = "#0072B2", "#D55E00", "#F7DCCB", "#777777"
_CURVES = ("#000000", "#0072B2", "#CC79A7", "#009E73")
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
    once = [(n, r) for n, r in numbered if sum(r.mechanisms.values()) == 1]
    often = [(n, r) for n, r in numbered if sum(r.mechanisms.values()) > 1]
    groups = [group for group in (("one round", once), ("whole trainings", often)) if group[1]]
    with figure_style():
        figure = Figure(figsize=(WIDTH, 6.5 + 0.36 * len(results)))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.08)
        rows = figure.subfigures(2, 1, squeeze=False, height_ratios=[0.9 + 0.36 * len(results), 4.5])
        above, below = rows[:, 0]
        _bars(above.subplots(), numbered, powers)
        panels = np.atleast_1d(below.subplots(1, len(groups)))
        for panel, (name, group) in zip(panels, groups, strict=True):
            _errors(panel, name, group)
        title = f"Claimed against measured privacy, {experiment}"
        figure.suptitle(title, x=0.01, ha="left")
        figure.supxlabel(_key(results), x=0.01, ha="left", fontsize=8.5, linespacing=1.4)
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
        text = f"{sign} ≥ {result.measured:.2f} of {rounded_up(result.claimed, 3)}"
        text += ("" if power is None else f", power {power:.2f}") if result.passed else ", refuted"
        panel.text(1.02, row, text, transform=panel.get_yaxis_transform(), va="center", fontsize=8.5)
    panel.axvspan(1, WIDEST, color=_FORBIDDEN, linewidth=0, zorder=0)
    panel.axvline(1, color="black", linewidth=1.2)
    panel.text(0.985, -0.95, "claimed", ha="right", va="center", fontsize=9)
    panel.text(1.015, -0.95, "refuted, if a bar ends here", ha="left", va="center", fontsize=9)
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
        claims.setdefault(tuple(sorted(result.mechanisms.items())), result.mechanisms)
    rates = np.linspace(0.0, 1.0, 201)
    curves = [np.array(accounting.trade_off(one, rates.tolist())) for one in list(claims.values())[:MOST_CURVES]]
    # What every claim forbids, not only the strictest one.
    reach = "out of reach, if the claims hold"
    panel.fill_between(rates, np.min(curves, axis=0), 0, color=_FORBIDDEN, linewidth=0, zorder=0, label=reach)
    (guessing,) = panel.plot(rates, 1 - rates, color=_GREY, linewidth=0.8, label="guessing")
    for curve, key, colour, style in zip(curves, claims, _CURVES, _LINES, strict=False):
        numbers = ", ".join(str(n) for n, r in group if tuple(sorted(r.mechanisms.items())) == key)
        panel.plot(rates, curve, color=colour, linestyle=style, linewidth=1.4, label=f"claimed for {numbers}")
    for _, result in group:
        errors = result.errors
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
    limits = [max(r.errors.alpha_upper, r.errors.beta_upper) for _, r in group]
    limit = min(1.0, math.ceil(10 * max(limits) + 1.5) / 10)
    if limit <= 0.5:
        guessing.set_label("_outside")
    drawn = [np.column_stack([rates, curve]) for curve in (*curves, 1 - rates)]
    _number_points(panel, group, np.concatenate(drawn), limit)
    panel.set_xlim(0, limit)
    panel.set_ylim(0, limit)
    panel.set_aspect("equal")
    panel.set_title(f"errors, {name}", loc="left")
    panel.set_xlabel("false alarms (said “in”, was out)")
    panel.set_ylabel("misses (said “out”, was in)")
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, frameon=False, fontsize=8.5)


def _number_points(panel: Axes, group: Sequence[tuple[int, AuditResult]], drawn: np.ndarray, limit: float) -> None:
    """Write the number of each audit at that end of its error bars which is farthest from everything else."""
    crosses = {number: _cross(result.errors) for number, result in group}
    written = np.empty((0, 2))
    for number, result in group:
        errors, gap = result.errors, 0.035 * limit
        ends = np.array(
            [
                (errors.alpha, errors.beta_upper + gap),
                (errors.alpha_upper + gap, errors.beta),
                (errors.alpha, errors.beta_lower - gap),
                (errors.alpha_lower - gap, errors.beta),
            ]
        )
        others = [cross for other, cross in crosses.items() if other != number]
        # A number close to a curve is legible; one close to another audit's bars is taken for that audit's.
        room = np.minimum(2 * _distances(ends, drawn), _distances(ends, np.concatenate([written, *others])))
        room[((ends < gap) | (ends > limit - gap)).any(axis=1)] = -1
        x, y = ends[np.argmax(room)]
        written = np.vstack([written, (x, y)])
        colour = _STANDS if result.passed else _REFUTED
        panel.text(x, y, str(number), ha="center", va="center", fontsize=9, color=colour, zorder=4)


def _distances(places: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return how far each place is from the nearest of the points."""
    return np.asarray(np.linalg.norm(places[:, None] - points, axis=-1).min(axis=1, initial=np.inf))


def _cross(errors: Errors) -> np.ndarray:
    """Return points along both error bars."""
    along = np.linspace(0, 1, 25)
    across = errors.alpha_lower + along * (errors.alpha_upper - errors.alpha_lower)
    upwards = errors.beta_lower + along * (errors.beta_upper - errors.beta_lower)
    return np.concatenate(
        [
            np.column_stack([across, np.full_like(along, errors.beta)]),
            np.column_stack([np.full_like(along, errors.alpha), upwards]),
        ]
    )


def _key(results: Sequence[AuditResult]) -> str:
    """Explain the symbols and words of the picture."""
    deltas = ", ".join(f"{delta:g}" for delta in sorted({r.delta for r in results if r.delta is not None}))
    return "\n".join(
        [
            f"μ, ε{f' (at δ = {deltas})' if deltas else ''}: privacy figures, claimed and (≥) shown by the attack. "
            "Canary: a patient made to be found. B: clipping norm.",
            "p: chance of a patient to be drawn. Noise: seeded, or of the operating system (os). "
            "Power: chance to refute the claim if the noise were too small by √2.",
        ]
    )


def _wrapped(name: str) -> str:
    """Break a long name at a comma near its middle."""
    if len(name) < 44:
        return name
    commas = [index for index, letter in enumerate(name) if letter == ","]
    if not commas:
        return name
    middle = min(commas, key=lambda index: abs(index - len(name) / 2))
    return f"{name[: middle + 1]}\n{name[middle + 2 :]}"
