"""What an attacker rebuilds of images from one message of k-space training, and what noise leaves of it.

Gradients of one round are inverted (`zetadp.audit.inversion`): of single images and of several together, of the whole
network and of the pooled one that the default trains, without noise and with the noise that one such message needs for
an epsilon. Beside each stands the best that anybody can do who saw no message: the mean of public images.

    make inversion
    python benchmarks/inversion.py --steps 3 --patients 1 --output FOLDER    # a quick look

Writes table.csv, table.md and images.svg.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from zetadp.audit.inversion import Contributions, Search, invert, whitened_kspace, with_what_whitening_loses
from zetadp.cohort.public import PublicSettings, simulate_public_patient
from zetadp.nn.models import NetworkSettings, build
from zetadp.privacy import gaussian
from zetadp.randomness import Purpose, stream
from zetadp.report.figurestyle import SMALL, WIDTH, figure_style, save_svg, set_title
from zetadp.report.provenance import origin
from zetadp.report.rendering import MISSING, Sheet, to_csv, to_markdown
from zetadp.storage import write_text
from zetadp.tasks.reconstruction.quality import nmse, ssim

if TYPE_CHECKING:
    from torch import nn

RESULTS = Path(__file__).parents[1] / "docs/results/inversion"
SIDE, CLASSES, DELTA, CLIP, SEED = 32, 4, 1e-3, 1.0, 41
PUBLIC = 40
"""Public patients, whose mean image is what one guesses without a message."""
NETWORKS = {
    "whole": NetworkSettings(widths=(16, 32), convolutions=1, head="hidden", hidden=64, groups=8),
    "pooled": NetworkSettings(widths=(16, 32), convolutions=1, head="pooled", groups=8),
}
WITHOUT_MESSAGE = "no message: mean of public images"
METHOD = (
    "L-BFGS with line search, from a random start and from the mean of public images, cosine of all layers, float64"
)


@dataclass(frozen=True)
class Condition:
    """What one message is of, and the noise on it.

    Attributes
    ----------
    network
        Name in `NETWORKS`.
    patients, images
        Patients in the message, and images of each.
    epsilon
        Of the one message, at `DELTA`; infinite where there is no noise.
    """

    network: str
    patients: int = 1
    images: int = 1
    epsilon: float = math.inf

    @property
    def message(self) -> str:
        """What the message is of, in words."""
        one = "1 image" if self.images == 1 else f"{self.images} images"
        return f"1 patient, {one}" if self.patients == 1 else f"mean of {self.patients} patients, {one} each"


CONDITIONS = (
    Condition("whole"),
    Condition("whole", images=4),
    Condition("whole", patients=4),
    Condition("pooled"),
    *(Condition("whole", epsilon=epsilon) for epsilon in (1000.0, 100.0, 8.0, 1.0)),
)
DRAWN = (0, 3, 4, 5, 6, 7)
"""Conditions of the figure."""


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return f"simulated public patients, seed {SEED}", "0 to 2"


def patients_images(first: int, count: int) -> np.ndarray:
    """Return an image of each class of some patients, shape (patient, class, row, column)."""
    settings = PublicSettings(seed=SEED)
    found = [simulate_public_patient(settings, number, slices=1, size=SIDE) for number in range(first, first + count)]
    return np.stack(found)[:, :, 0].astype(np.float64)


def attacked(
    model: nn.Module, condition: Condition, patient: int, search: Search, mean: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the true images of a message and what the attack found, both of shape (image, row, column).

    ``mean`` is the mean public image of each class, from which one of the searches starts.
    """
    classes = (np.arange(condition.images) + patient) % CLASSES
    images = patients_images(PUBLIC + condition.patients * patient, condition.patients)[:, classes]
    labels = torch.from_numpy(np.tile(classes, (condition.patients, 1)))
    of = Contributions(model, labels, whitened_kspace, clip=CLIP)
    message = of(torch.from_numpy(images)).detach()
    if math.isfinite(condition.epsilon):
        noise = stream(SEED, Purpose.NOISE, patient).standard_normal(len(message))
        message = message + torch.from_numpy(noise) * CLIP / gaussian.mu(condition.epsilon, DELTA)
    guess = torch.from_numpy(np.broadcast_to(mean[classes], images.shape).copy())
    found = invert(message, of, images.shape, search, torch.Generator().manual_seed(patient), guess=guess)
    true, rebuilt = images.reshape(-1, SIDE, SIDE), found.images.numpy().reshape(-1, SIDE, SIDE)
    return true, np.stack([with_what_whitening_loses(*pair) for pair in zip(rebuilt, true, strict=True)])


def scored(
    condition: str, network: str, epsilon: float, true: np.ndarray, found: np.ndarray
) -> list[dict[str, object]]:
    """Return one row an image."""
    return [
        {
            "message": condition,
            "network": network,
            "epsilon": epsilon,
            "ssim": float(ssim(one[None], other[None])[0]),
            "nmse": nmse(one, other),
        }
        for one, other in zip(true, found, strict=True)
    ]


def sheet(rows: pd.DataFrame) -> Sheet:
    """Lay the scores out for readers."""
    lines = []
    for (message, network, epsilon), own in rows.groupby(["message", "network", "epsilon"], sort=False):
        shown = MISSING if network == MISSING else "∞" if math.isinf(epsilon) else f"{epsilon:g}"
        bound = MISSING
        if network != MISSING and own["ssim"].size:
            free = math.isinf(epsilon)
            bound = "100 %" if free else f"{100 * (1 - gaussian.beta(0.1, gaussian.mu(epsilon, DELTA))):.1f} %"
        of = f"{own['ssim'].mean():.2f} ({own['ssim'].min():.2f} to {own['ssim'].max():.2f})"
        lines.append((message, network, shown, of, f"{own['nmse'].mean():.3f}", bound, str(len(own))))
    notes = (
        f"The attack: {METHOD}. The attacker knows weights, labels, Fourier transform and whitening. What whitening "
        "takes away (a scale of the even and of the odd part of an image, and the centre pixel) is fitted to the true "
        "image, also for the row without a message.",
        f"ε of this one message, per patient, at δ = {DELTA:g}, with gradients clipped to {CLIP:g}; real trainings "
        "send many messages, each with more noise. ∞: no noise.",
        "SSIM: mean and range over images. NMSE: mean. One of ten: how often at most the right one of ten equally "
        "likely candidates is named, by any attack (Hayes, Mahloujifar and Balle 2023).",
        "whole: two blocks of 16 and 32 filters and a hidden layer of 64 units, at random weights. pooled: the same "
        "with an average in place of the hidden layer.",
    )
    columns = ("message", "network", "ε", "SSIM", "NMSE", "one of ten", "images")
    return Sheet("Images rebuilt from one message of k-space training", columns, tuple(lines), notes, names=2)


def drawn(shown: list[tuple[str, np.ndarray, np.ndarray]]) -> Figure:
    """Draw true and rebuilt images, one column a condition."""
    with figure_style():
        figure = Figure(figsize=(WIDTH, 2.9))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained")
        panels = figure.subplots(2, len(shown), squeeze=False)
        for column, (title, true, found) in enumerate(shown):
            for row, image in enumerate((true, found)):
                panel = panels[row, column]
                panel.imshow(image, cmap="gray", vmin=0, vmax=float(true.max()), interpolation="nearest")
                panel.set_xticks([])
                panel.set_yticks([])
            panels[0, column].set_title(title, fontsize=SMALL)
        panels[0, 0].set_ylabel("true")
        panels[1, 0].set_ylabel("rebuilt")
        set_title(figure, "What one message of k-space training gives away")
    return figure


def main() -> None:
    """Attack, and write table and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patients", type=int, default=3, help="messages of each kind (%(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="steps of the search (%(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    mean = patients_images(0, PUBLIC).mean(axis=0)
    rows: list[dict[str, object]] = []
    shown = []
    for place, condition in enumerate(CONDITIONS):
        model = build(NETWORKS[condition.network], CLASSES, SIDE, stream(SEED, Purpose.WEIGHTS))
        for patient in range(chosen.patients):
            true, found = attacked(model, condition, patient, Search(steps=chosen.steps), mean)
            rows += scored(condition.message, condition.network, condition.epsilon, true, found)
            if place == 0:
                guess = with_what_whitening_loses(mean[patient % CLASSES], true[0])
                rows += scored(WITHOUT_MESSAGE, MISSING, 0.0, true, guess[None])
            if patient == 0 and place in DRAWN:
                noise = "no noise" if math.isinf(condition.epsilon) else f"ε = {condition.epsilon:g}"
                shown.append((f"{condition.network}, {noise}", true[0], found[0]))
            print(condition, patient, f"SSIM {rows[-1]['ssim']:.3f}", flush=True)
    table = pd.DataFrame(rows)
    made = origin(*declared())
    write_text(chosen.output / "table.csv", to_csv(table, made, float_format="%.4g"))
    laid = sheet(table)
    write_text(
        chosen.output / "table.md",
        to_markdown(replace(laid, notes=(*laid.notes, *made))),
    )
    save_svg(drawn(shown), chosen.output / "images.svg")


if __name__ == "__main__":
    main()
