"""Choose the settings for training the private heads of spoken commands, on simulated words only.

    python benchmarks/speech_commands_search.py --encoder resources/public-words/encoder.safetensors

No recording is read. The encoder is that of the scenario speech_commands.yaml. Training and test use as many simulated
clips as the real cohort has. Real clips will vary more and be noisier than the words on which the encoder was trained,
so these clips do too. With unit clip, every clip takes part in every round, at epsilon 1.47. With unit speaker, the
clips belong to 196 simulated speakers, a fifth of whom have 40 clips, at epsilon 8 and 1. The descent is written with
matrices, as in phase_mnist_search.py. Writes search.csv.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from descent import descended
from phase_mnist_search import DELTA, Setting, trained
from torch.nn import functional

from zetadp.backbone.axes import unit
from zetadp.base.storage import write_text
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv
from zetadp.tasks.speech_commands.discrimination import macro_auc
from zetadp.tasks.speech_commands.encoder import WordEncoder
from zetadp.tasks.speech_commands.simulated import Variation, simulated_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

HARDER = Variation(formants=0.2, durations=0.5, noise=(-5.0, 25.0))
TRAINED, TESTED = 2517, 645
SEED = 1
AT_ONCE = 500
SIZES = (40,) * 40 + (6,) * 137 + (5,) * 19
"""Clips of each simulated holder."""


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return f"simulated words, seed {SEED}", "0"


RATES = {("clip", 1.47): (10.0, 30.0, 100.0), ("speaker", 8.0): (3.0, 10.0, 30.0), ("speaker", 1.0): (1.0, 3.0, 10.0)}


def settings() -> list[tuple[str, float, Setting]]:
    """Return all settings with their units and epsilons."""
    base = Setting(scattering=136, learned=64)
    found = []
    for (each, epsilon), rates in RATES.items():
        steps = product((30, 60, 100), rates)
        found += [(each, epsilon, replace(base, rounds=rounds, rate=rate)) for rounds, rate in steps]
        found += [(each, epsilon, replace(base, rounds=30, rate=rates[1], clip=1.0))]
    return found


def simulated(count: int, part: int) -> tuple[np.ndarray, np.ndarray]:
    """Return clips and labels of one part, simulated in pieces to limit memory."""
    starts = range(0, count, AT_ONCE)
    pieces = [
        simulated_words(min(AT_ONCE, count - start), SEED, part, number, variation=HARDER)
        for number, start in enumerate(starts)
    ]
    waves, labels = zip(*pieces, strict=True)
    return np.concatenate(waves), np.concatenate(labels)


def features(components: list[Tensor], encoder: WordEncoder, how: Setting) -> Tensor:
    """Return features of norm one, and a constant."""
    counts = (how.scattering, how.learned)
    parts = [
        part.scaled(found, count, how.whitening)
        for part, found, count in zip(encoder.parts, components, counts, strict=True)
        if count
    ]
    made = unit(torch.cat(parts, dim=1))
    return torch.cat((made, torch.ones(len(made), 1)), dim=1)


def trained_by_holders(x: Tensor, labels: np.ndarray, how: Setting, epsilon: float) -> Tensor:
    """Return the head of a private descent to which every holder contributes the mean gradient of its clips."""
    wanted = functional.one_hot(torch.from_numpy(labels)).float()
    held = torch.from_numpy(np.repeat(np.arange(len(SIZES)), SIZES))

    def contributed(weight: Tensor) -> Iterator[Tensor]:
        error = (x @ weight).softmax(dim=1) - wanted
        for holder, size in enumerate(SIZES):
            own = held == holder
            gradient = x[own].T @ error[own] / size
            yield gradient * (how.clip / gradient.norm()).clamp_max(1)

    return descended(torch.zeros(x.shape[1], wanted.shape[1]), contributed, len(SIZES), how, (epsilon, DELTA))


def main() -> None:
    """Try every setting and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, required=True, help="file of the encoder")
    parser.add_argument("--output", type=Path, default=Path("docs/results/speech_commands/search.csv"))
    given = parser.parse_args()
    encoder = WordEncoder.load(given.encoder)
    made = [simulated(count, part) for part, count in enumerate((TRAINED, TESTED))]
    train, test = ([part.components(torch.from_numpy(waves)) for part in encoder.parts] for waves, _ in made)
    rows = []
    for each, epsilon, how in settings():
        x, labels = features(train, encoder, how), made[0][1]
        head = (trained if each == "clip" else trained_by_holders)(x, labels, how, epsilon)
        scores = (features(test, encoder, how) @ head).softmax(dim=1).double().numpy()
        auc = 100 * float(macro_auc(made[1][1], scores)[0])
        accuracy = 100 * float((scores.argmax(axis=1) == made[1][1]).mean())
        rows.append({"unit": each, **asdict(how), "epsilon": epsilon, "auc": auc, "accuracy": accuracy})
        print(rows[-1], flush=True)
    write_text(given.output, to_csv(pd.DataFrame(rows), origin(*declared()), float_format="%.4g"))


if __name__ == "__main__":
    main()
