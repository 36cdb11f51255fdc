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


# 5000 items of 1000 patients. Each class has its own pattern.
labels = torch.randint(4, (5000,))
items = torch.randn(4, 64, dtype=torch.complex64)[labels] + torch.randn(5000, 64, dtype=torch.complex64)
patients = [range(start, start + 5) for start in range(0, 5000, 5)]

folder = Path(tempfile.mkdtemp(prefix="zetadp-"))
here = zetadp.NodeConstants("here", population=1000, expected=100)  # 100 of 1000 patients expected in a round
settings = zetadp.TrainingSettings(50, images_per_patient=5, optimiser=zetadp.OptimiserSettings(0.05), noise="os")
run = zetadp.RunName("mine", "central", epsilon="8", seed=0)
plan = zetadp.Plan(run, zetadp.NetworkSettings("own"), settings, (here,), delta=1e-5)
plan = plan.with_noise(zetadp.noise_of_plan(plan))  # the noise that epsilon 8 needs
print(zetadp.promise_of(plan, "here"))
data = zetadp.TrainingData(zetadp.Records(items, labels), [zetadp.Holding(patients)])
files = zetadp.TrainingFiles(folder / "run.jsonl", folder / "run.checkpoint")
trained = zetadp.train(plan, data, files, model=Network())
accuracy = (trained.model(items).argmax(1) == labels).double().mean()
print(f"accuracy on the training items: {accuracy:.0%}, ledger: {files.ledger}")
statement = zetadp.total_statement(zetadp.recorded_runs(files.ledger), zetadp.Terms(1e-5, "patient", "os"))
print(statement["statement"])
