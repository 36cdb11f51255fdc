"""Figures of attacks on messages: images rebuilt from one message, and candidates identified from all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from zetadp.audit.candidates import TRIALS
from zetadp.audit.inversion import Rebuilt, similarity
from zetadp.report.figurestyle import (
    MAX_HEIGHT,
    SMALL,
    WIDTH,
    figure_style,
    line_look,
    panel_grid,
    set_legend,
    set_title,
    wrapped,
)

RANKS = ("best", "median", "worst")
ROW = 1.15
"""Height of a row of images in inches."""


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
        figure = Figure(figsize=(WIDTH, min(MAX_HEIGHT, ROW * len(kinds) + 0.8)))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02)
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
            panel.axhline(100 / candidates, color="#999999", linestyle=":", label="guessing")
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
