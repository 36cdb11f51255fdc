"""Figure of one held-out patient's data, at each step from image to network input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure

from zetadp.report.figurestyle import blank, figure_style, set_title

FLOOR_DECIBEL = -80.0


def patient_figure(
    images: np.ndarray,
    kspace: np.ndarray,
    whitened: np.ndarray,
    sequences: Sequence[str],
    *,
    title: str,
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
    title
        Title that names patient, slice and cohort. The patient must not be a training patient.
    """
    if not images.shape == kspace.shape == whitened.shape or images.shape[0] != len(sequences):
        raise ValueError(
            f"Expected three arrays of {len(sequences)} images, found {images.shape}, {kspace.shape}, {whitened.shape}."
        )
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
        figure = blank(1.85 * count + 1.6)
        grid = figure.subplots(count, len(kinds), squeeze=False)
        rows, columns = images.shape[1:]
        for column, (kind, values, colours, norm, unit) in enumerate(kinds):
            image: Any = None
            for row in range(count):
                panel = grid[row, column]
                image = panel.imshow(values[row], cmap=colours, norm=norm)
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
            grid[0, column].set_title(kind, fontsize=9.5)
            bar = figure.colorbar(image, ax=grid[:, column], location="bottom", aspect=12, pad=0.02, shrink=0.9)
            bar.set_label(unit, fontsize=9)
            _bar_ticks(bar, norm, limit)
        set_title(figure, title)
    return figure


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
