"""Choose how the private heads of spoken commands are trained, on simulated words; no recording is read.

    python benchmarks/speech_commands_search.py --encoder resources/public-words/encoder.safetensors

The encoder is that of the scenario speech_commands.yaml. As many simulated clips as the real cohort has train and test;
they vary more, and are noisier, than those that the encoder learnt from, as real ones will. With unit clip every clip
takes part in every round at epsilon 1.47; with unit speaker they are those of 196 simulated holders, a fifth of whom
have 40 clips, at epsilon 8 and 1. Eleven nodes, each with noise of its own, are one with noise larger by the root of
eleven. Heads start from that of the encoder's network. The descent is written out in matrices, as in
phase_mnist_search.py. Writes search.csv.
"""

from __future__ import annotations

import argparse
import math
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
from zetadp.nn.settings import NetworkSettings
from zetadp.privacy import gaussian
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv
from zetadp.storage import write_text
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


RATES = {
    ("clip", 1.47, 1): (10.0, 30.0, 100.0),
    ("clip", 1.47, 11): (3.0, 10.0, 30.0),
    ("speaker", 8.0, 1): (3.0, 10.0, 30.0),
    ("speaker", 8.0, 11): (0.3, 1.0, 3.0),
    ("speaker", 1.0, 1): (0.3, 1.0, 3.0),
}
"""Rates that are tried, by unit, epsilon and number of nodes."""


def settings() -> list[tuple[str, float, int, Setting]]:
    """Return all settings with their units, epsilons and numbers of nodes."""
    base = Setting(scattering=136, learned=64)
    found = []
    for given, rates in RATES.items():
        steps = product((30, 100), rates)
        found += [(*given, replace(base, rounds=rounds, rate=rate)) for rounds, rate in steps]
    return found


def simulated(count: int, part: int) -> tuple[np.ndarray, np.ndarray]:
    """Return clips and labels of one part, made piece by piece, which keeps memory in bounds."""
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


def public_head(encoder: WordEncoder) -> Tensor:
    """Return the head that private ones start from, as a real matrix on what `features` returns."""
    start = encoder.start(NetworkSettings("head", domain="features", start="public"))
    weight = start["affine.weight"]
    real = torch.stack((weight.real, -weight.imag), dim=2).flatten(1)
    return torch.cat((real.T, start["affine.bias"].real[None]))


def as_one_node(epsilon: float, nodes: int) -> float:
    """Return the epsilon at which one holder adds as much noise as several nodes do together."""
    return gaussian.epsilon(DELTA, gaussian.mu(epsilon, DELTA) / math.sqrt(nodes))


def trained_by_holders(x: Tensor, labels: np.ndarray, how: Setting, epsilon: float, start: Tensor) -> Tensor:
    """Return the head of a private descent to which every holder contributes the mean gradient of its clips."""
    wanted = functional.one_hot(torch.from_numpy(labels)).float()
    held = torch.from_numpy(np.repeat(np.arange(len(SIZES)), SIZES))

    def contributed(weight: Tensor) -> Iterator[Tensor]:
        error = (x @ weight).softmax(dim=1) - wanted
        for holder, size in enumerate(SIZES):
            own = held == holder
            gradient = x[own].T @ error[own] / size
            yield gradient * (how.clip / gradient.norm()).clamp_max(1)

    return descended(start, contributed, len(SIZES), how, (epsilon, DELTA))


def main() -> None:
    """Try every setting and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, required=True, help="file of the encoder")
    parser.add_argument("--output", type=Path, default=Path("docs/results/speech_commands/search.csv"))
    given = parser.parse_args()
    encoder = WordEncoder.load(given.encoder)
    made = [simulated(count, part) for part, count in enumerate((TRAINED, TESTED))]
    train, test = ([part.components(torch.from_numpy(waves)) for part in encoder.parts] for waves, _ in made)
    start, rows = public_head(encoder), []
    for each, epsilon, nodes, how in settings():
        x, labels = features(train, encoder, how), made[0][1]
        fit = trained if each == "clip" else trained_by_holders
        row = {"unit": each, "nodes": nodes, **asdict(how), "epsilon": epsilon}
        for name, head in {"": fit(x, labels, how, as_one_node(epsilon, nodes), start), "public_": start}.items():
            scores = (features(test, encoder, how) @ head).softmax(dim=1).double().numpy()
            row[f"{name}auc"] = 100 * float(macro_auc(made[1][1], scores)[0])
            row[f"{name}accuracy"] = 100 * float((scores.argmax(axis=1) == made[1][1]).mean())
        rows.append(row)
        print(row, flush=True)
    write_text(given.output, to_csv(pd.DataFrame(rows), origin(*declared()), float_format="%.4g"))


if __name__ == "__main__":
    main()
