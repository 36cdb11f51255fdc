"""Statistics of real patients beside those of simulated public patients: where the public world is narrow.

    python -m benchmarks.world FOLDER             # FOLDER: a task in the layout of the Decathlon
    python -m benchmarks.world FOLDER --pictures  # also shows a slice of each real patient, for those who have the data

Nothing is trained and no accuracy is measured. A percentile of a real patient is the share of the simulated patients
with a smaller value. Writes world.csv and world.svg; with pictures, a figure of another name and no table.

Intensities are divided by the mean of the patient's brain in that sequence. The brain is where all four sequences have
signal, its edge the outermost pixel, and its inside lies four pixels (30 mm) below the edge. Fluid is the brightest
twentieth of the inside in T2w, white matter the darkest three tenths, grey matter the rest.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import ndimage

from zetadp.base.storage import write_text
from zetadp.mri.decathlon import SEQUENCES, read_task
from zetadp.mri.kspace import to_kspace
from zetadp.mri.volumes import read_centre_slices
from zetadp.phantom.public import draw_anatomy, draw_shapes, simulate_public_patient
from zetadp.report.figurestyle import figure_style, line_look, panel_grid, save_svg, set_legend, set_title
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv

RESULTS = Path(__file__).parents[1] / "docs/results"
SEED, PATIENTS, SLICES, SIZE = 9301, 200, 20, 32
KINDS = {"atlas": draw_anatomy, "shapes": draw_shapes}
"""Kinds of public patients, by name: the function that draws a brain."""
RINGS = ((1, 2), (2, 4), (4, 7), (7, 11), (11, 23))
"""Radii in k-space, in cycles per field of view."""
RADIUS = np.hypot(*(np.mgrid[:SIZE, :SIZE] - SIZE // 2))
SHOWN = (0.05, 0.5, 0.95)
DEPTHS = np.arange(1, 8)


def simulated(kind: str) -> list[np.ndarray]:
    """Return the images (sequence, slice, row, column) of the public patients of one kind."""
    return [simulate_public_patient(SEED, n, SLICES, SIZE, KINDS[kind]) for n in range(PATIENTS)]


def depths(images: np.ndarray) -> np.ndarray:
    """Return how deep pixels (slice, row, column) lie in the brain: 1 at its edge, 0 outside it."""
    brain = (images > 0.05 * images.mean((1, 2, 3), keepdims=True)).all(0)
    brain = ndimage.binary_opening(brain, np.ones((1, 2, 2)))
    return np.stack([ndimage.distance_transform_cdt(each, "chessboard") for each in brain])


def power(image: np.ndarray) -> np.ndarray:
    """Return the power (slice, row, column) of k-space without its centre, as shares of a slice."""
    squared = np.abs(to_kspace(image)) ** 2
    squared[:, SIZE // 2, SIZE // 2] = 0
    return np.asarray(squared / squared.sum((1, 2), keepdims=True))


def ring(shares: np.ndarray, low: float, high: float) -> float:
    """Return the share of the `power` in a ring, in the median slice."""
    return float(np.median(shares[:, (low <= RADIUS) & (high > RADIUS)].sum(1)))


def statistics(images: np.ndarray) -> dict[str, float]:
    """Return the statistics of one patient by name."""
    depth = depths(images)
    edge, inside = depth == 1, depth > 4
    images = images / np.stack([image[depth > 0].mean() for image in images])[:, None, None, None]
    flair, t1w, t1gd, t2w = (image[inside] for image in images)
    fluid, white = t2w > np.quantile(t2w, 0.95), t2w < np.quantile(t2w, 0.3)
    found = {"head: width in pixels": np.median((depth > 0).any(1).sum(1)), "head: pixels": (depth > 0).sum() / SLICES}
    for name, image, values in zip(SEQUENCES, images, (flair, t1w, t1gd, t2w), strict=True):
        shares = power(image)
        found |= {f"{name}: power, {low} to {high}": ring(shares, low, high) for low, high in RINGS}
        found[f"{name}: edge over inside"] = image[edge].mean() / values.mean()
        found[f"{name}: spread inside"] = values.std()
        found[f"{name}: fine texture inside"] = (image - ndimage.gaussian_filter(image, (0, 1, 1)))[inside].std()
        found[f"{name}: fluid over the rest"] = values[fluid].mean() / values[~fluid].mean()
        found[f"{name}: grey over white matter"] = values[~fluid & ~white].mean() / values[white].mean()
    pairs = {"FLAIR, T1w": (flair, t1w), "FLAIR, T1gd": (flair, t1gd), "T1w, T1gd": (t1w, t1gd)}
    pairs |= {"FLAIR, T2w": (flair, t2w), "T1w, T2w": (t1w, t2w)}
    return found | {f"{name}: correlation inside": np.corrcoef(*pair)[0, 1] for name, pair in pairs.items()}


def table(worlds: dict[str, list[np.ndarray]], real: Sequence[np.ndarray]) -> pd.DataFrame:
    """Return one row a statistic: the percentile of each real patient in each world, and three quantiles of it."""
    of_real = pd.DataFrame([statistics(images) for images in real])
    columns = {}
    for kind, patients in worlds.items():
        values = pd.DataFrame([statistics(images) for images in patients])
        for number, patient in of_real.iterrows():
            rank = 100 * ((values < patient).mean() + (values == patient).mean() / 2)
            columns[f"{kind}: percentile of patient {int(str(number)) + 1}"] = rank.round(1)
        columns |= {f"{kind}: quantile {100 * q:.0f}": values.quantile(q) for q in SHOWN}
    return pd.DataFrame(columns).rename_axis("statistic").reset_index()


def by_radius(images: np.ndarray) -> list[np.ndarray]:
    """Return, for each sequence, the share of the power in rings of one cycle, on a scale of tens."""
    return [np.log10([ring(shares, low, low + 1) for low in range(1, SIZE // 2)]) for shares in map(power, images)]


def by_depth(images: np.ndarray) -> list[np.ndarray]:
    """Return, for each sequence, the mean intensity at each depth over that of the inside."""
    depth = depths(images)
    return [np.array([image[depth == d].mean() for d in DEPTHS]) / image[depth > 4].mean() for image in images]


def picture(worlds: dict[str, list[np.ndarray]], real: Sequence[np.ndarray], *, pictures: bool) -> Figure:
    """Draw slices, and curves of the real patients on bands of the simulated ones."""
    slices = {f"simulated: {kind}": patients[0] for kind, patients in worlds.items()}
    if pictures:
        slices |= {f"real patient {number}": images for number, images in enumerate(real, start=1)}
    atlas, *_ = worlds.values()
    curves: dict[str, tuple[Callable[[np.ndarray], list[np.ndarray]], np.ndarray]] = {
        "share of power, log 10": (by_radius, np.arange(1, SIZE // 2)),
        "intensity over inside": (by_depth, DEPTHS),
    }
    below = ("radius in cycles per field of view", "depth below the edge in pixels of 7.5 mm")
    with figure_style():
        figure, panels = panel_grid(4 * (len(slices) + len(curves)), 4, 2.2)
        for name, images in slices.items():
            for index, image in enumerate(images):
                panel = panels.pop(0)
                panel.imshow(image[SLICES // 2], cmap="gray", vmin=0, vmax=np.quantile(image, 0.995))
                panel.set(xticks=[], yticks=[], title=SEQUENCES[index], ylabel=name if index == 0 else "")
        lines = list(panels)
        for (name, (curve, places)), under in zip(curves.items(), below, strict=True):
            found = np.array([curve(images) for images in atlas])
            low, middle, high = np.nanquantile(found, SHOWN, axis=0)
            for index, sequence in enumerate(SEQUENCES):
                panel = panels.pop(0)
                panel.fill_between(places, low[index], high[index], color="#CCCCCC", label="simulated, 5 to 95 %")
                panel.plot(places, middle[index], color="#777777", label="simulated, median")
                for number, images in enumerate(real):
                    look = line_look(number) | {"markersize": 3}
                    panel.plot(places, curve(images)[index], label=f"real patient {number + 1}", **look)
                panel.set(title=sequence, ylabel=name if index == 0 else "", xlabel=under if index == 1 else "")
        meaning = f"Bands: {PATIENTS} simulated public patients with brains of the atlas; lines: three real patients"
        set_legend(figure, lines, meaning)
        set_title(figure, "Simulated public patients, and statistics of real ones beside them")
    return figure


def main() -> None:
    """Write table and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", action="store_true", help="also draw slices of the real patients")
    parser.add_argument("--output", type=Path, default=RESULTS / "world", help="of table and figure, without ending")
    given = parser.parse_args()
    task = read_task(given.folder)
    files = [given.folder / file for file in (*task.training, *task.test)]
    real = [read_centre_slices(file, task.sequences, SLICES, SIZE) for file in files]
    worlds = {kind: simulated(kind) for kind in KINDS}
    if given.pictures:
        save_svg(picture(worlds, real[:3], pictures=True), given.output.with_name("world_real.svg"))
        return
    about = f"{PATIENTS} simulated public patients of each kind; {len(real)} real patients"
    made = origin(about, f"{SEED}", command="python -m benchmarks.world FOLDER")
    write_text(given.output.with_suffix(".csv"), to_csv(table(worlds, real), made, float_format="%.3g"))
    save_svg(picture(worlds, real[:3], pictures=False), given.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
