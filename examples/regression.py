"""Train on a torch Dataset with a loss, an optimiser and a schedule of your own, at two hospitals."""

import math
import tempfile
from pathlib import Path

import torch

import zetadp

TRUE = torch.randn(16, dtype=torch.complex64)


class Signals(torch.utils.data.Dataset):
    """Complex signals, and one complex number that a network is to find in each; computed when they are needed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __len__(self) -> int:
        return 1200

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(10_000 * self.seed + place)
        signal = torch.randn(16, dtype=torch.complex64, generator=random)
        return signal, (signal @ TRUE / math.sqrt(16)).view(1)


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the squared error of each item."""
    return (outputs - targets).abs().square().squeeze(1)


def records(seed: int) -> zetadp.Records:
    """Return 300 patients with 4 signals each."""
    return zetadp.Records(Signals(seed), patients=[f"{seed} {place // 4}" for place in range(1200)])


model = torch.nn.Linear(16, 1, dtype=torch.complex64)
optimiser = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
run = zetadp.private(
    model,
    {"north": records(1), "south": records(2)},
    zetadp.Public(population={"north": 300, "south": 300}, per_round=200, rounds=40, items_per_patient=4, clip=1.0),
    epsilon=4,
    delta=1e-5,
    folder=Path(tempfile.mkdtemp(prefix="zetadp-")) / "regression",
    options=zetadp.Options(optimiser, torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 40), loss),
)
print(f"before: {run.evaluate(records(3))}")
print(f"after: {run.train().evaluate(records(3))}")
print(run.statement)
