"""Choose the front door's default optimiser and clip: three kinds of data, two epsilons, the same settings for all.

The data are digits as complex Fourier coefficients, clothes as real images, and a regression of complex signals. The
first two are read from folders with the idx files of MNIST and Fashion-MNIST. Every person has one image, or four
signals. Noise is seeded. A setting is worth the mean, over data and epsilons, of its share of what the best reaches.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

import zetadp
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv

PEOPLE, HELD_OUT, ROUNDS, PER_ROUND = 2000, 1000, 60, 200
RATES = {"SGD": (0.05, 0.2, 0.5, 1.0), "NAdam": (0.001, 0.003, 0.01, 0.03)}
CLIPS = (0.1, 1.0, 10.0)


class Modulus(nn.Module):
    """The modulus of a complex tensor."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return it."""
        return values.abs()


class Phases(nn.Module):
    """A complex activation: the modulus less one half, not below zero, with the phase as it was."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the shrunk values."""
        size = values.abs().clamp(min=1e-6)
        return values * (torch.relu(size - 0.5) / size)


def images(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first images of a folder's training part, from 0 to 1, and their classes."""
    found = []
    for name, skip in (("images-idx3", 16), ("labels-idx1", 8)):
        with gzip.open(folder / f"train-{name}-ubyte.gz") as file:
            found.append(np.frombuffer(file.read(), np.uint8, offset=skip))
    count = PEOPLE + HELD_OUT
    pixels = torch.from_numpy(found[0].reshape(-1, 28, 28)[:count].astype(np.float32) / 255)
    return pixels, torch.from_numpy(found[1][:count].astype(np.int64))


def digits(folder: Path) -> tuple:
    """Return complex coefficients of digits, and a dense complex network."""
    pixels, labels = images(folder)
    spectrum = torch.fft.fftshift(torch.fft.fft2(pixels, norm="ortho"), dim=(1, 2))[:, 7:21, 7:21]
    dense = [nn.Linear(196, 64, dtype=torch.complex64), Phases(), nn.Linear(64, 10, dtype=torch.complex64), Modulus()]
    return spectrum.flatten(1), labels, range(len(labels)), lambda: nn.Sequential(*fresh(dense)), None


def clothes(folder: Path) -> tuple:
    """Return images of clothes, and a small real network of convolutions."""
    pixels, labels = images(folder)
    layers = [
        nn.Conv2d(1, 16, 5, 2, 2),
        nn.Tanh(),
        nn.Conv2d(16, 16, 5, 2, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(784, 10),
    ]
    return pixels.unsqueeze(1), labels, range(len(labels)), lambda: nn.Sequential(*fresh(layers)), None


def signals() -> tuple:
    """Return complex signals with a number in each, and a linear complex network."""
    random = torch.Generator().manual_seed(0)
    count = 4 * (PEOPLE + HELD_OUT)
    items = torch.randn(count, 32, dtype=torch.complex64, generator=random)
    true = torch.randn(32, dtype=torch.complex64, generator=random) / 32**0.5
    targets = (items @ true + 0.3 * torch.randn(count, dtype=torch.complex64, generator=random)).unsqueeze(1)
    people = [place // 4 for place in range(count)]
    linear = [nn.Linear(32, 1, dtype=torch.complex64)]

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).abs().square().squeeze(1)

    return items, targets, people, lambda: nn.Sequential(*fresh(linear)), loss


def fresh(layers: list[nn.Module]) -> list[nn.Module]:
    """Return the layers with new starting weights, the same each time."""
    torch.manual_seed(0)
    for layer in layers:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return layers


def main() -> None:
    """Train with every setting and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--fashion-mnist", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("docs/results/benchmarks/defaults.csv"))
    given = parser.parse_args()
    data = {"digits": digits(given.mnist), "clothes": clothes(given.fashion_mnist), "signals": signals()}
    rows = []
    for name, (items, targets, people, network, loss) in data.items():
        train, test = zetadp.Records(items, targets, patients=people).split(test=HELD_OUT)
        for epsilon in (1, 8):
            for kind, rates in RATES.items():
                for rate in rates:
                    for clip in CLIPS:
                        value = reached(train, test, network(), epsilon, kind, rate, clip, loss)
                        rows.append({"data": name, "epsilon": epsilon, "optimiser": kind, "rate": rate, "clip": clip})
                        rows[-1]["value"] = value
                        print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    # Errors are turned over, so that more is better for all; each is a share of the best setting's.
    table["good"] = table["value"].where(table["data"] != "signals", 1 / (1 + table["value"]))
    table["share"] = table["good"] / table.groupby(["data", "epsilon"])["good"].transform("max")
    setting = ["optimiser", "rate", "clip"]
    worth = table.groupby(setting)["share"].agg(["mean", "min"]).sort_values("mean", ascending=False)
    print(worth.head(12))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    made = origin("MNIST, Fashion-MNIST and simulated signals", "0")
    given.output.write_text(to_csv(table.drop(columns="good"), made, float_format="%.4g"), encoding="utf-8")


def reached(train, test, model, epsilon, kind, rate, clip, loss) -> float:  # noqa: ANN001
    """Return the metric on held-out people after one training."""
    # A step of plain descent has at most the length rate times clip; the rate is given for clip 1.
    options = {"lr": rate / clip, "momentum": 0.9} if kind == "SGD" else {"lr": rate}
    with tempfile.TemporaryDirectory() as folder:
        run = zetadp.private(
            model,
            train,
            folder=Path(folder) / "run",
            epsilon=epsilon,
            delta=1e-5,
            population=PEOPLE,
            per_round=PER_ROUND,
            rounds=ROUNDS,
            items_per_patient=len(train) // PEOPLE,
            clip=clip,
            optimiser=getattr(torch.optim, kind)(model.parameters(), **options),
            loss=loss,
            seed=0,
        )
        return run.train().evaluate(test).value


if __name__ == "__main__":
    main()
