"""Measure the cost of exact noise: draws per second, a round of all nodes, and passes of a single patient.

In a round, each node puts the clipped gradients of its patients onto the grid, checks their norms in integers, sums
them, adds the noise, and converts the result to float. With several processes, each process computes whole nodes. One
line gives the seeded float noise of the simulation for comparison. With exact noise, a pass computes the gradient of a
single patient, where the simulation computes several. One table has the ratio of both times, paired in one run. The
last table compares whole runs, in which passes of a single patient are not always needed (`zetadp.core.settings`).

    python benchmarks/os_noise.py
    python benchmarks/os_noise.py --nodes 11 --processes 1 2 4
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.base.randomness import Purpose, stream
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.records import Records
from zetadp.core.settings import TrainingSettings
from zetadp.core.training import Holding, TrainingData, TrainingFiles, train
from zetadp.nn.models import NetworkSettings, build
from zetadp.nn.parameters import Layout
from zetadp.privacy.clipping import clipped_sums
from zetadp.privacy.contributions import Drawn, Gradient
from zetadp.privacy.exact import rounded_normal
from zetadp.privacy.grid import Grid, from_grid, sum_groups, to_grid

if TYPE_CHECKING:
    from collections.abc import Callable

NETWORKS_PASSED = {
    "16-32, pooled": NetworkSettings(widths=(16, 32), convolutions=1, head="pooled", groups=8),
    "32-64-128, pooled": NetworkSettings(widths=(32, 64, 128), convolutions=1, head="pooled", groups=16),
    "32-64-128, two convolutions": NetworkSettings(widths=(32, 64, 128), head="hidden", hidden=128, groups=16),
    "linear": NetworkSettings("linear"),
}
TRAINED = {
    "head, 64 features": (NetworkSettings("head", "features"), (1, 1, 64)),
    "16-32, pooled": (NETWORKS_PASSED["16-32, pooled"], (1, 32, 32)),
}
ROUNDS = 60
SIGMA = 42.57
POPULATION = 44
EXPECTED = 24
# Real components: two for each complex weight.
NETWORKS = {"head, 520 complex": 2 * 520, "network, 93 412 complex": 2 * 93_412}


def seconds(action: Callable[[], object], repetitions: int) -> float:
    """Return the median wall time of an action. An extra first run fills tables and caches."""
    action()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return median(times)


def noise(dimension: int, grid: Grid) -> np.ndarray:
    """Draw one node's exact noise."""
    return rounded_normal(dimension, grid.noise_scale(SIGMA))


def node_noise(dimension: int) -> int:
    """Draw one node's exact noise in a worker process, like a node that runs in its own process."""
    torch.set_num_threads(1)
    grid = Grid.choose(1.0, noise_multiplier=SIGMA, population=POPULATION, dimension=dimension)
    return len(noise(dimension, grid))


def print_draws(repetitions: int) -> None:
    """Print draws a second on one core, by scale."""
    print("draws a second on one core")
    count = 1_000_000
    for label, scale in {"0.7": Fraction(7, 10), "50": Fraction(50), "42.57 * 2**29": Fraction(SIGMA) * 2**29}.items():
        rate = count / seconds(lambda scale=scale: rounded_normal(count, scale), repetitions)
        print(f"  {f'exact, scale {label}':34} {rate / 1e6:6.1f} million")
    rate = count / seconds(lambda: os.urandom(16 * count), repetitions)
    print(f"  {'the random bytes alone':34} {rate / 1e6:6.1f} million")
    generator = stream(0, Purpose.NOISE, 0, 0)
    rate = count / seconds(lambda: generator.standard_normal(count, dtype=np.float32), repetitions)
    print(f"  {'seeded float32 (protects nobody)':34} {rate / 1e6:6.1f} million")


def print_rounds(nodes: int, processes: list[int], bound: float, repetitions: int) -> None:
    """Print the cost of a round for each network, step by step."""
    workers = "".join(f"{f'noise, {count} proc.':>16}" for count in processes)
    print(f"\nmilliseconds a round, {nodes} nodes of {EXPECTED} patients, clipping norm {bound:g}")
    print(f"{'network':24} {'bits':>4} {'onto grid':>10} {'sums':>8} {'back':>8}{workers}")
    for label, dimension in NETWORKS.items():
        grid = Grid.choose(bound, noise_multiplier=SIGMA, population=POPULATION, dimension=dimension)
        rows = torch.randn(EXPECTED, dimension)
        rows *= (bound * (1 - 2**-20) / rows.double().norm(dim=1, keepdim=True)).float()
        values, _ = to_grid(rows, grid)
        group = torch.zeros(EXPECTED, dtype=torch.long)
        total = sum_groups(values, group, 1)[0]
        steps = (
            lambda rows=rows, grid=grid: to_grid(rows, grid),
            lambda values=values, group=group: sum_groups(values, group, 1),
            lambda total=total, grid=grid: from_grid(total, grid, EXPECTED),
        )
        times = [1e3 * nodes * seconds(step, repetitions) for step in steps]
        for count in processes:
            if count == 1:
                one = seconds(lambda dimension=dimension, grid=grid: noise(dimension, grid), repetitions)
                times.append(1e3 * nodes * one)
                continue
            with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
                task = [dimension] * nodes
                times.append(1e3 * seconds(lambda pool=pool, task=task: list(pool.map(node_noise, task)), repetitions))
        columns = "".join(f"{value:16.1f}" for value in times[3:])
        print(f"{label:24} {grid.bits:4} {times[0]:10.1f} {times[1]:8.1f} {times[2]:8.1f}{columns}")


def print_passes(repetitions: int) -> None:
    """Print the times of passes of one patient and of passes of 64 images, for 24 patients of 4 images."""
    print(f"\nmilliseconds for the integer sums of {EXPECTED} patients of 4 images of 32 x 32")
    print(f"{'network':30} {'64 images a pass':>17} {'one patient':>12} {'ratio':>6}")
    random = np.random.default_rng(0)
    parts = torch.from_numpy(random.standard_normal((2, EXPECTED, 4, 1, 32, 32))).float()
    images, labels = torch.complex(parts[0], parts[1]), torch.arange(4).repeat(EXPECTED, 1)
    groups = torch.zeros(EXPECTED, dtype=torch.long)
    for label, settings in NETWORKS_PASSED.items():
        model = build(settings, 4, 32, random)
        layout = Layout.of(model)
        grid = Grid.choose(1.0, noise_multiplier=SIGMA, population=POPULATION, dimension=layout.dimension)
        drawn = Drawn(images, labels, groups, count=1)
        sums = partial(clipped_sums, Gradient(model, layout), drawn, bound=1.0, grid=grid)
        several, alone = partial(sums, chunk=64), partial(sums, chunk=4)
        pairs = [(seconds(several, 1), seconds(alone, 1)) for _ in range(repetitions)]
        times = [1e3 * median(column) for column in zip(*pairs, strict=True)]
        ratio = median(one / many for many, one in pairs)
        print(f"{label:30} {times[0]:17.1f} {times[1]:12.1f} {ratio:6.2f}")


def print_trainings(repetitions: int) -> None:
    """Print the times of whole runs with exact noise and with seeded noise: two nodes of 60 patients."""
    print(f"\nseconds for {ROUNDS} rounds of 120 patients")
    print(f"{'network':24} {'drawn':>10} {'seeded':>8} {'exact':>8} {'ratio':>6} {'lowest':>7} {'highest':>8}")
    for label, (settings, shape) in TRAINED.items():
        for drawn, share in {"everybody": 1.0, "24 of 44": 24 / 44}.items():
            pairs = []
            for repetition in range(repetitions + 1):
                times = [_training(settings, shape, share, noise, repetition) for noise in ("seeded", "os")]
                pairs += [times] if repetition else []  # the first loads libraries and fills tables
            seeded, exact = (median(column) for column in zip(*pairs, strict=True))
            ratios = sorted(ours / theirs for theirs, ours in pairs)
            spread = f"{median(ratios):6.2f} {ratios[0]:7.2f} {ratios[-1]:8.2f}"
            print(f"{label:24} {drawn:>10} {seeded:8.2f} {exact:8.2f} {spread}")


def _training(settings: NetworkSettings, shape: tuple[int, ...], share: float, noise: str, seed: int) -> float:
    """Return the seconds of a training."""
    random = np.random.default_rng(0)
    values = torch.from_numpy(random.standard_normal((2, 480, *shape))).float()
    records = Records(torch.complex(values[0], values[1]), torch.arange(4).repeat(120))
    units = [[[4 * patient + image for image in range(4)] for patient in range(60 * k, 60 * k + 60)] for k in range(2)]
    plan = Plan(
        RunName("timed", "federated", "8", seed),
        settings,
        TrainingSettings(ROUNDS, images_per_patient=4, noise=noise),
        tuple(NodeConstants(f"node-{k}", 60, 60 * share, SIGMA) for k in range(2)),
        delta=1e-3,
        task={"name": "classification", "classes": 4},
    )
    with TemporaryDirectory() as folder:
        files = TrainingFiles(Path(folder) / "ledger.jsonl", Path(folder) / "checkpoint.safetensors")
        start = time.perf_counter()
        train(plan, TrainingData(records, [Holding(own) for own in units]), files)
        return time.perf_counter() - start


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=11)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--bound", type=float, default=1.0, help="clipping norm; powers of two are a little faster")
    parser.add_argument("--repetitions", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_draws(arguments.repetitions)
    print_rounds(arguments.nodes, arguments.processes, arguments.bound, arguments.repetitions)
    print_passes(arguments.repetitions)
    print_trainings(arguments.repetitions)


if __name__ == "__main__":
    main()
