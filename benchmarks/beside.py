"""One small task in plain PyTorch, in Opacus and here: lines, epsilon and its unit, accuracy, time of a step.

1000 people with 5 items each; 800 are trained on for 50 rounds of 500 items, which are 100 people here. The functions
`plain`, `with_opacus` and `with_zetadp` are the programs that are compared, and their lines are counted.
"""

from __future__ import annotations

import argparse
import inspect
import tempfile
import time
from pathlib import Path

import pandas as pd
import torch
from opacus import PrivacyEngine

import zetadp
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv

ROUNDS, BATCH, EACH, EPSILON, DELTA, RATE = 50, 500, 5, 8.0, 1e-5, 0.1


def network() -> torch.nn.Module:
    """Return a small network of ordinary layers."""
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))


def plain(items: torch.Tensor, labels: torch.Tensor, _people: list[int]) -> torch.nn.Module:
    """Train without privacy."""
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for _ in range(ROUNDS):
        batch = torch.randperm(len(items))[:BATCH]
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(items[batch]), labels[batch]).backward()
        optimiser.step()
    return model


def with_opacus(items: torch.Tensor, labels: torch.Tensor, _people: list[int]) -> torch.nn.Module:
    """Train with Opacus, whose unit is the item."""
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(items, labels), batch_size=BATCH)
    epochs = ROUNDS * BATCH // len(items) + 1
    engine = PrivacyEngine(accountant="prv")
    model, optimiser, loader = engine.make_private_with_epsilon(
        module=model, optimizer=optimiser, data_loader=loader,
        target_epsilon=EPSILON, target_delta=DELTA, epochs=epochs, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(epochs):
        for inputs, targets in loader:
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimiser.step()
    return model


def with_zetadp(items: torch.Tensor, labels: torch.Tensor, people: list[int]) -> torch.nn.Module:
    """Train here, per person."""
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    records = zetadp.Records(items, labels, patients=people)
    run = zetadp.private(
        model, records, zetadp.Public(records.units, BATCH / EACH, ROUNDS, items_per_patient=EACH, clip=1.0),
        folder=Path(tempfile.mkdtemp()) / "run", epsilon=EPSILON, delta=DELTA, options=zetadp.Options(optimiser),
    )  # fmt: skip
    return run.train().model


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Return items, labels and people; the last 200 people are held out."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (5000,), generator=random)
    centres = torch.randn(4, 64, generator=random)
    return 0.35 * centres[labels] + torch.randn(5000, 64, generator=random), labels, [i // EACH for i in range(5000)]


def main() -> None:
    """Run all three and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/results/benchmarks/beside.csv"))
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    programs = {"PyTorch, no privacy": plain, "Opacus": with_opacus, "zetadp": with_zetadp}
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for seed in range(arguments.seeds):
        items, labels, people = data(seed)
        for name, program in programs.items():
            torch.manual_seed(seed)
            began = time.perf_counter()
            model = program(items[:4000], labels[:4000], people[:4000])
            seconds = time.perf_counter() - began
            with torch.no_grad():
                accuracy = (model.eval()(items[4000:]).argmax(1) == labels[4000:]).double().mean().item()
            results[name].append((100 * accuracy, seconds))
            print(name, seed, accuracy, seconds, flush=True)
    # Opacus protects single items; the guarantee of a person follows from group privacy for five items.
    rate = BATCH / 4000
    sigma = zetadp.noise(epsilon=EPSILON, delta=DELTA, sampling_probability=rate, rounds=ROUNDS + 6)
    person = composition.epsilon_group({NoisySum(rate, sigma): ROUNDS + 6}, DELTA, EACH)
    units = {
        "PyTorch, no privacy": ("", "none", "none"),
        "Opacus": ("item", "8", f"{person:.0f}"),
        "zetadp": ("person", "8", "8"),
    }
    rows = []
    for name, program in programs.items():
        values = pd.DataFrame(results[name], columns=["accuracy", "seconds"])
        lines = len(inspect.getsource(program).splitlines()) - 2
        unit, stated, of_a_person = units[name]
        statistics = {"accuracy": round(values["accuracy"].mean(), 1), "spread": round(values["accuracy"].std(), 1)}
        guarantee = {"unit": unit, "epsilon of the unit": stated, "epsilon of a person": of_a_person}
        rows.append({"program": name, "lines": lines, **guarantee, **statistics, "seconds": values["seconds"].median()})
    table = pd.DataFrame(rows)
    print(table.to_string())
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    source = origin("simulated items, no cohort", f"0 to {arguments.seeds - 1}")
    arguments.output.write_text(to_csv(table, source), encoding="utf-8")


if __name__ == "__main__":
    main()
