"""Choose the settings for training the private head of the ECG task, on simulated patients only.

    python benchmarks/ecg_search.py

The patients' population varies more than that of the encoder's training. Each of twenty cohorts has 158 patients, three
in ten with LBBB, about as many as nine folds of the real recordings. All patients take part in every round, at epsilon
1.76. The area under the ROC curve is measured on 600 further patients. The gradient of a head has a closed form, so the
descent is written with matrices. Writes search.csv.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from descent import descended
from ecg import DELTA, EPSILON

from zetadp.backbone.axes import WHITENING
from zetadp.base.storage import write_text
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv
from zetadp.tasks.ecg.encoder import BeatEncoder, BeatEncoderSettings
from zetadp.tasks.ecg.ranking import area
from zetadp.tasks.ecg.signals import usual_beat
from zetadp.tasks.ecg.simulated import simulated_recordings

if TYPE_CHECKING:
    from collections.abc import Iterator

COHORTS, TRAINED, TESTED = 20, 158, 600
SEED = 100
"""Seeds of the simulated patients. The default experiment has other seeds."""


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return f"{COHORTS} cohorts of {TRAINED} + {TESTED} simulated patients, population varied, seed {SEED}", "0"


@dataclass(frozen=True)
class Setting:
    """One setting of the search: features, and steps of the descent."""

    components: int = 8
    whitening: float = WHITENING
    rounds: int = 50
    clip: float = 0.1
    rate: float = 30.0
    momentum: float = 0.5
    averaged: float = 0.5


def settings() -> list[Setting]:
    """Return all settings: steps at the features of the scenario, then features at its steps."""
    steps = product((20, 50, 100), (0.1, 0.3, 1.0), (3.0, 10.0, 30.0))
    found = [Setting(rounds=rounds, clip=clip, rate=rate) for rounds, clip, rate in steps]
    return found + [Setting(components=c, whitening=w) for c, w in product((2, 4, 8, 16), (0.0, 0.5, 1.0))]


def trained(x: torch.Tensor, labels: torch.Tensor, how: Setting, seed: int) -> torch.Tensor:
    """Return the head of a private descent in which everybody takes part."""
    norms = x.norm(dim=1)

    def contributed(weight: torch.Tensor) -> Iterator[torch.Tensor]:
        error = (x @ weight).sigmoid() - labels
        yield x.T @ (error * (how.clip / (error.abs() * norms).clamp_min(1e-12)).clamp_max(1))

    return descended(torch.zeros(x.shape[1]), contributed, len(x), how, (EPSILON, DELTA), seed)


def main() -> None:
    """Try every setting and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results/ecg/search.csv"))
    given = parser.parse_args()
    encoder = BeatEncoder.fit(BeatEncoderSettings(components=16))
    count = COHORTS * TRAINED + TESTED
    made = simulated_recordings(count, seed=SEED, population="varied", share=0.3, several=0, rate=100)
    recordings = [recording for recording, _ in made]
    (axes,) = encoder.parts
    components = axes.components(torch.from_numpy(np.stack([usual_beat(recording) for recording in recordings])))
    labels = torch.tensor([float(recording.label) for recording in recordings])
    rows = []
    for how in settings():
        features = axes.scaled(components, how.components, how.whitening)
        x = torch.cat((features, torch.ones(len(features), 1)), dim=1)
        areas = []
        for cohort in range(COHORTS):
            own = slice(TESTED + cohort * TRAINED, TESTED + (cohort + 1) * TRAINED)
            head = trained(x[own], labels[own], how, cohort)
            areas.append(100 * area((x[:TESTED] @ head).numpy(), labels[:TESTED].numpy()))
        found = {"mean": np.mean(areas), "lowest": np.min(areas)}
        rows.append({**vars(how), "epsilon": EPSILON, **found})
        print(rows[-1], flush=True)
    write_text(given.output, to_csv(pd.DataFrame(rows), origin(*declared()), float_format="%.4g"))


if __name__ == "__main__":
    main()
