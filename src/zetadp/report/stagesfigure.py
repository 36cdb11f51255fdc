"""Figure of the workflow from patients to results, with its rules in groups."""

from __future__ import annotations

import textwrap
from collections.abc import Collection
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from zetadp.report.figurestyle import SMALL, TEXT, WIDTH, figure_style


class Stage(NamedTuple):
    """A group of rules: its title, its purpose, its place in the figure (column, row), and its rules."""

    title: str
    does: str
    place: tuple[int, int]
    rules: frozenset[str]


def _rules(names: str) -> frozenset[str]:
    return frozenset(names.split())


STAGES = (
    Stage(
        "Data",
        "simulate or read patients, check them, say who is at which hospital",
        (0, 0),
        _rules(
            "simulate_patients assemble_cohort fetch_cohort index_cohort find_duplicates partition "
            "collect_ecgs fetch_digits fetch_speech index_clips simulate_volumes"
        ),
    ),
    Stage(
        "Inputs of networks",
        "cut slices, transform, whiten, compute features",
        (1, 0),
        _rules(
            "slice_volumes make_kspace whiten extract_features encode_ecgs encode_digits pair_digits "
            "encode_clips transform_clips undersample"
        ),
    ),
    Stage(
        "Private training",
        "find the noise that ε needs, train, record each release in a ledger",
        (2, 0),
        _rules("calibrate train_model train_federated"),
    ),
    Stage(
        "Public start",
        "train on simulated patients only; costs no privacy",
        (0, 1),
        _rules("simulate_public pretrain fit_layers fit_ecg_encoder fit_encoder fit_public_networks fit_word_encoder"),
    ),
    Stage(
        "Attacks",
        "attack the training code, and finished models",
        (1, 1),
        _rules("audit audit_membership invert_gradients name_candidates"),
    ),
    Stage(
        "Test and account",
        "test on held-out patients, compute ε from the ledgers",
        (2, 1),
        _rules("evaluate account_total account_speakers write_release"),
    ),
    Stage(
        "Report",
        "tables, figures, pages",
        (2, 2),
        _rules("make_tables make_figures draw_patient write_risk write_report"),
    ),
)
_ARROWS = (
    ("Data", "Inputs of networks"),
    ("Inputs of networks", "Private training"),
    ("Private training", "Test and account"),
    ("Test and account", "Report"),
    ("Public start", "Inputs of networks"),
    ("Attacks", "Report"),
)
_BOX = (2.7, 1.35)  # inches
_STEP = (3.3, 1.8)  # from one box to the next
_CHARACTERS = 33  # of a line in a box


def stages_figure(rules: Collection[str]) -> Figure:
    """Draw the stages of a workflow that has these rules; rules that belong to no stage are left out."""
    shown = {stage.title: stage for stage in STAGES if stage.rules & set(rules)}
    rows = 1 + max(stage.place[1] for stage in shown.values())
    with figure_style():
        figure = Figure(figsize=(WIDTH, rows * _STEP[1] - 0.35))
        FigureCanvasAgg(figure)
        panel = figure.add_axes((0, 0, 1, 1))
        panel.set_axis_off()
        panel.set_xlim(-0.1, WIDTH - 0.1)
        panel.set_ylim(0.15 - (rows - 1) * _STEP[1] - _BOX[1] - 0.25, 0.15)
        for stage in shown.values():
            _draw(panel, stage, sorted(stage.rules & set(rules)))
        for begin, end in _ARROWS:
            if begin in shown and end in shown:
                _join(panel, shown[begin], shown[end])
    return figure


def _corner(stage: Stage) -> tuple[float, float]:
    """Return left and top of a box."""
    return stage.place[0] * _STEP[0], -stage.place[1] * _STEP[1]


def _draw(panel: Axes, stage: Stage, rules: list[str]) -> None:
    left, top = _corner(stage)
    box = FancyBboxPatch(
        (left, top - _BOX[1]),
        *_BOX,
        boxstyle="round,pad=0,rounding_size=0.08",
        facecolor="#F4F4F4",
        edgecolor="#1A1A1A",
    )
    panel.add_patch(box)
    panel.text(left + 0.1, top - 0.09, stage.title, va="top", fontsize=TEXT, fontweight="bold")
    does = textwrap.wrap(stage.does, _CHARACTERS)
    panel.text(left + 0.1, top - 0.30, "\n".join(does), va="top", fontsize=SMALL)
    names = textwrap.fill(", ".join(rules), _CHARACTERS + 10)
    panel.text(left + 0.1, top - 0.36 - 0.16 * len(does), names, va="top", fontsize=7.5, color="#444444")


def _join(panel: Axes, begin: Stage, end: Stage) -> None:
    """Draw an arrow between the nearest sides of two boxes."""
    (left, top), (to_left, to_top) = _corner(begin), _corner(end)
    if begin.place[1] == end.place[1]:
        start, stop = (left + _BOX[0], top - _BOX[1] / 2), (to_left, to_top - _BOX[1] / 2)
    elif begin.place[0] == end.place[0]:
        start, stop = (left + _BOX[0] / 2, top - _BOX[1]), (to_left + _BOX[0] / 2, to_top)
    elif begin.place[1] > end.place[1]:
        start, stop = (left + 0.8 * _BOX[0], top), (to_left + 0.2 * _BOX[0], to_top - _BOX[1])
    else:
        start, stop = (left + 0.8 * _BOX[0], top - _BOX[1]), (to_left, to_top - _BOX[1] / 2)
    panel.annotate("", stop, start, arrowprops={"arrowstyle": "-|>", "color": "#1A1A1A", "linewidth": 1.2})
