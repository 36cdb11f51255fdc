"""Choose the settings for training heads of domain study, on simulated hospitals.

    python -m benchmarks.study_selection

The consortia have brains of random shapes, which differ from most patients that the public head has learnt from. In one
of them every hospital has a scanner of its own. In each of the other three all hospitals share one protocol, so that
all their patients differ from the public ones in the same way. The search is that of head_selection.py, with the images
of a slice classified together. It is for the constants by which the taper follows from the noise: the signal of the
first component, and how fast it falls. Rate and clipping norm are the same at every epsilon. Writes
study_selection.csv.
"""

from __future__ import annotations

import math

import torch

from benchmarks.head_selection import ALL, ONE_PROTOCOL, REPETITIONS, SHAPES, TRAINED, arguments, searched
from zetadp.base.storage import write_text
from zetadp.core.start import shipped_backbone
from zetadp.nn.backbone import load_backbone
from zetadp.nn.settings import SLICE, STUDY, NetworkSettings
from zetadp.report.provenance import origin, seeds_shown
from zetadp.report.rendering import to_csv

SEEDS = (SHAPES, *ONE_PROTOCOL)
RULES = ((0.009, 3.0), (0.0045, 3.0), (0.018, 3.0), (0.009, 2.0), (0.009, 4.0))
"""Signal of the first component beside one clipped contribution, and the power with which its variance falls."""
RATES = (30.0, 10.0)
EPSILONS = (math.inf, 8.0, 3.0, 1.0, 0.3)
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
    rules = [(*rule, RATES[0]) for rule in RULES] + [(*RULES[0], rate) for rate in RATES[1:]]
    settings = [
        {"components": 64, "signal": signal, "power": power, "rounds": ROUNDS, "rate": rate, "clip": 0.1}
        for signal, power, rate in rules
    ]
    table = searched(load_backbone(given.backbone), SEEDS, settings, given, SLICE, EPSILONS)
    write_text(given.output, to_csv(table, origin(*declared(given.repetitions)), float_format="%.4g"))


if __name__ == "__main__":
    main()
