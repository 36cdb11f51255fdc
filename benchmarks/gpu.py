"""Measure and check everything that needs a GPU, in one run of a few minutes.

    PYTHONPATH=src python -m benchmarks.gpu --output FOLDER
    PYTHONPATH=src python -m benchmarks.gpu --output FOLDER --parts step paper
    PYTHONPATH=src python -m benchmarks.gpu --output FOLDER --device cpu --short    # try the program itself

The parts run one after the other. One that fails, or exceeds its time, does not stop the others, but the exit code is
then 1. After ``--seconds`` no further part begins. FOLDER receives ``results.json`` after every part, and at the end
``results.csv``, the table that is also printed. ``log.txt`` has the output of other programs, ``profile.txt`` the
kernels of a step. The parts are:

- ``step``: the ratio of a private step to the fastest non-private one (`benchmarks.step`), 264 patients at 11 nodes;
- ``breakdown``: the same step with noise drawn after the sums, without noise, and with one thread, its kernels, and the
  matrix products of its gradients, complex and stacked;
- ``paper``: seconds of a round of the network of papers/complex_mri, with its whole training loop;
- ``user``: a network of ordinary layers through `zetadp.private`;
- ``head``: seconds of a round of the default's head, on random features of the same shape;
- ``tests``: ``pytest -m cuda``.

Neither the workflow nor the installed package is needed, only torch, numpy, pandas, scipy, safetensors and jinja2.
Besides, ``user`` needs dp-accounting with absl-py, attrs and mpmath, and ``tests`` needs pytest and dp-accounting.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from torch import nn

import zetadp
from benchmarks import step
from zetadp.accounting.kinds import NoisySum
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.tensors import Layout, keep_freed_memory, use_float32
from zetadp.nn.models import NetworkSettings, build
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.records import LabelledItems
from zetadp.training.settings import OptimiserSettings, Performance, TrainingSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Rows = Iterator[dict[str, Any]]

ROOT = Path(__file__).parents[1]
HOSPITALS, PATIENTS, IMAGES, CLASSES, SIDE = 11, 44, 80, 4, 32
PAPER = NetworkSettings(widths=(32, 64, 128), convolutions=2, head="hidden", hidden=128, groups=16)
HEAD = NetworkSettings("head", "study", components=64, taper=1.0)
PRODUCTS = ((32, 96, 4224), (64, 192, 1088), (128, 1152, 256))
"""Complex outputs, unfolded inputs and positions of the second convolution of each block of A8a (`by_unfolding`)."""
WARM = 3
"""Rounds that do not count: they load kernels and request memory."""
LIMITS = {"step": 130, "breakdown": 50, "paper": 80, "user": 60, "head": 30, "tests": 80}
"""Most seconds of each part; those of `Machine.short` have no limit of their own."""


@dataclass(frozen=True)
class Machine:
    """How the parts run.

    Attributes
    ----------
    device
        Device of networks and data.
    threads
        Threads of the processor.
    short
        Whether to take tiny sizes, to try this program.
    folder
        Folder of the results.
    """

    device: torch.device
    threads: int
    short: bool
    folder: Path

    @property
    def images(self) -> int:
        """Images of a patient of a federation."""
        return CLASSES if self.short else IMAGES

    @property
    def paper(self) -> NetworkSettings:
        """The paper's network."""
        return replace(PAPER, widths=(2, 2, 2), hidden=2, groups=1) if self.short else PAPER

    @property
    def side(self) -> int:
        """Side of the square images."""
        return 8 if self.short else SIDE

    def row(self, quantity: str, value: float, unit: str, device: str | None = None) -> dict[str, Any]:
        """Return a line of the table."""
        return {"what": quantity, "device": device or self.device.type, "value": float(f"{value:.6g}"), "unit": unit}

    def called(self, arguments: list[str], seconds: float) -> int:
        """Run a program of the checkout, append its output to the log, and return its exit code."""
        paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
        with (self.folder / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(arguments)}\n")
            log.flush()
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(None if self.short else seconds)
            finally:
                if process.poll() is None:  # with the processes that it has started
                    os.killpg(process.pid, signal.SIGKILL)


def measure_step(machine: Machine) -> Rows:
    """Yield times and ratios of both networks of `benchmarks.step`."""
    for network, processes in (("pooled", 1),) if machine.short else (("A8a", 3), ("pooled", 2)):
        output = machine.folder / f"step-{network}.csv"
        case, seconds = ("6x4", "0.1") if machine.short else ("264x4", "1")
        options = {
            "--cases": case,
            "--networks": network,
            "--device": machine.device.type,
            "--threads": str(machine.threads),
            "--processes": str(processes),
            "--seconds": seconds,
            "--tries": "2",
            "--output": str(output),
        }
        arguments = [part for option in options.items() for part in option]
        code = machine.called(["-m", "benchmarks.step", "--no-memory", *arguments], LIMITS["step"] * 0.7)
        if code:
            raise RuntimeError(f"benchmarks.step of {network} ended with code {code}: see log.txt.")
        (line,) = pd.read_csv(output, comment="#").to_dict("records")
        yield machine.row(f"{network}, floor ({line['floor']})", line["floor_ms"], "ms")
        yield machine.row(f"{network}, private", line["private_ms"], "ms")
        for name in ("ratio", "ratio_low", "ratio_high"):
            yield machine.row(f"{network}, {name}", line[name], "")


def measure_breakdown(machine: Machine) -> Rows:
    """Yield times of a step of A8a with parts left out, and write its kernels."""
    patients = 6 if machine.short else 264
    bench = step.Bench.make(step.NETWORKS["pooled" if machine.short else "A8a"], patients, 4, machine.device)
    chunk = bench.pass_size()
    silent = [
        type(node)(replace(node.event, kind=NoisySum(0.5)), ledger=node.ledger, seed=0) for node in bench.mechanisms
    ]
    without = replace(bench, mechanisms=silent)

    def late() -> None:
        with patch.object(step, "noise_meanwhile", lambda *_, **__: nullcontext()):
            bench.private(chunk)

    steps = {
        "floor": lambda: bench.non_private(bench.model, chunk),
        "floor written out": lambda: bench.written_out(chunk),
        "private": lambda: bench.private(chunk),
        "private, noise after the sums": late,
        "private, without noise": lambda: without.private(chunk),
    }
    for threads in (machine.threads, 1):
        torch.set_num_threads(threads)
        times = step.time_steps(steps, 1 if machine.short else 7, machine.device, time.perf_counter, warm=2)
        for name, seconds in times.items():
            yield machine.row(f"{name}, {threads} threads", 1e3 * float(np.median(seconds)), "ms")
    torch.set_num_threads(machine.threads)
    yield machine.row("images in a pass", chunk, "")
    for shape in PRODUCTS:
        for kind, milliseconds in times_of_products(machine, patients, *shape).items():
            yield machine.row(f"{kind} products, {' x '.join(map(str, shape))}", milliseconds, "ms")
    if machine.device.type == "cuda":
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        for name in ("floor", "private"):
            with torch.profiler.profile(activities=activities) as profile:
                steps[name]()
                torch.cuda.synchronize()
            table = profile.key_averages().table(
                sort_by="self_device_time_total", row_limit=25, max_name_column_width=60
            )
            with (machine.folder / "profile.txt").open("a", encoding="utf-8") as file:
                file.write(f"{name}\n{table}\n")


def times_of_products(machine: Machine, patients: int, outputs: int, inputs: int, positions: int) -> dict[str, float]:
    """Return milliseconds of the matrix products that give patients' gradients, of complex and of stacked factors."""
    left, right = (
        torch.randn(patients, size, positions, dtype=torch.complex64, device=machine.device)
        for size in (outputs, inputs)
    )
    stacked = [torch.cat((factor.real, factor.imag), dim=1) for factor in (left, right)]
    products = {
        "complex": partial(torch.bmm, left, right.mH),
        "stacked": partial(torch.bmm, stacked[0], stacked[1].mT),
    }
    times = step.time_steps(products, 1 if machine.short else 7, machine.device, time.perf_counter, warm=2)
    return {kind: 1e3 * float(np.median(seconds)) for kind, seconds in times.items()}


def federation(machine: Machine, shape: tuple[int, ...], expected: float) -> tuple[Plan, LabelledItems, list[Any]]:
    """Return a plan of eleven hospitals without network and rounds, random records on the device, and their units."""
    patients = 4 if machine.short else PATIENTS
    expected = min(expected, patients)
    torch.manual_seed(0)
    images = machine.images
    labels = torch.arange(CLASSES).repeat_interleave(images // CLASSES)
    count = HOSPITALS * patients * images
    inputs = torch.randn(count, *shape, dtype=torch.complex64, device=machine.device)
    targets = labels.repeat(HOSPITALS * patients)
    records = LabelledItems(inputs, targets.to(machine.device), targets.numpy())
    # The name "inf" promises no epsilon: times do not depend on it.
    nodes = tuple(NodeConstants(f"node-{number:02}", patients, expected, 5.0) for number in range(HOSPITALS))
    task = {"name": "classification", "classes": CLASSES, "balanced": True}
    name = RunName("timed", "federated", Target(math.inf), 0)
    plan = Plan(name, machine.paper, TrainingSettings(1), nodes, task=task)
    positions = np.arange(count).reshape(HOSPITALS, patients, images)
    return plan, records, [list(hospital) for hospital in positions]


def seconds_of_rounds(
    plan: Plan, records: LabelledItems, units: list[Any], most: float, performance: Performance | None = None
) -> np.ndarray:
    """Return the seconds of each round of a training, without the first ones; it ends early after ``most`` seconds."""
    times = [time.perf_counter()]

    def after_round(done: int, _: torch.Tensor) -> bool:
        times.append(time.perf_counter())
        return done > WARM and times[-1] - times[WARM] > most

    with tempfile.TemporaryDirectory() as folder:
        files = RunFiles(Path(folder) / "ledger.jsonl", Path(folder) / "checkpoint")
        train(LocalHolders(plan, records, units, performance=performance), files, after_round=after_round)
    return np.diff(times)[WARM:]


def measure_paper(machine: Machine) -> Rows:
    """Yield the seconds of a round of the paper's network, with seeded and with exact noise, and with few threads."""
    plan, records, units = federation(machine, (1, machine.side, machine.side), 24.0)
    model = build(machine.paper, CLASSES, machine.side, np.random.default_rng(0))
    yield machine.row("complex weights of the paper's network", Layout.of(model).dimension / 2, "")
    rounds = WARM + (1 if machine.short else 917)
    for noise, threads in (("seeded", machine.threads), ("seeded", 3), ("seeded", 1), ("os", machine.threads)):
        torch.set_num_threads(threads)
        training = TrainingSettings(rounds, noise=noise, optimiser=OptimiserSettings(learning_rate=2e-4))
        performance = Performance(evaluate_every=50)
        seconds = seconds_of_rounds(replace(plan, training=training), records, units, 8, performance)
        name = f"paper's network, {'exact' if noise == 'os' else noise} noise, {threads} threads"
        yield machine.row(f"{name}, a round (of {len(seconds)})", float(np.median(seconds)), "s")
    torch.set_num_threads(machine.threads)


def measure_head(machine: Machine) -> Rows:
    """Yield the seconds of a round of the default's head, on the device and on the processor."""
    for device in dict.fromkeys((machine.device, torch.device("cpu"))):
        device_machine = replace(machine, device=device)
        plan, records, units = federation(device_machine, (1, 1, HEAD.components or 1), PATIENTS)
        optimiser = OptimiserSettings(name="sgd", learning_rate=30.0, averaged=0.5, drop_after=1.0)
        for noise in ("seeded", "os"):
            training = TrainingSettings(WARM + 20, machine.images, optimiser, clip=0.1, noise=noise)
            planned = replace(plan, network=HEAD, training=training)
            seconds = seconds_of_rounds(planned, records, units, 4, Performance(chunk=8192))
            name = f"head, {'exact' if noise == 'os' else noise} noise"
            yield device_machine.row(f"{name}, a round (of {len(seconds)})", float(np.median(seconds)), "s")


def network(side: int) -> nn.Module:
    """Return a network of ordinary layers for square images of one channel."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, CLASSES),
    )


def measure_user(machine: Machine) -> Rows:
    """Yield the seconds of a round of a user's network, with seeded and with exact noise, and of its evaluation."""
    people, n_items, rounds = (10, 2, 4) if machine.short else (200, 5, 40)
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (people * n_items,), generator=random)
    side = machine.side
    items = torch.randn(people * n_items, 1, side, side, generator=random) + labels[:, None, None, None]
    records = zetadp.Records(items, labels, patients=torch.arange(people * n_items) // n_items)
    train_records, test_records = records.split(test=people // 10)
    population = people - people // 10
    for device in dict.fromkeys((machine.device.type, "cpu")):
        # Exact noise takes too long on the processor, unless the processor is under test.
        for seed in (0, None) if device == machine.device.type else (0,):
            with tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(0)
                times = []

                def note(_: pd.DataFrame) -> bool:
                    times.append(time.perf_counter())  # noqa: B023  (called in this turn only)
                    return False

                began = time.perf_counter()
                run = zetadp.private(
                    network(side),
                    train_records,
                    zetadp.Public(population, per_round=population / 2, rounds=rounds, items_per_patient=n_items),
                    epsilon=8,
                    delta=1e-3,
                    folder=Path(folder) / "run",
                    seed=seed,
                    options=zetadp.Options(stop=note, device=device),
                )
                prepared = time.perf_counter()
                run.train()
                trained = time.perf_counter()
                reached = run.evaluate(test_records).value
                evaluated = time.perf_counter()
            of_rounds = float(np.median(np.diff(times))) if len(times) > 1 else float("nan")
            noise = "exact" if seed is None else "seeded"
            yield machine.row(f"user's network, {noise} noise, call", prepared - began, "s", device)
            yield machine.row(f"user's network, {noise} noise, training", trained - prepared, "s", device)
            yield machine.row(f"user's network, {noise} noise, a round (of {rounds})", of_rounds, "s", device)
            yield machine.row(f"user's network, {noise} noise, evaluation", evaluated - trained, "s", device)
            yield machine.row(f"user's network, {noise} noise, accuracy", reached, "", device)


def run_tests(machine: Machine) -> Rows:
    """Yield the exit code of the tests that need a GPU. Without one they are only collected."""
    # Separate settings: those of the project name plug-ins that a lent machine may lack.
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "pytest.ini"
        paths = f"{ROOT / 'tests'} {ROOT} {ROOT / 'src'}"
        settings.write_text(f"[pytest]\nmarkers = cuda: needs a CUDA device\npythonpath = {paths}\n")
        options = ["-m", "cuda", "-c", str(settings), f"--rootdir={ROOT}", "--noconftest", "-p", "no:cacheprovider"]
        arguments = ["-m", "pytest", "-v", "--import-mode=importlib", *options, str(ROOT / "tests/cuda")]
        if machine.device.type != "cuda":
            arguments.append("--collect-only")
        began = time.perf_counter()
        code = machine.called(arguments, LIMITS["tests"])
    yield machine.row("pytest -m cuda, exit code (0: all passed)", code, "")
    yield machine.row("pytest -m cuda", time.perf_counter() - began, "s")


PARTS: dict[str, Callable[[Machine], Rows]] = {
    "step": measure_step,
    "breakdown": measure_breakdown,
    "paper": measure_paper,
    "user": measure_user,
    "head": measure_head,
    "tests": run_tests,
}


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise `TimeoutError` in the block after some seconds, or before it if there are none."""
    if seconds < 1:
        raise TimeoutError("no time is left")

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def described(machine: Machine) -> dict[str, Any]:
    """Return the conditions of the measurement."""
    gpu = torch.cuda.get_device_name() if machine.device.type == "cuda" else "none"
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    return {"gpu": gpu, "cores": os.cpu_count(), "threads": machine.threads, **versions}


def main() -> None:
    """Run the chosen parts, and print and write their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=330, help="for all parts together (%(default)s)")
    parser.add_argument("--short", action="store_true", help="tiny sizes, to try this program")
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    machine = Machine(torch.device(chosen.device), chosen.threads, chosen.short, chosen.output.resolve())
    keep_freed_memory()
    use_float32()
    torch.set_num_threads(machine.threads)
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + chosen.seconds
    for name in chosen.parts:
        began = time.perf_counter()
        try:
            left = math.floor(end - time.monotonic())
            with limited(left if machine.short else min(LIMITS[name], left)):
                for row in PARTS[name](machine):
                    rows.append({"part": name, **row})
                    print(*rows[-1].values(), flush=True)
        except Exception as error:  # noqa: BLE001  (no part may stop the others)
            traceback.print_exc()
            rows.append({"part": name, "what": f"failed: {type(error).__name__}: {error}"[:300]})
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        content = {"machine": described(machine), "rows": rows}
        (machine.folder / "results.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        if machine.device.type == "cuda":
            torch.cuda.empty_cache()
    table = pd.DataFrame(rows)
    table.to_csv(machine.folder / "results.csv", index=False)
    print(f"\n{described(machine)}\n{table.to_string(index=False, na_rep='', max_colwidth=80)}")
    failed = [row["part"] for row in rows if row["what"].startswith("failed")]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
