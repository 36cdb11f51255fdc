"""Picture of membership inference: each attack's ROC with its lower band, over the regions that the claims allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from zetadp.audit.detection import FALSE_ALARM
from zetadp.epsilon import rounded_up
from zetadp.figurestyle import WIDTH, figure_style

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from zetadp.audit.membership import Attack, Claim

LEAST_RATE = 0.004
"""Where both axes begin."""

_TICKS = (0.01, 0.1, 1.0)
# Who is promised what, with the colour of the region and the style of its edge; the reader's lies in the server's.
_REGIONS = {"reader": ("a reader of the models", "#C4D9EA", "-"), "server": ("the server", "#E6E6E6", "--")}
_ROC, _BAND, _CURVE = "#D55E00", "#000000", "#0072B2"


def membership_roc(attacks: Sequence[Attack], claims: Mapping[str, Claim], cohort_label: str) -> Figure:
    """Draw one panel for each attacked arm, both axes logarithmic.

    Parameters
    ----------
    attacks
        Attacked arms. Arms without a claim of their own are drawn against the private arm's.
    claims
        Claims of the private arm, by audience: ``reader`` and ``server``.
    cohort_label
        Name of the patients for the title.

    Returns
    -------
    Figure with the trade-off curve of each claim as the edge of a shaded region, what epsilon and delta alone allow as
    dots, the measured ROC, and the lower edge of its confidence band.
    """
    rates = np.geomspace(LEAST_RATE, 1, 150)
    allowed = {audience: (claim.power(rates), claim.power_by_epsilon(rates)) for audience, claim in claims.items()}
    with figure_style():
        figure = Figure(figsize=(WIDTH, 5.0))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.08)
        panels = list(figure.subplots(1, len(attacks), squeeze=False, sharey=True).ravel())
        for panel, attack in zip(panels, attacks, strict=True):
            # In the order of the legend; what lies over what is set apart.
            panel.step(*_empirical(attack), where="post", color=_ROC, linewidth=1.6, zorder=3, label="measured")
            _draw_band(panel, attack)
            panel.plot([LEAST_RATE, 1], [LEAST_RATE, 1], color="#777777", linewidth=0.8, zorder=1, label="guessing")
            for depth, (audience, (who, colour, style)) in enumerate(_REGIONS.items()):
                claim, (curve, _) = claims[audience], allowed[audience]
                panel.fill_between(rates, curve, LEAST_RATE, color=colour, linewidth=0, zorder=-depth)
                label = f"allowed to {who} (ε = {rounded_up(claim.epsilon, 3)} at δ = {claim.delta:g})"
                panel.plot(rates, curve, color=_CURVE, linestyle=style, linewidth=1.3, label=label, zorder=2)
            for _, lines in allowed.values():
                panel.plot(rates, lines, ":", color=_CURVE, linewidth=1.0, zorder=2, label="the same by ε and δ alone")
            panel.set_title(f"{attack.arm.name}:\n{_verdict(attack)}", loc="left")
            trials = f"{len(attack.scores_in)} models\nwith the patient,\n{len(attack.scores_out)} without"
            panel.text(0.94, 0.03, trials, transform=panel.transAxes, ha="right", va="bottom", fontsize=8)
            _axes(panel)
        panels[0].set_ylabel("true-positive rate")
        handles, labels = panels[0].get_legend_handles_labels()
        entries = dict(zip(labels, handles, strict=True))
        legend = figure.legend(entries.values(), entries.keys(), loc="outside lower left", ncols=2, frameon=False)
        legend.set_title(
            f"the band holds at all points and in all panels together, but for a chance of {FALSE_ALARM:g}"
        )
        legend.set_alignment("left")
        figure.suptitle(f"Membership inference against finished models, {cohort_label}", x=0.01, ha="left")
    return figure


def _draw_band(panel: Axes, attack: Attack) -> None:
    """Draw the points above which the true ROC passes."""
    band = attack.band.sort_values("fpr_upper")
    lower = np.maximum(band["lower"], LEAST_RATE / 10)
    look: dict[str, Any] = {"color": _BAND, "markersize": 6, "linewidth": 1.2, "zorder": 4}
    panel.plot(band["fpr_upper"], lower, "^-", label="lower confidence band", **look)


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


def _axes(panel: Axes) -> None:
    for axis in (panel.xaxis, panel.yaxis):
        axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (LEAST_RATE, 1.2)})
        axis.set_major_locator(FixedLocator(_TICKS))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.set_xlabel("false-positive rate")
    panel.set_box_aspect(1)
