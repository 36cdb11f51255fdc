"""Time of a private step of networks of ordinary layers of PyTorch, in units of their non-private step.

A step takes 100 people with 5 items each. The non-private one is forward and backward pass of the whole batch. The
private one has one clipped gradient for each person, their sum, and its noise: in one pass for all people, with seeded
noise and with exact noise, and one person after the other. Real patients get exact noise, one after the other.
For that step the table has the time of a person beyond an ordinary forward and backward pass of its items, noise left
out. All steps run in turn. A ratio is the median of ratios within a turn, in processor time of one thread, because
machines are shared.

    python -m benchmarks.ordinary
    python -m benchmarks.ordinary --before COMMIT    # in turn with that commit's library; sums must be the same bits
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.accounting.seeded_noise import noisy_mean
from zetadp.base.tensors import keep_freed_memory
from zetadp.mechanism.clipping import clipped_sums
from zetadp.mechanism.contributions import Contributors
from zetadp.mechanism.exact import rounded_normal
from zetadp.mechanism.grid import Grid, from_grid
from zetadp.nn import ComplexGroupNorm
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv
from zetadp.training.independence import follows_rules
from zetadp.training.round import Phase

PEOPLE, ITEMS, SIGMA = 100, 5, 1.0
COMPLEX = torch.complex64
SECONDS = 0.05
"""Least processor time of a step in a turn."""


class Parts(nn.Module):
    """The hyperbolic tangent of real and imaginary parts."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return torch.complex(x.real.tanh(), x.imag.tanh())


class Modulus(nn.Module):
    """Real scores."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return x.abs()


def convolutions(*, is_complex: bool, norms: bool) -> nn.Module:
    """Return two convolutions and a linear layer for images of 32 by 32."""
    kind, act = (COMPLEX, Parts) if is_complex else (torch.float32, nn.Tanh)
    norm = ComplexGroupNorm if is_complex else nn.GroupNorm
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 8), (8, 16)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=outputs // 8, padding=1, dtype=kind)]
        layers += [norm(2, outputs)] if norms else []
        layers += [act()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 16 * 16, 4, dtype=kind), Modulus())


def dense(width: int, kind: torch.dtype) -> nn.Module:
    """Return two linear layers."""
    act = Parts() if kind.is_complex else nn.Tanh()
    return nn.Sequential(nn.Linear(width, width, dtype=kind), act, nn.Linear(width, 4, dtype=kind), Modulus())


IMAGE = (1, 32, 32)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear, width 64": (lambda: dense(64, torch.float32), (64,)),
    "linear, width 512": (lambda: dense(512, torch.float32), (512,)),
    "complex linear, width 64": (lambda: dense(64, COMPLEX), (64,)),
    "complex linear, width 256": (lambda: dense(256, COMPLEX), (256,)),
    "convolutions": (lambda: convolutions(is_complex=False, norms=False), IMAGE),
    "convolutions and norms": (lambda: convolutions(is_complex=False, norms=True), IMAGE),
    "complex convolutions": (lambda: convolutions(is_complex=True, norms=False), IMAGE),
    "complex convolutions and norms": (lambda: convolutions(is_complex=True, norms=True), IMAGE),
}


Step = Callable[[], Tensor | None]


def steps_of(name: str) -> tuple[int, dict[str, Step]]:
    """Return the weights of a network, and its steps; private ones return the sum of the clipped gradients."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = make()
    inputs = torch.randn(PEOPLE, ITEMS, *shape, dtype=next(model.parameters()).dtype)
    targets, groups = torch.randint(4, (PEOPLE, ITEMS)), torch.zeros(PEOPLE, dtype=torch.long)
    phase, parameters = Phase.of(model, ITEMS), [*model.parameters()]
    if not follows_rules(phase, inputs.flatten(0, 1)):
        raise RuntimeError(f"Expected one pass for {name}, found none.")
    grid = Grid.choose(1.0, noise_multiplier=SIGMA, population=PEOPLE, dimension=phase.dimension)
    items, random = torch.arange(targets.numel()).view_as(targets), np.random.default_rng(0)
    contributors = Contributors(inputs.flatten(0, 1), targets.flatten(), items, groups, 1)
    single, together = replace(phase, chunk=ITEMS), phase.with_rules()

    def sums(of: Phase, grid: Grid | None = None) -> Tensor:
        return clipped_sums(of.contribution, contributors, bound=1.0, chunk=of.chunk or PEOPLE * ITEMS, grid=grid).sums[
            0
        ]

    def plain() -> None:
        loss = functional.cross_entropy(model(inputs.flatten(0, 1)), targets.flatten())
        torch.autograd.grad(loss, parameters)

    def seeded(of: Phase) -> Tensor:
        total = sums(of)
        noisy_mean(total, SIGMA, PEOPLE, random)
        return total

    def exact() -> Tensor:
        noise = torch.from_numpy(rounded_normal(phase.dimension, grid.noise_scale(SIGMA)))
        total = sums(together, grid)
        from_grid(total + noise, grid, PEOPLE)
        return total

    def plain_alone() -> None:
        for person in range(PEOPLE):
            torch.autograd.grad(functional.cross_entropy(model(inputs[person]), targets[person]), parameters)

    return phase.dimension, {
        "plain": plain,
        "one pass": lambda: seeded(together),
        "one pass, exact noise": exact,
        "one after the other": lambda: seeded(single),
        "plain, alone": plain_alone,
        "exact, alone": lambda: sums(single, grid),
    }


def time_steps(steps: Mapping[Any, Step], turns: int) -> pd.DataFrame:
    """Return the seconds of each step in each turn, the mean of `SECONDS` of repetitions. Two turns do not count.

    Within a training, steps of one kind follow each other. A single short step would mainly measure how its code and
    data get into cache after another step.
    """
    rows: list[dict[Any, float]] = []
    for _ in range(turns + 2):
        row = {}
        for kind, step in steps.items():
            repetitions = max(1, round(SECONDS / rows[-1][kind])) if rows else 1
            began = time.thread_time()
            for _ in range(repetitions):
                step()
            row[kind] = (time.thread_time() - began) / repetitions
        rows.append(row)
    return pd.DataFrame(rows[2:])


def ratios(name: str, turns: int) -> dict[str, float]:
    """Return the ratios of a network's private steps to its non-private one."""
    weights, steps = steps_of(name)
    table = time_steps(steps, turns)
    medians = {kind: round(float((table[kind] / table["plain"]).median()), 2) for kind in [*steps][1:4]}
    added = 1000 / PEOPLE * float((table["exact, alone"] - table["plain, alone"]).median())
    return {
        "weights": weights,
        "plain, ms": round(1000 * float(table["plain"].median()), 1),
        **medians,
        "added to a person's pass by exact noise, ms": round(added, 2),
    }


def with_library_of(commit: str, folder: Path) -> ModuleType:
    """Return this module with the library of another commit, which is written to a folder under another name."""
    archive = subprocess.run(["git", "archive", commit, "src/zetadp"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as file:
        file.extractall(folder, filter="data")
    (folder / "src" / "zetadp").rename(folder / "zetadp_before")
    (folder / "ordinary_before.py").write_bytes(Path(__file__).read_bytes())
    for path in folder.rglob("*.py"):
        path.write_text(re.sub(r"\bzetadp\b", "zetadp_before", path.read_text(encoding="utf-8")), encoding="utf-8")
    sys.path.insert(0, str(folder))
    return importlib.import_module("ordinary_before")


def compare(name: str, before: ModuleType, turns: int) -> dict[str, float]:
    """Return each step's time over that with another library, in turn; refuse sums of other bits."""
    (_, now), (_, then) = steps_of(name), before.steps_of(name)
    for kind, step in now.items():
        if (total := step()) is not None and not torch.equal(total, then[kind]()):
            raise RuntimeError(f"Expected the same bits of {name}, {kind}, found others.")
    both = [((kind, new), (now if new else then)[kind]) for kind in now for new in (True, False)]
    # In both orders: what ran before leaves other things in cache.
    table = pd.concat([time_steps(dict(order), turns) for order in (both, both[::-1])])
    return {kind: round(float((table[kind, True] / table[kind, False]).median()), 3) for kind in now}


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/results/benchmarks/ordinary.csv"))
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--before", metavar="COMMIT", help="print the times over those with that commit's library")
    arguments = parser.parse_args()
    keep_freed_memory()  # as trainings do
    torch.set_num_threads(1)
    if arguments.before:
        with tempfile.TemporaryDirectory() as folder:
            before = with_library_of(arguments.before, Path(folder))
            for name in arguments.networks:
                print(name, compare(name, before, arguments.turns), flush=True)
        return
    rows = []
    for name in arguments.networks:
        rows.append({"network": name, **ratios(name, arguments.turns)})
        print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    arguments.output.write_text(to_csv(table, origin("random items, no cohort", "0")), encoding="utf-8")


if __name__ == "__main__":
    main()
