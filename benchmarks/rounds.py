"""Time one private round of every network of a paper's scenarios, and multiply by their rounds and runs.

    python -m benchmarks.rounds complex_mri                  # processor seconds
    python -m benchmarks.rounds complex_mri --device cuda    # seconds on this GPU

The round is the library's own: one clipped gradient for each unit that is expected to be drawn, sums, noise for every
node and the server's step, on random inputs of the task's shape. A network with the same units is timed once. Measuring
validation patients and starting processes take additional time. Heads on features (seconds per run) and networks whose
outputs are images are left out, and so are scenarios of other papers. Writes results/benchmarks/rounds-PAPER.csv.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
import yaml

from benchmarks.step import Bench
from papers import sizes
from zetadp.base.storage import write_text
from zetadp.base.tensors import keep_freed_memory, use_float32
from zetadp.config.load import load_config
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zetadp.training.plan import Plan

SHAPES = {
    "brain_sequences": ((1, 32, 32), 4),
    "phase_mnist": ((1, 28, 28), 10),
    "speech_commands": ((1, 124, 129), 8),
}
"""Shape of an input and number of classes of each task."""
FAMILIES = {"complex", "real", "dense", "spectrogram"}


def rows(paper: str) -> Iterator[tuple[dict[str, Any], Plan, str]]:
    """Yield scenario, network, arm, rounds and number of runs, with a plan of these runs and their task."""
    declared = yaml.safe_load((sizes.ROOT / f"papers/{paper}/paper.yaml").read_text(encoding="utf-8"))
    for scenario in declared["scenarios"] + declared.get("whole", []):
        (file,) = [scenario] if isinstance(scenario, str) else scenario
        config = load_config(sizes.content(file, sizes.SHORT))
        cells: dict[tuple[str, str], list[Any]] = {}
        for run in config.run_names:
            cells.setdefault((run.network, run.arm), []).append(run)
        for (network, arm), runs in cells.items():
            plan = config.plan(runs[0])
            if plan.network.family in FAMILIES and config.task.name in SHAPES:
                row = {"scenario": Path(file).stem, "network": network, "arm": arm, "runs": len(runs)}
                yield row | {"rounds": plan.training.rounds}, plan, config.task.name


def seconds(plan: Plan, task: str, device: torch.device, repetitions: int) -> tuple[int, float]:
    """Return the number of inputs of a round, and the median of its seconds: of this process, or of the GPU's clock."""
    units = round(sum(node.expected for node in plan.nodes))
    n_images = 1 if plan.unit == "image" else plan.training.images_per_patient
    shape, classes = SHAPES[task]
    bench = Bench.make(plan.network, units, n_images, device, shape=shape, classes=classes, nodes=len(plan.nodes))
    chunk, times = bench.pass_size(), []
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    for repetition in range(repetitions + 1):
        began = clock()
        bench.private(chunk)
        if device.type == "cuda":
            torch.cuda.synchronize()
        if repetition:  # the first one requests memory and compiles
            times.append(clock() - began)
    return units * n_images, statistics.median(times)


def main() -> None:
    """Write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=sorted(path.parent.name for path in sizes.ROOT.glob("papers/*/paper.yaml")))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--output", type=Path, help="results/benchmarks/rounds-PAPER.csv")
    arguments = parser.parse_args()
    keep_freed_memory()
    use_float32()
    torch.set_num_threads(1)
    device, timed, table = torch.device(arguments.device), {}, []
    for row, plan, task in rows(arguments.paper):
        units = round(sum(node.expected for node in plan.nodes))
        key = json.dumps([plan.network.to_json(), units, len(plan.nodes), plan.unit, plan.training.images_per_patient])
        if key not in timed:
            timed[key] = seconds(plan, task, device, arguments.repetitions)
        inputs, median = timed[key]
        hours = median * row["rounds"] / 3600
        table.append(
            row | {"inputs": inputs, "round_seconds": median, "run_hours": hours, "hours": hours * row["runs"]}
        )
        print(table[-1], flush=True)
    if not table:
        sys.exit(f"Expected a network that is trained in rounds in papers/{arguments.paper}, found heads on features.")
    times = pd.DataFrame(table)
    source = origin("none, random inputs", "0")
    path = arguments.output or Path(f"results/benchmarks/rounds-{arguments.paper}.csv")
    write_text(
        path,
        to_csv(
            times, (*source, f"Seconds of one {'core' if arguments.device == 'cpu' else 'GPU'}."), float_format="%.4g"
        ),
    )
    print(f"\n{times.to_string(index=False)}\n{times['hours'].sum():.1f} hours in all; written to {path}")


if __name__ == "__main__":
    main()
