"""Pictures of the results: accuracy against epsilon, confusion, one patient's data, training curves, classes.

Every function returns a matplotlib figure; `save_svg` writes it as the same bytes each time. Lines differ by colour,
style and marker, and maps rise evenly in lightness, so that every picture can be read in grey. Only held-out patients
of a cohort that may be shown appear here.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from zetadp.epsilon import UNCLIPPED, epsilon_order, epsilon_shown
from zetadp.privacy.threat import arm_shown
from zetadp.storage import written_whole
from zetadp.tables import CELL, PAPER_TABLE_1, per_class
from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

WIDTH = 9.6  # inches; browsers show an SVG inch as 96 px, so 922 px: report pages cut what is wider than 1000 px
MAX_HEIGHT = 12.0  # inches: 1152 px
MAX_MATRICES = 12
FLOOR_DECIBEL = -80.0

# Okabe and Ito's colours, from dark to light for the first three.
_COLOURS = ("#000000", "#0072B2", "#E69F00", "#CC79A7", "#D55E00", "#56B4E9", "#009E73", "#882255")
_STYLES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.5, 1.2)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (1, 3)),
    (0, (8, 1.5, 1, 1.5, 1, 1.5)),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_PAPER_GREY = "#999999"
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "zetadp",
    "svg.fonttype": "path",  # shapes instead of text: the same picture without the font
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "figure.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "image.interpolation": "nearest",
}


def save_svg(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, whole or not at all: no date and fixed identifiers, so equal figures are equal bytes."""
    with figure_style(), written_whole(path) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": "zetadp"})


def accuracy_against_epsilon(
    table: pd.DataFrame, cohort_label: str, *, paper: bool = True, chance: float = 25.0
) -> Figure:
    """Draw accuracy against epsilon, one panel for each network and one line for each arm.

    Parameters
    ----------
    table
        What `tables.table1` returned.
    cohort_label
        Name of the cohort for the title.
    paper
        Add the paper's printed figures in grey.
    chance
        Accuracy in % of a guess.

    Returns
    -------
    Figure whose bars span one standard deviation over seeds to either side; with one seed, the interval over patients.
    """
    _not_empty(table)
    networks, arms = list(table["network"].unique()), list(table["arm"].unique())
    shown, called = _arms_shown(table), _networks_shown(table)
    printed = {epsilon for row in PAPER_TABLE_1.values() for epsilon in row} if paper else set()
    epsilons = sorted({*table["epsilon"], *printed}, key=epsilon_order)
    with figure_style():
        figure, panels = _panels(len(networks), 2, 3.3)
        for panel, network in zip(panels, networks, strict=True):
            for index, arm in enumerate(arms):
                rows = table[(table["network"] == network) & (table["arm"] == arm)].set_index("epsilon")
                # A small shift keeps the bars of the arms apart.
                shift = 0.12 * (index - (len(arms) - 1) / 2)
                present = [(p + shift, rows.loc[e]) for p, e in enumerate(epsilons) if e in rows.index]
                bars = np.array([_bar(row) for _, row in present]).reshape(-1, 2).T
                heights = [float(row["mean"]) for _, row in present]
                panel.errorbar([p for p, _ in present], heights, bars, label=shown[arm], capsize=3, **_line(index))
            panel.axhline(chance, color="black", linewidth=0.8, linestyle=":", label=f"chance ({chance:g} %)")
            if paper:
                _draw_paper(panel, epsilons)
            panel.set_title(f"network {called[network]}", loc="left")
            _epsilon_axis(panel, epsilons)
            panel.set_ylim(0, 100)
            panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)
        _label_outer(panels, 2, "ε", "test accuracy in %")
        meaning = f"mean {_spread_meaning(table)}; ∞: clipped, no noise, no guarantee"
        if UNCLIPPED in epsilons:
            meaning += "; unclipped: neither, no guarantee"
        _finish(figure, panels, f"Accuracy against ε, {cohort_label}", meaning)
    return figure


def confusion_matrices(runs: pd.DataFrame, cohort_label: str) -> Figure:
    """Draw the confusion matrix of each network, arm and epsilon in ``runs``, counts summed over seeds.

    The colour and the upper number are the share of the true sequence (row) in %, the lower number counts images.

    Raises
    ------
    ValueError
        If ``runs`` has more cells than fit on a page; choose some.
    """
    _not_empty(runs)
    cells = [(str(n), str(a), str(e), group) for (n, a, e), group in runs.groupby(CELL)]
    cells.sort(key=lambda cell: (cell[0], cell[1], epsilon_order(cell[2])))
    if len(cells) > MAX_MATRICES:
        msg = f"Expected at most {MAX_MATRICES} confusion matrices a figure, found {len(cells)}."
        raise ValueError(msg)
    columns = min(3, len(cells))
    shown, called = _arms_shown(runs), _networks_shown(runs)
    with figure_style():
        figure, panels = _panels(len(cells), columns, 3.0, {1: 4.6, 2: 7.0, 3: WIDTH}[columns])
        image: Any = None
        for panel, (network, arm, epsilon, group) in zip(panels, cells, strict=True):
            counts = np.sum([np.array(matrix) for matrix in group["confusion"]], axis=0)
            totals = counts.sum(axis=1, keepdims=True)
            share = np.divide(100.0 * counts, totals, out=np.zeros(counts.shape), where=totals > 0)
            image = panel.imshow(share, cmap="Blues", norm=Normalize(0, 100))
            for (row, column), value in np.ndenumerate(share):
                colour = "white" if value > 55 else "black"
                text = f"{value:.1f}\n{counts[row, column]}" if totals[row] else "–"
                panel.text(column, row, text, ha="center", va="center", color=colour, fontsize=8, linespacing=1.3)
            names = group["sequences"].iloc[0]
            panel.set_xticks(range(len(names)), names)
            panel.set_yticks(range(len(names)), names)
            panel.tick_params(length=0)
            panel.spines[:].set_visible(False)
            seeds = f"{len(group)} seeds" if len(group) > 1 else "1 seed"
            panel.set_title(
                f"{called[network]}, {shown[arm]}\n{_epsilon_name(epsilon)}, {seeds}", loc="left", fontsize=9
            )
        _label_outer(panels, columns, "predicted sequence", "true sequence")
        figure.colorbar(image, ax=panels, label="share of the true sequence in %", shrink=0.6, aspect=30, pad=0.02)
        figure.suptitle(f"Confusion on held-out test patients, {cohort_label}", x=0.01, ha="left")
    return figure


def patient_figure(
    images: np.ndarray,
    kspace: np.ndarray,
    whitened: np.ndarray,
    sequences: Sequence[str],
    *,
    patient: str,
    slice_number: int,
    cohort_label: str,
) -> Figure:
    """Draw one slice of one held-out patient: image, k-space magnitude and phase, whitened real and imaginary part.

    Parameters
    ----------
    images
        Real array of shape (sequence, row, column), in the scanner's arbitrary units.
    kspace, whitened
        Complex arrays of shape (sequence, ky, kx), zero frequency at index ``n // 2``.
    sequences
        Name of each sequence.
    patient
        Identifier of the patient, who must not be a training patient.
    slice_number
        Index of the slice along the axial axis of the volume, from zero.
    cohort_label
        Name of the cohort for the title.
    """
    if not images.shape == kspace.shape == whitened.shape or images.shape[0] != len(sequences):
        msg = (
            f"Expected three arrays of {len(sequences)} images, found {images.shape}, {kspace.shape}, {whitened.shape}."
        )
        raise ValueError(msg)
    with np.errstate(divide="ignore"):
        peak = np.abs(kspace).max(axis=(-2, -1), keepdims=True)
        decibel = np.maximum(20 * np.log10(np.abs(kspace) / np.where(peak > 0, peak, 1)), FLOOR_DECIBEL)
    limit = float(max(np.abs(whitened.real).max(), np.abs(whitened.imag).max(), 1.0))
    top = images.max(axis=(-2, -1), keepdims=True)
    # Linear within one standard deviation, logarithmic beyond: the lowest frequencies are tens of times larger.
    signed = SymLogNorm(linthresh=1.0, vmin=-limit, vmax=limit, base=10)
    kinds: tuple[tuple[str, np.ndarray, str, Normalize, str], ...] = (
        ("image", images / np.where(top > 0, top, 1), "gray", Normalize(0, 1), "share of its\nmaximum"),
        ("k-space, magnitude", decibel, "viridis", Normalize(FLOOR_DECIBEL, 0), "dB below its\nmaximum"),
        ("k-space, phase", np.angle(kspace), "twilight", Normalize(-math.pi, math.pi), "radians"),
        ("whitened, real", whitened.real, "cividis", signed, "standard deviations\nof its image"),
        ("whitened, imaginary", whitened.imag, "cividis", signed, "standard deviations\nof its image"),
    )
    with figure_style():
        count = len(sequences)
        figure = Figure(figsize=(WIDTH, min(MAX_HEIGHT, 1.85 * count + 1.6)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(count, len(kinds), squeeze=False)
        rows, columns = images.shape[1:]
        for column, (title, values, colours, norm, unit) in enumerate(kinds):
            shown: Any = None
            for row in range(count):
                panel = grid[row, column]
                shown = panel.imshow(values[row], cmap=colours, norm=norm)
                panel.spines[:].set_visible(False)
                # Frequencies are counted from the centre, pixels from the corner.
                centre = (rows // 2, columns // 2) if column else (0, 0)
                ends = [(0, n // 2, n - 1) for n in (columns, rows)]
                panel.set_xticks(ends[0], [f"{tick - centre[1]}".replace("-", "−") for tick in ends[0]])
                panel.set_yticks(ends[1], [f"{tick - centre[0]}".replace("-", "−") for tick in ends[1]])
                panel.tick_params(labelbottom=row == count - 1, labelleft=column <= 1, length=2)
                if column == 0:
                    panel.set_ylabel(f"{sequences[row]}\nrow")
                if column == 1:
                    panel.set_ylabel("ky", labelpad=0)
                if row == count - 1:
                    panel.set_xlabel("kx" if column else "column")
            grid[0, column].set_title(title, fontsize=9.5)
            bar = figure.colorbar(shown, ax=grid[:, column], location="bottom", aspect=12, pad=0.02, shrink=0.9)
            bar.set_label(unit, fontsize=9)
            _bar_ticks(bar, norm, limit)
        title = f"Held-out patient {patient}, slice {slice_number} (axial, from 0), {cohort_label}"
        figure.suptitle(title, x=0.01, ha="left")
    return figure


def training_curves(histories: pd.DataFrame, cohort_label: str, *, chance: float = 25.0) -> Figure:
    """Draw accuracy on held-out validation patients against rounds: mean and band (one standard deviation) over seeds.

    Parameters
    ----------
    histories
        What `tables.collect_histories` returned; ``validation_accuracy`` is a fraction of one, missing where no patient
        was watched.
    cohort_label
        Name of the cohort for the title.
    chance
        Accuracy in % of a guess.
    """
    _not_empty(histories)
    cells = list(histories.groupby(["network", "arm"], sort=True))
    shown, called = _arms_shown(histories), _networks_shown(histories)
    watched = bool(histories["validation_accuracy"].notna().any())
    epsilons = sorted(histories["epsilon"].unique(), key=epsilon_order)
    with figure_style():
        # Epsilon has an order, so its lines take their colours from a map: lighter is less private.
        shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.88, len(epsilons)))
        figure, panels = _panels(len(cells), 2, 3.1)
        for panel, ((network, arm), cell) in zip(panels, cells, strict=True):
            for index, epsilon in enumerate(epsilons):
                run = cell[cell["epsilon"] == epsilon].dropna(subset=["validation_accuracy"])
                if run.empty:
                    continue
                summary = 100 * run.groupby("round")["validation_accuracy"].agg(["mean", "std"])
                rounds, mean, std = summary.index.to_numpy(), summary["mean"], summary["std"].fillna(0.0)
                panel.fill_between(rounds, mean - std, mean + std, color=shades[index], alpha=0.2, linewidth=0)
                look = {**_line(index), "color": shades[index]}
                # A marker now and then tells the lines apart in grey without hiding them.
                every = (index % 3, max(1, len(rounds) // 6))
                panel.plot(rounds, mean, label=_epsilon_name(epsilon), markevery=every, **look)
            panel.axhline(chance, color="black", linewidth=0.8, linestyle=":", label=f"chance ({chance:g} %)")
            panel.set_title(f"network {called[str(network)]}, {shown[str(arm)]}", loc="left")
            panel.set_ylim(0, 100)
            panel.set_xlim(left=0)
            panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)
        _label_outer(panels, 2, "round", "validation accuracy in %")
        meaning = "held-out validation patients; mean and band of ± 1 standard deviation over seeds"
        _finish(figure, panels, f"Training, {cohort_label}", meaning if watched else "no patients were watched")
    return figure


def accuracy_per_class(runs: pd.DataFrame, cohort_label: str) -> Figure:
    """Draw the recall of each sequence against epsilon, one panel for each network and arm.

    Bars span one standard deviation over seeds to either side.
    """
    table = per_class(runs)
    cells = list(table.groupby(["network", "arm"], sort=True))
    shown, called = _arms_shown(runs), _networks_shown(runs)
    epsilons = sorted(table["epsilon"].unique(), key=epsilon_order)
    names = list(table["sequence"].unique())
    with figure_style():
        figure, panels = _panels(len(cells), 2, 3.1)
        for panel, ((network, arm), cell) in zip(panels, cells, strict=True):
            for index, name in enumerate(names):
                rows = cell[cell["sequence"] == name].set_index("epsilon")
                shift = 0.1 * (index - (len(names) - 1) / 2)
                present = [(p + shift, rows.loc[e]) for p, e in enumerate(epsilons) if e in rows.index]
                spread = np.nan_to_num([row["recall_std"] for _, row in present])
                recall = [row["recall"] for _, row in present]
                panel.errorbar([p for p, _ in present], recall, spread, label=name, capsize=2, **_line(index))
            panel.set_title(f"network {called[str(network)]}, {shown[str(arm)]}", loc="left")
            _epsilon_axis(panel, epsilons)
            panel.set_ylim(0, 100)
            panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)
        _label_outer(panels, 2, "ε", "recall in %")
        meaning = "held-out test patients; mean ± standard deviation over seeds"
        _finish(figure, panels, f"Accuracy by sequence, {cohort_label}", meaning)
    return figure


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the look from matplotlib's own defaults, so that a user's settings cannot change the bytes."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def _panels(count: int, columns: int, height: float, width: float = WIDTH) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``count`` panels in rows of ``columns``, no taller than a page."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width, min(MAX_HEIGHT, rows * height + 1.2)))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", h_pad=0.08, hspace=0.04)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in grid[count:]:
        unused.set_visible(False)
    return figure, list(grid[:count])


def _arms_shown(runs: pd.DataFrame) -> dict[str, str]:
    """Return how each arm is called in pictures."""
    if "threat" not in runs:
        return {str(arm): str(arm) for arm in runs["arm"].unique()}
    pairs = runs[["arm", "threat"]].drop_duplicates().itertuples(index=False)
    return {str(arm): arm_shown(str(arm), str(threat)) for arm, threat in pairs}


def _networks_shown(runs: pd.DataFrame) -> dict[str, str]:
    """Return how each network is called in pictures: one whose epsilon is per image says so."""
    by_image = set(runs["network"][runs["unit"] == "image"]) if "unit" in runs else set()
    return {str(name): f"{name} (ε per image)" if name in by_image else str(name) for name in runs["network"].unique()}


def _draw_paper(panel: Axes, epsilons: Sequence[str]) -> None:
    """Draw the paper's printed figures behind the runs, in grey."""
    for (arm, cells), marker, fill in zip(PAPER_TABLE_1.items(), ("^", "v"), ("white", _PAPER_GREY), strict=True):
        places = [position for position, epsilon in enumerate(epsilons) if epsilon in cells]
        means = [cells[epsilons[position]][0] for position in places]
        line = panel.plot(
            places, means, "--", color=_PAPER_GREY, linewidth=1.2, zorder=1, label=f"paper, printed ({arm})"
        )
        line[0].set(marker=marker, markersize=5, markerfacecolor=fill)


def _spread_meaning(table: pd.DataFrame) -> str:
    """Say what the bars of `_bar` span in this table."""
    if table["seeds"].max() == 1:
        return "and interval over patients"
    return "± standard deviation over seeds" + (
        " (one seed: interval over patients)" if table["seeds"].min() == 1 else ""
    )


def _finish(figure: Figure, panels: Sequence[Axes], title: str, meaning: str) -> None:
    """Add the title, and below all panels one legend headed by what the marks mean."""
    entries: dict[str, Any] = {}
    for panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        entries.update(zip(labels, handles, strict=True))
    figure.suptitle(title, x=0.01, ha="left")
    # Runs first, references last; matplotlib lists plain lines before lines with bars.
    labels = sorted(entries, key=lambda label: label.startswith(("paper", "chance")))
    columns = len(labels) if len(labels) <= 5 else 4
    legend = figure.legend(
        [entries[label] for label in labels], labels, loc="outside lower left", ncols=columns, frameon=False
    )
    legend.set_title(meaning)
    legend.set_alignment("left")


def _label_outer(panels: Sequence[Axes], columns: int, x: str, y: str) -> None:
    """Label the axes at the left and at the bottom, where no further panel follows."""
    columns = min(columns, len(panels))
    for index, panel in enumerate(panels):
        if index % columns == 0:
            panel.set_ylabel(y)
        if index + columns >= len(panels):
            panel.set_xlabel(x)


def _line(index: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "linestyle": _STYLES[index % len(_STYLES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": 5,
        "linewidth": 1.5,
    }


def _epsilon_axis(panel: Axes, epsilons: Sequence[str]) -> None:
    """Give each epsilon one place on the axis: about logarithmic for the usual values, and room for infinity."""
    panel.set_xticks(range(len(epsilons)), [epsilon_shown(epsilon) for epsilon in epsilons])
    panel.set_xlim(-0.4, len(epsilons) - 0.6)


def _bar(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the lengths of an error bar below and above: the spread over seeds, or the interval with one seed."""
    if not math.isnan(row["std"]):
        return row["std"], row["std"]
    if not math.isnan(row["ci_low"]):
        return max(row["mean"] - row["ci_low"], 0.0), max(row["ci_high"] - row["mean"], 0.0)
    return 0.0, 0.0


def _bar_ticks(bar: Any, norm: Normalize, limit: float) -> None:  # noqa: ANN401  (matplotlib is untyped)
    """Set few ticks with short labels on a colour bar that is a fifth of the page wide."""
    if isinstance(norm, SymLogNorm):
        end = 10 ** math.floor(math.log10(limit))
        ticks = sorted({-float(end), -1.0, 0.0, 1.0, float(end)})
        bar.set_ticks(ticks, labels=[f"{tick:g}".replace("-", "−") for tick in ticks])
        bar.minorticks_off()
    elif norm.vmax == math.pi:
        bar.set_ticks([-math.pi, 0, math.pi], labels=["−π", "0", "π"])
    elif norm.vmin == FLOOR_DECIBEL:
        bar.set_ticks([FLOOR_DECIBEL, FLOOR_DECIBEL / 2, 0])
    else:
        bar.set_ticks([0, 0.5, 1])
    bar.ax.tick_params(labelsize=8)


def _epsilon_name(epsilon: str) -> str:
    return epsilon if epsilon == UNCLIPPED else f"ε = {epsilon_shown(epsilon)}"


def _not_empty(frame: pd.DataFrame) -> None:
    if frame.empty:
        msg = "Expected at least one finished run for the figure, found none. Train first."
        raise UserError(msg)
