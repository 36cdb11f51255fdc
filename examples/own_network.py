"""Train your own network on your own data, with a guarantee for each patient."""

import tempfile
from pathlib import Path

import torch

import zetadp


class Network(torch.nn.Module):
    """A complex linear layer: from complex64, shape (item, 64), to real class scores, shape (item, class)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 4, dtype=torch.complex64)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.layer(items).abs()


# 5000 items of 1000 patients. Each class has its own pattern. ids[i] is the patient of item i.
labels = torch.randint(4, (5000,))
items = torch.randn(4, 64, dtype=torch.complex64)[labels] + torch.randn(5000, 64, dtype=torch.complex64)
ids = [f"patient {item // 5}" for item in range(5000)]
folder = Path(tempfile.mkdtemp(prefix="zetadp-"))

train, test = zetadp.Records(items, labels, patients=ids).split(test=200)
public = zetadp.Public(population=800, per_round=100, rounds=50, items_per_patient=5)  # 100 of 800 patients a round
run = zetadp.private(Network(), train, public, epsilon=8, delta=1e-5, folder=folder / "mine")
print(run.promise)  # nothing has been released yet
run.train()
print(run.statement)
print(run.evaluate(test))
run.save(folder / "model.safetensors")
