"""Figures of attacks: audits of the code against its claims, membership inference, and attacks on messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from zetadp.audit.candidates import TRIALS
from zetadp.audit.detection import FALSE_ALARM, AuditResult
from zetadp.audit.inversion import Rebuilt, similarity
from zetadp.audit.membership import Attack, Claim
from zetadp.base.epsilon import rounded_up
from zetadp.report.figurestyle import (
    GREY,
    SMALL,
    WIDTH,
    blank,
    figure_style,
    label_outer,
    line_look,
    panel_grid,
    set_legend,
    set_title,
    wrapped,
)

WIDEST = 1.6
"""End of the axis of bars, in units of the claim; longer bars are cut."""

_STANDS, _REFUTED, _FORBIDDEN, _GREY = "#0072B2", "#D55E00", "#F7DCCB", "#777777"

LEAST_RATE = 0.004
"""Lower end of both axes of the ROC."""

_TICKS = (0.01, 0.1, 1.0)
# Audiences of the claims, with colour and line style of their regions. The reader's lies inside the server's.
_REGIONS = {"reader": ("a reader of the models", "#C4D9EA", "-"), "server": ("the server", "#E6E6E6", "--")}
_ROC, _BAND, _CURVE = "#D55E00", "#000000", "#0072B2"

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
    attack showed; a point marks the estimate, and a line the confidence interval.
    """
    with figure_style():
        figure, (panel,) = panel_grid(1, 1, 0.9 + 0.36 * len(results))
        for row, result in enumerate(results):
            claim = result.claimed or math.inf
            low, middle, high = (min(v / claim, WIDEST) for v in (result.measured, result.estimate, result.highest))
            # An interval without an upper end is drawn up to the estimate.
            high = high if math.isfinite(result.highest) else max(low, middle)
            panel.barh(row, low, height=0.5, color=_STANDS if result.passed else _REFUTED)
            panel.plot([low, high], [row, row], color=_GREY, linewidth=1.2)
            panel.plot(middle, row, "o", color="white", markeredgecolor=_GREY, markeredgewidth=1.3, markersize=5.5)
            text = f"ε ≥ {result.measured:.2f} of {rounded_up(result.claimed, 3)}"
            text += ("" if result.power is None else f", power {result.power:.2f}") if result.passed else ", refuted"
            panel.text(1.02, row, text, transform=panel.get_yaxis_transform(), va="center", fontsize=8.5)
        panel.axvspan(1, WIDEST, color=_FORBIDDEN, linewidth=0, zorder=0)
        panel.axvline(1, color="black", linewidth=1.2)
        panel.text(0.985, -0.95, "claimed", ha="right", va="center", fontsize=9)
        panel.text(1.015, -0.95, "refuted, if a bar ends here", ha="left", va="center", fontsize=9)
        panel.set_yticks(range(len(results)), [wrapped(result.name, SMALL, 3.2) for result in results])
        panel.set_ylim(len(results) - 0.4, -1.4)
        panel.set_xlim(0, WIDEST)
        panel.set_xticks(np.arange(0, WIDEST + 0.01, 0.2))
        panel.tick_params(axis="y", length=0, labelsize=8.5)
        panel.set_xlabel("share of the claim; bar: shown beyond chance, ○: estimate, line: confidence interval")
        panel.grid(axis="x", color="#DDDDDD", linewidth=0.6)
        panel.set_axisbelow(True)
        set_title(figure, f"Claimed against measured privacy, {experiment}")
        figure.supxlabel(_key(results), x=0.01, ha="left", fontsize=8.5, linespacing=1.4)
    return figure


def _key(results: Sequence[AuditResult]) -> str:
    """Explain the symbols and words of the picture."""
    deltas = ", ".join(f"{delta:g}" for delta in sorted({result.delta for result in results}))
    return "\n".join(
        [
            f"ε (at δ = {deltas}): claimed, and (≥) shown by the attack. Canary: a patient made to be found. "
            "B: clipping norm.",
            "p: chance of a patient to be drawn. Noise: seeded, or exact, of the operating system. "
            "Power: chance to refute the claim if the noise were too small by √2.",
        ]
    )


def membership_roc(attacks: Sequence[Attack], claims: Mapping[str, Claim], cohort_label: str) -> Figure:
    """Draw the ROC of membership inference, one panel for each attacked arm, with logarithmic axes.

    Parameters
    ----------
    attacks
        Attacked arms. All are drawn against the claims of the private arm.
    claims
        Claims of the private arm, by audience: ``reader`` and ``server``.
    cohort_label
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
            panel.plot([LEAST_RATE, 1], [LEAST_RATE, 1], color=_GREY, linewidth=0.8, zorder=1, label="guessing")
            for depth, (audience, (who, colour, style)) in enumerate(_REGIONS.items()):
                claim, curve = claims[audience], allowed[audience]
                panel.fill_between(rates, curve, LEAST_RATE, color=colour, linewidth=0, zorder=-depth)
                label = f"allowed to {who} (ε = {rounded_up(claim.epsilon, 3)} at δ = {claim.delta:g})"
                panel.plot(rates, curve, color=_CURVE, linestyle=style, linewidth=1.3, label=label, zorder=2)
            panel.set_title(f"{attack.arm.name}:\n{_verdict(attack)}", loc="left")
            trials = f"{len(attack.scores_in)} models\nwith the patient,\n{len(attack.scores_out)} without"
            panel.text(0.94, 0.03, trials, transform=panel.transAxes, ha="right", va="bottom", fontsize=8)
            panel.set(xscale="log", yscale="log", xlim=(LEAST_RATE, 1.2), ylim=(LEAST_RATE, 1.2), box_aspect=1)
            panel.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
            panel.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
            panel.minorticks_off()
        label_outer(panels, len(panels), "false-positive rate", "true-positive rate")
        meaning = f"the band holds at all points and in all panels together, but for a chance of {FALSE_ALARM:g}"
        set_legend(figure, panels, meaning)
        set_title(figure, f"Membership inference against finished models, {cohort_label}")
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
        figure = blank(ROW * len(kinds) + 0.8, w_pad=0.02, h_pad=0.02)
        panels = figure.subplots(len(kinds), 2 * len(RANKS), squeeze=False)
        for panel in panels.ravel():
            panel.set_xticks([])
            panel.set_yticks([])
        for line, (name, found) in zip(panels, kinds, strict=True):
            line[0].set_ylabel(wrapped(name, SMALL, 1.6), fontsize=SMALL, rotation=0, ha="right", va="center")
            for place, (true, image, score) in enumerate(_ranked(found)):
                for panel, shown in zip(line[2 * place : 2 * place + 2], (true, image), strict=True):
                    panel.imshow(shown, cmap="gray", vmin=0, vmax=float(true.max()), interpolation="nearest")
                line[2 * place + 1].set_xlabel(f"SSIM {score:.2f}", fontsize=SMALL, labelpad=1)
        for place, rank in enumerate(RANKS):
            panels[0, 2 * place].set_title("true", fontsize=SMALL)
            panels[0, 2 * place + 1].set_title(f"rebuilt, {rank}", fontsize=SMALL)
        set_title(figure, title)
    return figure


def _ranked(found: Sequence[Rebuilt]) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """Return true image, found image and SSIM of the best, the median and the worst."""
    pairs = [pair for one in found for pair in zip(one.true, one.found, strict=True)]
    each = [(true, image, similarity(true, image)) for true, image in pairs]
    each.sort(key=lambda entry: -entry[2])
    return [each[0], each[len(each) // 2], each[-1]]


def candidates_figure(found: pd.DataFrame, delta: float) -> Figure:
    """Draw the rate of correctly named candidates against epsilon, one panel for each number of candidates.

    Parameters
    ----------
    found
        Columns network, candidates, epsilon and, in %, bound, worst and named (`zetadp.audit.candidates.attacked`).
    delta
        Delta of these epsilons.
    """
    numbers, networks = found["candidates"].unique(), found["network"].unique()
    with figure_style():
        drawn, panels = panel_grid(len(numbers), 2, 3.4)
        for panel, candidates in zip(panels, numbers, strict=True):
            own = found[found["candidates"] == candidates].sort_values("epsilon")
            first = own[own["network"] == networks[0]]
            panel.plot(first["epsilon"], first["bound"], **line_look(0), label="at most, for every attack")
            panel.plot(first["epsilon"], first["worst"], **line_look(1), label="worst candidates")
            for number, name in enumerate(networks):
                line = own[own["network"] == name]
                panel.plot(line["epsilon"], line["named"], **line_look(2 + number), label=f"measured: {name}")
            panel.axhline(100 / candidates, color=GREY, linestyle=":", label="guessing")
            panel.set_xscale("log")
            epsilons = first["epsilon"].tolist()
            panel.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
            panel.minorticks_off()
            panel.set_ylim(0, 103)
            panel.set_xlabel("ε")
            panel.set_title(f"one of {candidates} candidates", loc="left")
        panels[0].set_ylabel("right one named, in %")
        set_title(drawn, "Naming the right candidate from all messages of a training")
        meaning = (
            f"Simulated patients. ε of the whole training, per patient, at δ = {delta:g}; everybody takes part in "
            f"every round. Standard error at most {50 / math.sqrt(TRIALS):.1f}."
        )
        set_legend(drawn, panels, wrapped(meaning, SMALL, 0.97 * WIDTH))
    return drawn
