"""Find settings without spending: simulate on public or invented data, and see what costs the accuracy."""

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import zetadp

PUBLIC = zetadp.Public(population=800, per_round=100, rounds=50, items_per_patient=5)
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "rate of 0.0003": {"rate": 0.0003},
    "3 rounds": {"public": replace(PUBLIC, rounds=3)},
    "300 rounds": {"public": replace(PUBLIC, rounds=300)},
    "10 patients a round": {"public": replace(PUBLIC, per_round=10)},
    "weaker data": {"spread": 30.0},
}


class Network(torch.nn.Module):
    """A complex linear layer with real class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 4, dtype=torch.complex64)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.layer(items).abs()


def invented(spread: float) -> tuple[zetadp.Records, zetadp.Records]:
    """Return 800 training and 200 test patients; a larger spread hides the four classes."""
    random = torch.Generator().manual_seed(1)
    labels = torch.randint(4, (5000,), generator=random)
    centres = torch.randn(4, 64, dtype=torch.complex64, generator=random)
    items = centres[labels] + spread * torch.randn(5000, 64, dtype=torch.complex64, generator=random)
    return zetadp.Records(items, labels, patients=torch.arange(5000) // 5).split(test=200)


def accuracy(
    epsilon: float, clip: float, *, rate: float = 0.03, spread: float = 4.0, public: zetadp.Public = PUBLIC
) -> tuple[float, float]:
    """Return the accuracy of a simulated run in percent, and the noise of a round that its promise prints."""
    torch.manual_seed(0)
    (train, test), folder = invented(spread), Path(tempfile.mkdtemp(prefix="zetadp-")) / "run"
    model = Network()
    public, options = replace(public, clip=clip), zetadp.Options(torch.optim.NAdam(model.parameters(), lr=rate))
    run = zetadp.private(model, train, public, epsilon=epsilon, delta=1e-5, folder=folder, seed=0, options=options)
    return 100 * run.train().evaluate(test).value, run.promise.noise[0]


print("| setting | without clipping | clipped | epsilon 4 | noise of a round |\n|:--|--:|--:|--:|--:|")
for name, changed in SETTINGS.items():
    whole, clipped = (accuracy(math.inf, clip, **changed)[0] for clip in (1000.0, 0.1))
    private, noise = accuracy(4, 0.1, **changed)
    print(f"| {name} | {whole:.0f} | {clipped:.0f} | {private:.0f} | {noise:.2g} |", flush=True)
