"""Draw slices of simulated public patients, from whom the public backbone learnt.

    python -m benchmarks.public_world

The command simulates the first patients of the shipped backbone's seeds and writes docs/results/public_world.svg. It
takes a few seconds. A column is one patient: the upper half has brains of the atlas, the lower half random shapes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from zetadp.mri.decathlon import SEQUENCES
from zetadp.phantom.public import simulate_public_patient
from zetadp.phantom.public_brains import draw_anatomy, draw_shapes
from zetadp.report.figurestyle import figure_style, save_svg

FILE = Path(__file__).parents[1] / "docs/results/public_world.svg"
KINDS = {"brains of the atlas": (1, draw_anatomy), "brains of random shapes": (501, draw_shapes)}
"""By kind of brain: the seed of the shipped backbone's public patients, and the function that draws a brain."""
PATIENTS, SLICES, SIZE = 8, 20, 64
"""Number of patients of each kind, and slices of a patient. The backbone sees 32 pixels; 64 are easier to look at."""


def main() -> None:
    """Simulate the patients and draw their middle slices."""
    with figure_style():
        figure = Figure(figsize=(9.6, 1.15 * len(SEQUENCES) * len(KINDS) + 0.8), layout="constrained")
        for part, (title, (seed, anatomy)) in zip(figure.subfigures(len(KINDS), 1), KINDS.items(), strict=True):
            part.suptitle(title)
            for column, number in enumerate(range(PATIENTS)):
                images = simulate_public_patient(seed, number, SLICES, SIZE, anatomy)[:, SLICES // 2]
                for row, image in enumerate(images):
                    axes = part.add_subplot(len(images), PATIENTS, row * PATIENTS + column + 1)
                    axes.imshow(image / np.quantile(image, 0.995), cmap="gray", vmin=0, vmax=1)
                    axes.set(xticks=[], yticks=[])
                    if column == 0:
                        axes.set_ylabel(SEQUENCES[row])
    save_svg(figure, FILE)


if __name__ == "__main__":
    main()
