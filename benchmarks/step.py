"""Compare the time of a private step with that of the fastest non-private step, for the same network and data.

A step includes everything from images on the device to updated weights: loss, gradient and optimiser. The private step
also includes one clipped gradient per patient, sums, and noise for every node. It is the library's own step, and its
passes are as large as in training. The floor is the fastest non-private step that we can write without compiling, in
passes of the same size. There are two candidates: the library's layers, and the explicit weight gradients of the
private step. Two further steps are timed for comparison: real and imaginary parts stacked with ordinary automatic
differentiation, and PyTorch's complex64.

All steps of a case run in turn in one process, a few times. Then the private step and the two quickest floors run in
turn in further processes. Several processes are needed, because the location of memory makes one process faster than
another, and the difference is larger than between repetitions. The floor with the smaller median over all processes
counts. The ratio is the median over processes of the ratio of medians. Its interval of 95 % is a bootstrap over
processes and their repetitions. The first rounds of a process do not count, because they request memory that later
steps reuse.

Memory is the peak that a step adds to its process. Private step and floor use passes of the same number of images.

    python -m benchmarks.step                                       # all cases and networks
    python -m benchmarks.step --cases 24x4 --networks pooled --no-memory
    python -m benchmarks.step --threads 1 --clock cpu               # on a machine that others use at the same time
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch.func import functional_call
from torch.nn import functional

from zetadp.accounting.events import Event
from zetadp.accounting.kinds import NoisySum
from zetadp.base.storage import write_text
from zetadp.base.tensors import Layout, keep_freed_memory, use_float32
from zetadp.mechanism.clipping import clipped_sums
from zetadp.mechanism.contributions import Contributors, Gradient
from zetadp.mechanism.release import Draw, NodeMechanism
from zetadp.nn.models import NetworkSettings, build
from zetadp.nn.stacked import ordinary_operations
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv
from zetadp.training.round import Phase, items_in_a_pass, noise_meanwhile, side_by_side
from zetadp.training.server import Server
from zetadp.training.settings import OptimiserSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn

    Step = Callable[[], None]

SIGMA, CLIP, EXPECTED = 42.55, 1.0, 24
EVENT = Event("", 0, 2 * EXPECTED, EXPECTED, CLIP, NoisySum(0.5, SIGMA))
NETWORKS = {
    "A8a": NetworkSettings(),
    "pooled": NetworkSettings(convolutions=1, head="pooled"),
}
"""``A8a``: two convolutions per block and a hidden layer; ``pooled``: one convolution, and an average."""
NODES = {24: 1, 264: 11}
COMPLEX = {"kspace", "complex", "spectrum"}
"""Domains whose inputs are complex."""
CPU_CASES = ((24, 4), (24, 20), (264, 4))
GPU_CASES = ((264, 20), (264, 80))
FINALISTS = 2
"""Floors that are timed in separate processes."""
EPSILON = 1e-5
WARM = 3
"""Number of rounds that fill tables, caches and reused memory. They do not count."""
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


class Everything:
    """A ledger that holds every event."""

    def holds(self, event: Event, times: int = 1) -> bool:
        """Return true."""
        return True


@dataclass
class Bench:
    """A network with its server and data, shared by all steps of a case.

    Attributes
    ----------
    model, layout, server
        The network, whose parameters are views of the server's weights, and the order of its parameters.
    images, labels
        Tensors of shape (patient, image, 1, row, column) and (patient, image).
    mechanisms
        Mechanisms of the nodes that hold the patients, without a ledger.
    gradient
        Flat buffer that the parameters' gradients are views of.
    rounds
        Private steps so far: each draws new noise, from the streams of training.
    """

    model: nn.Module
    layout: Layout
    server: Server
    images: Tensor
    labels: Tensor
    mechanisms: list[NodeMechanism]
    gradient: Tensor
    rounds: int = 0

    @classmethod
    def make(
        cls,
        network: NetworkSettings,
        patients: int,
        images: int,
        device: torch.device,
        *,
        shape: tuple[int, ...] = (1, 32, 32),
        classes: int = 4,
        nodes: int | None = None,
    ) -> Bench:
        """Return a bench with random weights and random images."""
        random = np.random.default_rng(0)
        model = build(network, classes, shape[-1], random).to(device)
        layout = Layout.of(model)
        server = Server(layout.flatten(dict(model.named_parameters())).detach(), OptimiserSettings(), 1000)
        gradient = torch.zeros(layout.dimension, device=device)
        gradients = layout.unflatten(gradient)
        for name, view in layout.unflatten(server.weights.data).items():
            owner, _, leaf = name.rpartition(".")
            parameter = torch.nn.Parameter(view)
            parameter.grad = gradients[name]
            setattr(model.get_submodule(owner), leaf, parameter)
        parts = torch.from_numpy(random.standard_normal((2, patients, images, *shape), dtype=np.float32))
        labels = torch.arange(images).remainder(classes).repeat(patients, 1)
        values = torch.complex(parts[0], parts[1]) if network.domain in COMPLEX else parts[0]
        groups = NODES.get(patients, 1) if nodes is None else nodes
        mechanisms = [
            NodeMechanism(replace(EVENT, node=f"{node}"), ledger=Everything(), seed=0, node_index=node)
            for node in range(groups)
        ]
        return cls(model, layout, server, values.to(device), labels.to(device), mechanisms, gradient)

    def pass_size(self) -> int:
        """Return the number of images in a training pass of this network."""
        images = self.images.flatten(0, 1)
        return min(len(images), items_in_a_pass(Phase.of(self.model, self.images.shape[1]), images))

    def non_private(self, forward: Callable[[Tensor], Tensor], chunk: int) -> None:
        """Take one step along the ordinary gradient of the mean loss, in passes of ``chunk`` images."""
        images, labels = self.images.flatten(0, 1), self.labels.flatten()
        self.gradient.zero_()
        for start in range(0, len(images), chunk):
            part = slice(start, start + chunk)
            loss = functional.cross_entropy(forward(images[part]), labels[part], reduction="sum") / len(images)
            loss.backward()
        self.server.step(self.gradient.unsqueeze(0), 0)

    def written_out(self, chunk: int) -> None:
        """Take the same step with the weight gradients of the private one: each pass is one patient, unclipped."""
        images, labels = self.images.flatten(0, 1), self.labels.flatten()
        self.gradient.zero_()
        parameters = dict(self.model.named_parameters())
        for start in range(0, len(images), chunk):
            part = slice(start, start + chunk)
            leaves = {name: parameters[name].detach().unsqueeze(0).requires_grad_() for name in self.layout.names}
            scores = functional_call(self.model, leaves, (images[part],))
            loss = functional.cross_entropy(scores, labels[part], reduction="sum") / len(images)
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            sums = torch.split(self.gradient, list(self.layout.sizes))
            torch._foreach_add_(list(sums), [torch.view_as_real(g).flatten() for g in gradients])
        self.server.step(self.gradient.unsqueeze(0), 0)

    def private(self, chunk: int) -> None:
        """Take one step along the messages of all nodes: clipped sums with noise, divided by the expected number."""
        patients = len(self.images)
        nodes = len(self.mechanisms)
        groups = torch.arange(patients) * nodes // patients
        items = torch.arange(self.labels.numel(), device=self.labels.device).view_as(self.labels)
        contributors = Contributors(self.images.flatten(0, 1), self.labels.flatten(), items, groups, nodes)
        with noise_meanwhile(self.mechanisms, self.rounds, self.layout.dimension, self.images.device):
            result = clipped_sums(Gradient(self.model, self.layout), contributors, bound=CLIP, chunk=chunk)
        draws = [Draw(replace(node.event, round=self.rounds), np.arange(0)) for node in self.mechanisms]
        messages = side_by_side(NodeMechanism.release, self.mechanisms, draws, result.sums)
        self.rounds += 1
        self.server.step(torch.stack(messages), 0)


def by_ordinary_operations(model: nn.Module, images: Tensor) -> Tensor:
    """Return a network's scores by ordinary operations on stacked tensors."""
    with ordinary_operations():
        scores: Tensor = model(images)
    return scores


def native(model: nn.Module, images: Tensor) -> Tensor:
    """Return a network's scores by PyTorch's complex64 operations, in the most direct form."""

    def norm(module: nn.Module, z: Tensor) -> Tensor:
        grouped = z.reshape(len(z), module.groups, -1)
        centred = torch.view_as_real(grouped - grouped.mean(dim=-1, keepdim=True))
        covariance = centred.mT @ centred / (centred.shape[2] - 1) + EPSILON * torch.eye(2, device=z.device)
        (a, c), (_, b) = (row.unbind(-1) for row in covariance.unbind(-2))
        s = torch.sqrt(a * b - c * c)
        root = torch.stack((b + s, -c, -c, a + s), dim=-1) / (s * torch.sqrt(a + b + 2 * s))[..., None]
        white = torch.view_as_complex((centred @ root.unflatten(-1, (2, 2))).contiguous()).view(z.shape)
        return white * module.scale[:, None, None] + module.shift[:, None, None]

    def activate(z: Tensor) -> Tensor:
        return (1 + 1j) * torch.complex(functional.mish(z.real), functional.mish(z.imag))

    def pool(z: Tensor) -> Tensor:
        return torch.complex(functional.avg_pool2d(z.real, 2), functional.avg_pool2d(z.imag, 2))

    def convolve(module: nn.Module, z: Tensor) -> Tensor:
        return functional.conv2d(z, module.weight, padding=module.geometry.padding)

    def linear(module: nn.Module, z: Tensor) -> Tensor:
        return functional.linear(z, module.weight, module.bias)

    return _walk(model, images, convolve, norm, activate, pool, linear).abs()


def _walk(
    model: nn.Module,
    x: Tensor,
    convolve: Callable[[nn.Module, Tensor], Tensor],
    norm: Callable[[nn.Module, Tensor], Tensor],
    activate: Callable[[Tensor], Tensor],
    pool: Callable[[Tensor], Tensor],
    linear: Callable[[nn.Module, Tensor], Tensor],
) -> Tensor:
    """Apply the parts of a shipped network by the given functions."""
    for module in model.blocks:
        match type(module).__name__:
            case "Conv2d":
                x = convolve(module, x)
            case "ComplexGroupNorm":
                x = norm(module, x)
            case "ConjMish":
                x = activate(x)
                x = pool(x) if module.pooled else x
            case other:
                assert other == "Identity", other
    x = x.mean(dim=(2, 3)) if model.pooled else x.flatten(1)
    for module in model.head:
        x = linear(module, x) if type(module).__name__ == "Linear" else activate(x)
    return x


def steps_of(bench: Bench, chunk: int) -> dict[str, Step]:
    """Return all steps to be timed, by name: floors, the private step, and others, in passes of ``chunk`` images."""
    return {
        "floor": partial(bench.non_private, bench.model, chunk),
        "floor written out": partial(bench.written_out, chunk),
        "private": partial(bench.private, chunk),
        "plain stacked": partial(bench.non_private, partial(by_ordinary_operations, bench.model), chunk),
        "native complex64": partial(bench.non_private, partial(native, bench.model), chunk),
    }


def affordable(steps: dict[str, Step]) -> dict[str, Step]:
    """Return the steps that fit into a GPU's memory, and print the others."""
    fitting = {}
    for name, step in steps.items():
        try:
            step()
            fitting[name] = step
        except torch.OutOfMemoryError:
            print(f"  {name}: out of GPU memory")
        torch.cuda.empty_cache()
    return fitting


def check_equal(bench: Bench) -> None:
    """Refuse to compare networks with different scores."""
    images = bench.images[0, :4]
    with torch.no_grad():
        expected = bench.model(images)
        for scores in (by_ordinary_operations(bench.model, images), native(bench.model, images)):
            torch.testing.assert_close(scores, expected, rtol=1e-3, atol=1e-3)


def time_steps(
    steps: dict[str, Step], repetitions: int, device: torch.device, clock: Callable[[], float], warm: int = 1
) -> dict[str, np.ndarray]:
    """Return the seconds of each step. The steps run in turn, in a new order each time. First rounds do not count."""
    order = np.random.default_rng(2)
    names = list(steps)
    times = np.empty((repetitions, len(names)))
    for repetition in range(-warm, repetitions):
        for index in order.permutation(len(names)):
            began = clock()
            steps[names[index]]()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if repetition >= 0:
                times[repetition, index] = clock() - began
    return {name: times[:, index] for index, name in enumerate(names)}


def finalists(tried: dict[str, np.ndarray]) -> list[str]:
    """Return the names of the quickest floors, given seconds of a few turns, and of the quicker private step."""
    # With few turns, the minimum is more reliable than the median: disturbances only make a step longer.
    order = sorted(tried, key=lambda name: float(tried[name].min()))
    return [*floors(order)[:FINALISTS], next(name for name in order if name.startswith("private"))]


def floors(names: Iterable[str]) -> list[str]:
    """Return the names of floors among steps."""
    return [name for name in names if name.startswith("floor")]


def ratio(times: np.ndarray) -> tuple[float, float, float]:
    """Return the ratio of private step to floor, and its 95 % bootstrap interval.

    Parameters
    ----------
    times
        Seconds of shape (process, repetition, 2): floor and private step, which took turns.
    """
    random = np.random.default_rng(3)
    processes, repetitions = times.shape[:2]
    among = random.integers(0, processes, (2000, processes, 1))
    within = random.integers(0, repetitions, (2000, processes, repetitions))

    def middle(times: np.ndarray) -> np.ndarray:
        floor, private = np.moveaxis(np.median(times, axis=-2), -1, 0)
        return np.asarray(np.median(private / floor, axis=-1))

    low, high = np.quantile(middle(times[among, within]), (0.025, 0.975))
    return float(middle(times)), float(low), float(high)


def times_of_processes(
    network: str, case: tuple[int, int], tried: dict[str, np.ndarray], chosen: argparse.Namespace
) -> np.ndarray:
    """Return seconds of some steps in separate processes, of shape (process, repetition, step)."""
    names = list(tried)
    turn = sum(float(np.median(seconds)) for seconds in tried.values())
    repetitions = max(chosen.repetitions, math.ceil(chosen.seconds / turn))
    task = [network, *case, names, repetitions, chosen.device, chosen.threads, chosen.clock]
    return np.array([_in_a_process("--times-of", task) for _ in range(chosen.processes)])


def measure_times(task: str) -> None:
    """Print the seconds of some steps that take turns, as a JSON list of repetitions."""
    network, patients, images, names, repetitions, kind, threads, clock = json.loads(task)
    use_float32()
    torch.set_num_threads(threads)
    device = torch.device(kind)
    bench = Bench.make(NETWORKS[network], patients, images, device)
    steps = steps_of(bench, bench.pass_size())
    times = time_steps({name: steps[name] for name in names}, repetitions, device, CLOCKS[clock], WARM)
    print(json.dumps(np.stack([times[name] for name in names], axis=1).tolist()))


def _in_a_process(option: str, task: list[object]) -> Any:  # noqa: ANN401  (JSON)
    """Run this program with one option in another process, and return its JSON output."""
    command = [sys.executable, __file__, option, json.dumps(task)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def added_memory(step: Step, device: torch.device) -> float:
    """Return the peak memory that two steps add to this process, in MB."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 1e6

    def resident(key: str) -> int:
        match = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert match is not None
        return int(match[1])

    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    before = resident("VmRSS")
    step()
    step()
    return (resident("VmHWM") - before) / 1e3


def memory_ratio(network: str, case: tuple[int, int], chunk: int, device: str, threads: int) -> float:
    """Return the private step's memory over the floor's, from separate processes, in passes of equal size."""
    private, floor = (
        _in_a_process("--memory-of", [kind, network, *case, chunk, device, threads]) for kind in ("private", "floor")
    )
    return float(private / floor)


def measure_memory(task: str) -> None:
    """Print the memory that one kind of step adds, in MB."""
    kind, network, patients, images, chunk, device, threads = json.loads(task)
    torch.set_num_threads(threads)
    bench = Bench.make(NETWORKS[network], patients, images, torch.device(device))
    # A first step on one patient loads libraries and fills tables.
    small = Bench.make(NETWORKS[network], 1, 4, torch.device(device))
    small.private(4)
    small.non_private(small.model, 4)
    print(added_memory(steps_of(bench, chunk)[kind], torch.device(device)))


def measure(network: str, case: tuple[int, int], chosen: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """Time one case, print all its steps, and return its line of the table."""
    bench = Bench.make(NETWORKS[network], *case, device)
    check_equal(bench)
    chunk = bench.pass_size()
    steps = steps_of(bench, chunk)
    if device.type == "cuda":
        steps = affordable(steps)
    tried = time_steps(steps, chosen.tries, device, CLOCKS[chosen.clock])
    print(f"\n{network}, {case[0]} patients x {case[1]} images, {device}")
    for name in steps:
        print(f"  {name:28} {1e3 * float(np.median(tried[name])):9.1f} ms  ({chosen.tries} repetitions)", flush=True)
    names = finalists(tried)
    times = times_of_processes(network, case, {name: tried[name] for name in names}, chosen)
    middles = dict(zip(names, np.median(times, axis=(0, 1)).tolist(), strict=True))
    for name in names:
        print(f"  {name:28} {1e3 * middles[name]:9.1f} ms  ({len(times)} processes of {times.shape[1]})", flush=True)
    floor = min(floors(names), key=middles.__getitem__)
    times = times[:, :, [names.index(floor), len(names) - 1]]
    middle, low, high = ratio(times)
    floor_ms, private_ms = 1e3 * np.median(times, axis=(0, 1))
    memory = float("nan")
    if not chosen.no_memory:
        memory = memory_ratio(network, case, chunk, device.type, chosen.threads)
    line = {
        "case": f"{case[0]}x{case[1]}",
        "network": network,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": chosen.threads,
        "clock": chosen.clock,
        "floor": floor,
        "private": names[-1],
        "chunk": chunk,
        "processes": chosen.processes,
        "floor_ms": round(float(floor_ms), 2),
        "private_ms": round(float(private_ms), 2),
        "ratio": round(middle, 4),
        "ratio_low": round(low, 4),
        "ratio_high": round(high, 4),
        "memory_ratio": round(memory, 3),
    }
    ratios = " ".join(f"{value:.3f}" for value in np.sort(np.divide(*np.median(times, axis=1).T[::-1])))
    print(f"  ratio {middle:.3f} ({low:.3f} to {high:.3f}) to '{floor}', memory {memory:.2f}")
    print(f"  by process: {ratios}", flush=True)
    return line


def declared() -> tuple[str, str]:
    """Return cohort and seed of the timings of this and of importing modules."""
    return "none, random numbers as images", "0"


def main() -> None:
    """Measure the chosen cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", help="such as 24x4 (default: all; the largest need a GPU)")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: of this thread; one thread only")
    parser.add_argument("--processes", type=int, default=7, help="number of timed processes (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="at least, per process (%(default)s)")
    parser.add_argument("--seconds", type=float, default=8, help="at least, per process (%(default)s)")
    parser.add_argument("--tries", type=int, default=3, help="repetitions in the first process (%(default)s)")
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/step.csv"))
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--times-of", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.clock == "cpu" and (chosen.threads != 1 or chosen.device != "cpu"):
        parser.error("--clock cpu needs --threads 1 and --device cpu")
    keep_freed_memory()
    use_float32()
    if chosen.memory_of:
        measure_memory(chosen.memory_of)
        return
    if chosen.times_of:
        measure_times(chosen.times_of)
        return
    torch.set_num_threads(chosen.threads)
    device = torch.device(chosen.device)
    cases = CPU_CASES + (GPU_CASES if device.type == "cuda" else ())
    if chosen.cases:
        cases = tuple((int(p), int(n)) for p, n in (case.split("x") for case in chosen.cases))
    lines = [measure(network, case, chosen, device) for network in chosen.networks for case in cases]
    table = pd.DataFrame(lines)
    write_text(chosen.output, to_csv(table, origin(*declared())))
    print(f"\n{table.to_string(index=False)}\nwritten to {chosen.output}")


if __name__ == "__main__":
    main()
