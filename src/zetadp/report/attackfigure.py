"""Figures of attacks: audits of the code against its claims, membership inference, and attacks on messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from zetadp.audit.detection import FALSE_ALARM, Claim
from zetadp.audit.inversion import Rebuilt, similarity
from zetadp.audit.membership import Attack
from zetadp.audit.trainings import AuditResult
from zetadp.base.epsilon import rounded_up
from zetadp.base.tables import numbers_of
from zetadp.report.figurestyle import (
    GREY,
    SMALL,
    blank,
    figure_style,
    label_outer,
    line_look,
    panel_grid,
    set_legend,
    set_title,
    wrap_text,
)

WIDEST = 1.6
"""End of the axis of bars, in units of the claim; longer bars are cut."""
LEAST_RATE = 0.004
"""Lower end of both axes of the ROC."""

_TICKS = (0.01, 0.1, 1.0)
# Audiences of the claims, with colour and line style of their regions. The reader's lies inside the server's.
_REGIONS = {"reader": ("a reader of the models", "#C4D9EA", "-"), "server": ("the server", "#E6E6E6", "--")}
_ROC, _BAND, _CURVE, _GUESS = "#D55E00", "#000000", "#0072B2", "#777777"

RANKS = ("best", "median", "worst")
ROW = 1.15
"""Height of a row of images in inches."""


def audit_figure(results: Sequence[AuditResult], experiment: str) -> Figure:
    """Draw each audit's measurement against its claim.

    Parameters
    ----------
    results
        Results of audits.
    experiment
        Name of the experiment for the title.

    Returns
    -------
    Figure with one bar for each audit, in units of the claim. The bar ends at the lower confidence bound of what the
    attack showed, and a point marks the estimate.
    """
    with figure_style():
        figure, (panel,) = panel_grid(1, 1, 0.9 + 0.36 * len(results))
        for row, result in enumerate(results):
            claim, power = result.claim.epsilon, result.audited.power
            low, middle = (min(value / (claim or math.inf), WIDEST) for value in (result.measured, result.estimate))
            panel.barh(row, low, height=0.5, color="#0072B2" if result.passed else "#D55E00")
            panel.plot(middle, row, "o", color="white", markeredgecolor=_GUESS, markersize=5.5)
            text = f"ε ≥ {result.measured:.2f} of {rounded_up(claim, 3)}"
            text += ("" if power is None else f", power {power:.2f}") if result.passed else ", refuted"
            panel.text(1.02, row, text, transform=panel.get_yaxis_transform(), va="center", fontsize=SMALL)
        panel.axvspan(1, WIDEST, color="#F7DCCB", linewidth=0, zorder=0)
        panel.axvline(1, color="black", linewidth=1.2)
        panel.set_yticks(range(len(results)), [wrap_text(result.audited.name, SMALL, 3.2) for result in results])
        panel.set(xlim=(0, WIDEST), ylim=(len(results) - 0.4, -0.6))
        panel.set_xlabel("share of the claim; bar: shown beyond chance, ○: estimate; a bar in the shade refutes")
        deltas = ", ".join(f"{delta:g}" for delta in sorted({result.claim.delta for result in results}))
        set_title(figure, f"Claimed against measured privacy, {experiment}, at δ = {deltas}")
    return figure


def membership_roc(attacks: Sequence[Attack], claims: Mapping[str, Claim], people: str) -> Figure:
    """Draw the ROC of membership inference, one panel for each attacked arm, with logarithmic axes.

    Parameters
    ----------
    attacks
        Attacked arms. All are drawn against the claims of the private arm.
    claims
        Claims of the private arm, by audience: ``reader`` and ``server``.
    people
        Name of the patients for the title.

    Returns
    -------
    Figure with the trade-off curve of each claim as the edge of a shaded region, the measured ROC, and the lower edge
    of its confidence band.
    """
    rates = np.geomspace(LEAST_RATE, 1, 150)
    allowed = {audience: claim.power(rates) for audience, claim in claims.items()}
    with figure_style():
        figure, panels = panel_grid(len(attacks), len(attacks), 3.8)
        for panel, attack in zip(panels, attacks, strict=True):
            # Drawn in the order of the legend; zorder decides what is on top.
            panel.step(*_empirical(attack), where="post", color=_ROC, linewidth=1.6, zorder=3, label="measured")
            band = attack.band.sort_values("fpr_upper")  # the true ROC passes above its points
            lower = np.maximum(band["lower"], LEAST_RATE / 10)
            panel.plot(
                band["fpr_upper"], lower, "^-", color=_BAND, linewidth=1.2, zorder=4, label="lower confidence band"
            )
            panel.plot([LEAST_RATE, 1], [LEAST_RATE, 1], color=_GUESS, linewidth=0.8, zorder=1, label="guessing")
            for depth, (audience, (audience_name, colour, style)) in enumerate(_REGIONS.items()):
                claim, curve = claims[audience], allowed[audience]
                panel.fill_between(rates, curve, LEAST_RATE, color=colour, linewidth=0, zorder=-depth)
                label = f"allowed to {audience_name} (ε = {rounded_up(claim.epsilon, 3)} at δ = {claim.delta:g})"
                panel.plot(rates, curve, color=_CURVE, linestyle=style, linewidth=1.3, label=label, zorder=2)
            trials = f"{len(attack.scores_in)} models with, {len(attack.scores_out)} without"
            panel.set_title(f"{attack.arm}:\n{_verdict(attack)}\n{trials}", loc="left")
            panel.set(xscale="log", yscale="log", xlim=(LEAST_RATE, 1.2), ylim=(LEAST_RATE, 1.2), box_aspect=1)
            panel.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
            panel.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
            panel.minorticks_off()
        label_outer(panels, len(panels), "false-positive rate", "true-positive rate")
        meaning = (
            "Models trained with and without the attacked patient. The probability that the band is wrong at any point "
            f"of any panel is at most {FALSE_ALARM:g}."
        )
        set_legend(figure, panels, meaning)
        set_title(figure, f"Membership inference against finished models, {people}")
    return figure


def _empirical(attack: Attack) -> tuple[np.ndarray, np.ndarray]:
    """Return the rates of false and of true alarms for every threshold, as steps."""
    outs = np.sort(attack.scores_out)[::-1]
    ins = np.sort(attack.scores_in)
    false = np.arange(len(outs)) / len(outs)
    true = 1 - np.searchsorted(ins, outs, side="right") / len(ins)
    # Logarithmic axes have no zero.
    return np.append(np.maximum(false, LEAST_RATE / 10), 1), np.append(np.maximum(true, LEAST_RATE / 10), 1)


def _verdict(attack: Attack) -> str:
    if attack.leaves("server"):
        return "leaves both regions"
    return "leaves the reader's region" if attack.leaves("reader") else "stays inside"


def rebuilt_figure(kinds: Sequence[tuple[str, Sequence[Rebuilt]]], title: str) -> Figure:
    """Draw the best, the median and the worst image of each kind of message next to the true one.

    Parameters
    ----------
    kinds
        Name of each kind, and the images rebuilt from its messages.
    title
        Title of the figure.
    """
    with figure_style():
        # On one page, the images of many kinds would be too small to recognise anything.
        figure = blank(ROW * len(kinds) + 0.8, tallest=math.inf, w_pad=0.02, h_pad=0.02)
        panels = figure.subplots(len(kinds), 2 * len(RANKS), squeeze=False)
        for panel in panels.ravel():
            panel.set_xticks([])
            panel.set_yticks([])
        for line, (name, rebuilt) in zip(panels, kinds, strict=True):
            line[0].set_ylabel(wrap_text(name, SMALL, 1.6), fontsize=SMALL, rotation=0, ha="right", va="center")
            for index, (true, image, score) in enumerate(_rank(rebuilt)):
                for panel, picture in zip(line[2 * index : 2 * index + 2], (true, image), strict=True):
                    panel.imshow(picture, cmap="gray", vmin=0, vmax=float(true.max()), interpolation="nearest")
                line[2 * index + 1].set_xlabel(f"SSIM {score:.2f}", fontsize=SMALL, labelpad=1)
        for index, rank in enumerate(RANKS):
            panels[0, 2 * index].set_title("true", fontsize=SMALL)
            panels[0, 2 * index + 1].set_title(f"rebuilt, {rank}", fontsize=SMALL)
        set_title(figure, title)
    return figure


def _rank(rebuilt: Sequence[Rebuilt]) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """Return true image, rebuilt image and SSIM of the best, the median and the worst result."""
    pairs = [pair for result in rebuilt for pair in zip(result.true, result.images, strict=True)]
    scored = [(true, image, similarity(true, image)) for true, image in pairs]
    scored.sort(key=lambda entry: -entry[2])
    return [scored[0], scored[len(scored) // 2], scored[-1]]


def candidates_figure(table: pd.DataFrame) -> Figure:
    """Draw the rate of correctly named candidates against epsilon, one panel for each number of candidates.

    Parameters
    ----------
    table
        Result of `zetadp.audit.candidates.attack_candidates`.
    """
    numbers, networks = table["candidates"].unique(), table["network"].unique()
    with figure_style():
        figure, panels = panel_grid(len(numbers), 2, 3.4)
        for panel, candidates in zip(panels, numbers, strict=True):
            groups = table[table["candidates"] == candidates].sort_values("epsilon").groupby("network")
            first = groups.get_group(networks[0])
            lines = {"at most, for every attack": first["bound"], "worst candidates": first["worst"]}
            lines |= {f"measured: {name}": groups.get_group(name)["named"] for name in networks}
            for number, (label, values) in enumerate(lines.items()):
                panel.plot(first["epsilon"], values, **line_look(number), label=label)
            panel.axhline(100 / candidates, color=GREY, linestyle=":", label="guessing")
            panel.set_xscale("log")
            panel.set_xticks(first["epsilon"], [f"{epsilon:g}" for epsilon in first["epsilon"]])
            panel.minorticks_off()
            panel.set_ylim(0, 103)
            panel.set_title(f"one of {candidates} candidates", loc="left")
        deltas = numbers_of(table, "delta")
        label_outer(panels, 2, f"ε of the whole training, per patient, at δ = {deltas}", "right one named, in %")
        set_title(figure, "Naming the right candidate from all messages of a training")
        set_legend(figure, panels, "Simulated patients; everybody takes part in every round.")
    return figure
