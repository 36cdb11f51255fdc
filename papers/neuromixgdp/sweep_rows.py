"""Sweep degree of mixing, noise on labels and share of open rows, as Figures 2, 3, 4 and 12 of Li, Cao and Yao do.

    python -m papers.neuromixgdp.sweep_rows

The rows are of pixels of MNIST, as in DPMix, from few people at a larger epsilon, so that the noise relative to the
sums is about that of 60,000 people at epsilon 1. The head is that of the library. One setting changes at a time; the
degree is that of the theorem unless it is swept. Nothing is chosen here. Runs are stored in results/release_mnist, so
that an interrupted sweep continues. Writes sweep.csv and sweep.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from papers.digits import KEPT, described
from papers.experiments import ended, laid_out, parser_of, write_table
from papers.keptruns import KeptRuns, environments
from papers.neuromixgdp.compare_mnist import CLASSES, DELTA, accuracy, examples, real_parts, released_rows
from papers.sizes import by_size
from zetadp.base.randomness import Purpose, stream
from zetadp.nn.heads import fit_head_to_rows
from zetadp.report.provenance import origin, seeds_shown

PEOPLE, EPSILON, SEEDS, MIXED = by_size(6000, smoke=300), 4.0, by_size((0, 1, 2), smoke=(0,)), 64
SWEPT = by_size(
    {
        "degree": (4.0, 16.0, 64.0, 256.0, 1024.0),
        "balance": (0.25, 0.5, 1.0, 2.0, 4.0),
        "active": (0.1, 0.2, 0.3, 0.5, 1.0),
    },
    smoke={"degree": (4.0,), "balance": (0.5,), "active": (0.3,)},
)
"""Values of m, images in a row, of λ, noise on labels over that on features, and of p, the share of open rows."""
TITLE = f"Released rows of pixels of MNIST, {PEOPLE} people and rows, ε = {EPSILON:g} per image, by m, λ and p"
NOTE = (
    "Test accuracy in %, mean and standard deviation over seeds. share_std is the standard deviation of a class's "
    f"share over rows, without noise; with p for m = {MIXED}. Noise is seeded and protects nobody."
)


@dataclass(frozen=True)
class Run:
    """One release and its head: the setting that is swept, its value, and the seed."""

    setting: str
    value: float
    seed: int

    def accuracy(self) -> float:
        """Release rows of pixels, learn a head from them, and return its accuracy on the test images in %."""
        x, labels = (part[:PEOPLE] for part in examples("mnist", "pixels", "train"))
        settings, name = {self.setting: self.value}, f"sweep-{self.setting}-{self.value:g}-{self.seed}"
        rows, _ = released_rows(x, labels, name, epsilon=EPSILON, delta=DELTA, classes=CLASSES, **settings)
        return accuracy(real_parts(fit_head_to_rows(rows)), *examples("mnist", "pixels", "test"))


def shares(mixed: float, active: float, rows: int = 20_000) -> np.ndarray:
    """Return the share of one class in rows without noise, for classes of equal size."""
    random = stream(0, Purpose.SCHEDULE)
    members = random.binomial(PEOPLE // CLASSES, mixed / PEOPLE / active, rows)
    return members * (random.random(rows) < active) / mixed


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each value; those of m and p also have the spread of a class's share over rows."""
    frame = runs.groupby(["setting", "value"], sort=False)["accuracy"]
    frame = frame.agg(mean="mean", std="std", seeds="size").reset_index()
    kinds = {"degree": lambda value: (value, 1.0), "active": lambda value: (MIXED, value)}
    frame["share_std"] = [
        shares(*kinds[row.setting](row.value)).std() if row.setting in kinds else float("nan")
        for row in frame.itertuples()
    ]
    return frame


def main() -> None:
    """Make the runs that are missing, and write the table."""
    arguments = parser_of(__doc__, "neuromixgdp").parse_args()
    store = KeptRuns(KEPT / "sweep.csv", Run, "accuracy")
    for run in store.missing(Run(s, v, seed) for s, values in SWEPT.items() for v in values for seed in SEEDS):
        store.add(run, accuracy=f"{run.accuracy():.2f}")
    runs = store.read()
    frame, source = (
        table(runs),
        origin(described("MNIST, 6000 + 10000 images, not simulated"), seeds_shown(SEEDS), runs=environments(runs)),
    )
    write_table(arguments.output / "sweep", frame, laid_out(TITLE, frame, (NOTE,)), source)


if __name__ == "__main__":
    ended(main)
