"""Choose the settings for training the private head of PhaseMNIST, on composites of Fashion-MNIST.

    python benchmarks/phase_mnist_search.py --data FOLDER --encoder resources/public-digits/encoder.safetensors

Fashion-MNIST counts as public here, and no image of MNIST is read. FOLDER contains its four files. The encoder is that
of the scenario phase_mnist.yaml. Without --encoder, it is trained again. Labels l and 9 - l are paired as in
PhaseMNIST. One data holder trains on the 60,000 training images, all in every round, at epsilon 0.53. Accuracy is
measured on the 10,000 test images. The gradient of a head has a closed form, so the descent is written with matrices.
Writes search.csv.
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
from torch.nn import functional

from zetadp.backbone.axes import WHITENING, unit
from zetadp.base.storage import write_text
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv
from zetadp.tasks.phase_mnist.digits import FASHION, Part, read_digits
from zetadp.tasks.phase_mnist.encoder import DigitEncoder, DigitEncoderSettings, composite_features
from zetadp.tasks.phase_mnist.pairs import PARTS, drawn_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

DELTA = 1e-5
EPSILON = 0.53
ROWS = 10_000
"""Examples in one product."""


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return "composites of Fashion-MNIST, pairing seed 0", "0"


@dataclass(frozen=True)
class Setting:
    """One setting of the search: features, and steps of the descent."""

    scattering: int = 150
    learned: int = 64
    whitening: float = WHITENING
    rounds: int = 100
    clip: float = 0.3
    rate: float = 300.0
    momentum: float = 0.5
    averaged: float = 0.5


def settings() -> list[Setting]:
    """Return all settings: steps at full features, then features at the steps of the scenario."""
    steps = ((1.0, 100.0, 0.0), (0.3, 300.0, 0.0), (0.3, 300.0, 0.5), (0.1, 1000.0, 0.0))
    found = [
        Setting(rounds=rounds, clip=clip, rate=rate, momentum=momentum)
        for rounds, (clip, rate, momentum) in product((30, 60, 100), steps)
    ]
    found += [Setting(averaged=averaged) for averaged in (0.0, 0.25, 0.75)]
    found += [Setting(whitening=whitening) for whitening in (0.0, 0.25, 0.75, 1.0)]
    return found + [Setting(s, d) for s, d in ((50, 0), (100, 0), (150, 0), (0, 64), (50, 64), (100, 64))]


class Composites:
    """Composites of Fashion-MNIST by the features of an encoder."""

    def __init__(self, folder: Path, encoder: DigitEncoder) -> None:
        self.encoder = encoder
        self.components: dict[Part, list[Tensor]] = {}
        self.labels: dict[Part, np.ndarray] = {}
        for part in PARTS:
            images, labels = read_digits(folder, part, FASHION)
            pixels = torch.from_numpy(images.astype(np.float32) / 255)
            self.components[part] = [each.components(pixels) for each in encoder.parts]
            self.labels[part] = labels

    def examples(self, part: Part, how: Setting) -> tuple[Tensor, np.ndarray]:
        """Return examples as real numbers, with which a real head has the scores and gradients of a complex one."""
        counts = (how.scattering, how.learned)
        scaled = [
            each.scaled(found, count, how.whitening)
            for each, found, count in zip(self.encoder.parts, self.components[part], counts, strict=True)
            if count
        ]
        features = unit(torch.cat(scaled, dim=1))
        pairs = drawn_pairs(self.labels[part], part, seed=0)
        made = torch.from_numpy(composite_features(features[pairs.real], features[pairs.imaginary])).flatten(1)
        return torch.cat((made.real, made.imag, torch.ones(len(made), 1)), dim=1), pairs.labels


def trained(x: Tensor, labels: np.ndarray, how: Setting, epsilon: float = EPSILON) -> Tensor:
    """Return the head of a private descent in which every example takes part, as a real matrix."""
    wanted = functional.one_hot(torch.from_numpy(labels)).float()
    norms = x.norm(dim=1)

    def contributed(weight: Tensor) -> Iterator[Tensor]:
        for start in range(0, len(x), ROWS):
            part = slice(start, start + ROWS)
            error = (x[part] @ weight).softmax(dim=1) - wanted[part]
            factors = (how.clip / (error.norm(dim=1) * norms[part]).clamp_min(1e-12)).clamp_max(1)
            yield x[part].T @ (error * factors[:, None])

    return descended(torch.zeros(x.shape[1], wanted.shape[1]), contributed, len(x), how, (epsilon, DELTA))


def main() -> None:
    """Try every setting and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of Fashion-MNIST")
    parser.add_argument("--encoder", type=Path, help="file of the encoder (default: train it again)")
    parser.add_argument("--output", type=Path, default=Path("docs/results/phase_mnist/search.csv"))
    given = parser.parse_args()
    encoder = DigitEncoder.load(given.encoder) if given.encoder else DigitEncoder.fit(DigitEncoderSettings())
    composites = Composites(given.data, encoder)
    rows = []
    for how in settings():
        head = trained(*composites.examples("train", how), how)
        x, labels = composites.examples("test", how)
        found = 100 * float(((x @ head).argmax(dim=1) == torch.from_numpy(labels)).float().mean())
        rows.append({**vars(how), "epsilon": EPSILON, "accuracy": found})
        print(rows[-1], flush=True)
    write_text(given.output, to_csv(pd.DataFrame(rows), origin(*declared()), float_format="%.4g"))


if __name__ == "__main__":
    main()
