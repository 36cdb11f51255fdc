"""Choose the settings for training heads of domain study, on simulated hospitals.

    python -m benchmarks.study_selection

The consortia have brains of random shapes, which differ from most patients that the public head has learnt from. In one
of them every hospital has a scanner of its own. In each of the other three all hospitals share one protocol, so that
all their patients differ from the public ones in the same way. The search is that of head_selection.py, with the images
of a slice classified together, and with tapers. Writes study_selection.csv.
"""

from __future__ import annotations

from itertools import product

import torch

from benchmarks.head_selection import ALL, ONE_PROTOCOL, REPETITIONS, SHAPES, TRAINED, arguments, searched
from zetadp.base.storage import write_text
from zetadp.core.start import shipped_backbone
from zetadp.nn.backbone import load_backbone
from zetadp.nn.settings import SLICE, STUDY, NetworkSettings
from zetadp.report.provenance import origin, seeds_shown
from zetadp.report.rendering import to_csv

SEEDS = (SHAPES, *ONE_PROTOCOL)
SIZES = tuple((components, 0.0) for components in (8, 16, 32, 64)) + tuple(
    (64, taper) for taper in (0.5, 0.75, 1.0, 1.25, 1.5)
)
"""Components and taper."""
STEPS = ((3.0, 0.3), (10.0, 0.1), (10.0, 0.3), (30.0, 0.1))
"""Rate and clipping norm."""
ROUNDS = 20


def declared(repetitions: int = REPETITIONS) -> tuple[str, str]:
    """Return cohorts and seeds."""
    protocols = dict.fromkeys(ONE_PROTOCOL, "one protocol")
    cohorts = "; ".join(
        f"public consortium of random shapes, {protocols.get(seed, 'a scanner a hospital')}, "
        f"{TRAINED} + {ALL - TRAINED} patients, seed {seed}"
        for seed in SEEDS
    )
    return cohorts, seeds_shown(range(repetitions))


def main() -> None:
    """Try every setting and write the table."""
    parser = arguments(__doc__, "study_selection")
    parser.set_defaults(backbone=shipped_backbone(NetworkSettings("head", STUDY)))
    given = parser.parse_args()
    torch.set_num_threads(2)
    settings = [
        {"components": components, "taper": taper, "rounds": ROUNDS, "rate": rate, "clip": clip}
        for (components, taper), (rate, clip) in product(SIZES, STEPS)
    ]
    table = searched(load_backbone(given.backbone), SEEDS, settings, given, SLICE)
    write_text(given.output, to_csv(table, origin(*declared(given.repetitions)), float_format="%.4g"))


if __name__ == "__main__":
    main()
