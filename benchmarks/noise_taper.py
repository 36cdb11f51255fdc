"""Choose how the taper of a head follows from the noise, on simulated hospitals.

    python -m benchmarks.noise_taper

The consortia are those of study_selection.py. The factor of a component is the square root of the best shrinkage of a
signal whose variance falls with the component, in noise that is known beforehand. The search is for the signal of the
first component and for how fast it falls, with one rate and clipping norm for every epsilon. Writes noise_taper.csv.
"""

from __future__ import annotations

import math

import torch

from benchmarks.head_selection import arguments, searched
from benchmarks.study_selection import ROUNDS, SEEDS, declared
from zetadp.base.storage import write_text
from zetadp.core.start import shipped_backbone
from zetadp.nn.backbone import load_backbone
from zetadp.nn.settings import SLICE, STUDY, NetworkSettings
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv

RULES = ((0.009, 3.0), (0.0045, 3.0), (0.018, 3.0), (0.009, 2.0), (0.009, 4.0))
"""Signal of the first component beside one clipped contribution, and the power with which its variance falls."""
RATES = (30.0, 10.0)
EPSILONS = (math.inf, 8.0, 3.0, 1.0, 0.3)


def main() -> None:
    """Try every setting and write the table."""
    parser = arguments(__doc__, "noise_taper")
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
