"""The common style of all figures, and their terms for runs, seeds and guarantees.

Lines differ in colour, style and marker, so that every figure can be read in grey.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from zetadp.accounting.threat import NoiseSource, arm_shown
from zetadp.base.epsilon import Target
from zetadp.base.storage import written_whole

WIDTH = 9.6  # inches: 922 px in browsers, which show an SVG inch as 96 px; report pages cut figures above 1000 px
MAX_HEIGHT = 12.0  # inches: 1152 px
GREY = "#999999"
TITLE, TEXT, SMALL = 12.0, 10.0, 9.0  # points

# Okabe and Ito's colours, from dark to light for the first three.
_COLOURS = ("#000000", "#0072B2", "#E69F00", "#CC79A7", "#D55E00", "#56B4E9", "#009E73", "#882255")
# Dots are reserved for references such as guessing.
_STYLES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (2.2, 1.2)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (2.2, 4)),
    (0, (8, 1.5, 1, 1.5, 1, 1.5)),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_HANDLE = 0.65  # inches that a legend's entry takes besides its text
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "zetadp",
    "svg.fonttype": "path",  # shapes instead of text: the same picture without the font
    "font.family": "DejaVu Sans",
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "figure.titlesize": TITLE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "image.interpolation": "nearest",
}


def save_svg(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, whole or not at all. It has no date or random identifier: equal figures, equal bytes."""
    with figure_style(), written_whole(path) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": "zetadp"})


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the style within a block, on matplotlib's defaults: a user's settings cannot change the bytes."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def line_look(index: int) -> dict[str, Any]:
    """Return colour, style and marker of the line with this number; the first eight differ in each of the three."""
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "linestyle": _STYLES[index % len(_STYLES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": 5,
        "linewidth": 1.5,
    }


def blank(height: float, width: float = WIDTH, *, tallest: float = MAX_HEIGHT, **room: float) -> Figure:
    """Return an empty figure, by default no taller than a page.

    ``room`` has the distances of matplotlib's constrained layout.
    """
    figure = Figure(figsize=(width, min(tallest, height)))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", **room)
    return figure


def panel_grid(count: int, columns: int, height: float, width: float = WIDTH) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``count`` panels in rows of ``columns``, no taller than a page."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = blank(rows * height + 1.2, width, h_pad=0.08, hspace=0.04)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in grid[count:]:
        unused.set_visible(False)
    return figure, list(grid[:count])


def columns_for(count: int) -> int:
    """Return the number of columns in which ``count`` panels fit on a page."""
    return 2 if count <= 6 else 3 if count <= 15 else 4


def name_panel(panel: Axes, name: str, columns: int, share: float = 0.8) -> None:
    """Write the title of a panel, wrapped to a share of the width of its column."""
    size = TEXT if columns < 3 else SMALL
    panel.set_title(wrap_text(name, size, share * WIDTH / columns), loc="left", fontsize=size)


def percent_axis(panel: Axes) -> None:
    """Make the vertical axis span 0 to 100 %, with room for whole markers at both ends."""
    panel.set_ylim(-3, 103)
    panel.set_yticks(range(0, 101, 20))
    panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)


def label_outer(panels: Sequence[Axes], columns: int, x: str, y: str) -> None:
    """Label the vertical axes of the left column, and the horizontal axes of the lowest panel of each column."""
    columns = min(columns, len(panels))
    width = 0.75 * WIDTH / columns
    for index, panel in enumerate(panels):
        if index % columns == 0:
            panel.set_ylabel(y)
        if index + columns >= len(panels):
            panel.set_xlabel(wrap_text(x, TEXT, width))


def set_title(figure: Figure, title: str) -> None:
    """Write the title at the top left, in as many lines as the figure's width requires."""
    figure.suptitle(wrap_text(title, TITLE, 0.97 * figure.get_figwidth()), x=0.01, ha="left")


def set_legend(figure: Figure, panels: Sequence[Axes], *meaning: str) -> None:
    """Write one legend below all panels, with a heading that explains the marks.

    Parameters
    ----------
    figure, panels
        Figure and its panels, from whose labelled artists the legend is made.
    meaning
        Lines of the heading; empty ones are left out.
    """
    entries: dict[str, Any] = {}
    for panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        entries.update(zip(labels, handles, strict=True))
    labels = sorted(entries, key=lambda label: label.startswith("guessing"))  # which comes last
    width = 0.97 * figure.get_figwidth()
    legend = figure.legend(
        [entries[label] for label in labels],
        labels,
        loc="outside lower left",
        ncols=legend_columns(labels, width),
        frameon=False,
    )
    legend.set_title(wrap_text("\n".join(filter(None, meaning)), TEXT, width))
    legend.set_alignment("left")


def wrap_text(text: str, size: float, width: float) -> str:
    """Break a text of ``size`` points into lines no wider than ``width`` inches."""
    lines = []
    for paragraph in text.split("\n"):
        lines.append("")
        for word in re.split(r"(?<![=+]) (?![=+])", paragraph):  # "ε = 1" is one word
            longer = f"{lines[-1]} {word}".lstrip()
            if lines[-1] and _width(longer, size) > width:
                lines.append(word)
            else:
                lines[-1] = longer
    return "\n".join(lines)


def _width(line: str, size: float) -> float:
    """Return the width of a line in inches, plus 4 %, because screens round the width of each letter."""
    width, _, _ = text_to_path.get_text_width_height_descent(line, FontProperties(size=size), ismath=False)
    return 1.04 * float(width) / 72


def legend_columns(labels: Sequence[str], width: float) -> int:
    """Return the number of columns of a legend that fit next to each other."""
    widths = [_width(label, SMALL) + _HANDLE for label in labels]
    for count in range(len(labels), 1, -1):
        if sum(max(column) for column in np.array_split(widths, count)) <= width:
            return count
    return 1


def arms_shown(runs: pd.DataFrame) -> dict[str, str]:
    """Return the name of each arm in figures."""
    pairs = runs[["arm", "threat"]].drop_duplicates().itertuples(index=False)
    return {str(arm): arm_shown(str(arm), str(threat)) for arm, threat in pairs}


def networks_shown(runs: pd.DataFrame) -> dict[str, str]:
    """Return the name of each network in figures, with a remark if its epsilon is per image."""
    by_image = set(runs["network"][runs["unit"] == "image"])
    return {str(name): f"{name} (ε per image)" if name in by_image else str(name) for name in runs["network"].unique()}


def guarantee_shown(runs: pd.DataFrame) -> str:
    """Return the meaning of epsilon in a figure of these runs: unit, delta, and whether the noise is simulated.

    Empty if no run is private.
    """
    private = runs[runs["epsilon"].map(lambda target: target.private).astype(bool)]
    if private.empty:
        return ""
    source = private["noise"] if "noise" in private else private["noise_source"]
    units = set(private["unit"])
    whole = sorted(units - {"image"}) or ["image"]
    unless = " unless marked" if "image" in units - set(whole) else ""
    deltas = " or ".join(f"{delta:g}" for delta in sorted(set(private["delta"].astype(float))))
    simulated = ", simulated noise" if (source == NoiseSource.SEEDED.value).any() else ""
    return f"ε per {' or '.join(whole)}{unless}, δ = {deltas}{simulated}"


def without_noise_shown(targets: Iterable[Target]) -> str:
    """Return an explanation of the targets without a guarantee; empty if all have a guarantee."""
    free = sorted({target for target in targets if not target.private})
    words = {True: "clipped, no noise, no guarantee", False: "no noise either, no guarantee"}
    return "; ".join(f"{target.short}: {words[target.clipped]}" for target in free)
