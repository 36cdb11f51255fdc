"""Choose the settings for training heads of domain study, on simulated hospitals.

    python benchmarks/study_selection.py

The search is that of head_selection.py with two differences. It uses a single consortium whose brains are random
shapes, which differ more from the public head's training data. And it tries only the learning rate 3. Writes
study_selection.csv.
"""

from __future__ import annotations

import torch
from head_selection import ALL, REPETITIONS, SHAPES, TRAINED, arguments, searched

from zetadp.backbone.start import shipped_backbone
from zetadp.nn.backbone import load_backbone
from zetadp.nn.settings import STUDY, NetworkSettings
from zetadp.report.provenance import origin, seeds_shown
from zetadp.report.rendering import to_csv
from zetadp.storage import write_text

GRID = ((8, 16, 32, 64), (20, 40), (3.0,), (0.1, 0.3))
"""Components, rounds, rate and clipping norms."""


def declared(repetitions: int = REPETITIONS) -> tuple[str, str]:
    """Return cohort and seeds."""
    cohort = f"public consortium of random shapes, {TRAINED} + {ALL - TRAINED} patients, seed {SHAPES}"
    return cohort, seeds_shown(range(repetitions))


def main() -> None:
    """Try every setting and write the table."""
    parser = arguments(__doc__, "study_selection")
    parser.set_defaults(backbone=shipped_backbone(NetworkSettings("head", STUDY)))
    given = parser.parse_args()
    torch.set_num_threads(2)
    table = searched(load_backbone(given.backbone), (SHAPES,), GRID, given.cache, given.repetitions)
    write_text(given.output, to_csv(table, origin(*declared(given.repetitions)), float_format="%.4g"))


if __name__ == "__main__":
    main()
