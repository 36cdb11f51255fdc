"""Compare two ways to share a machine: runs in parallel with one thread each, and runs in sequence with all threads.

Both ways suit a grid of runs with several epsilons and seeds. Here each run is a process that takes private steps. In
each turn, all runs first take their steps in parallel with one thread each. Then a single run takes the same total
number of steps with all threads. The ratio is the parallel time over the sequential time: below one, parallel runs are
faster. The interval is a bootstrap over turns.

    python benchmarks/side_by_side.py
    python benchmarks/side_by_side.py --runs 4 --cases 264x4
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from step import NETWORKS, Bench, declared, ratio

from zetadp.base.memory import keep_freed_memory
from zetadp.base.storage import write_text
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

RESULTS = Path(__file__).parents[1] / "docs/results/benchmarks"


def run(network: str, patients: int, images: int, threads: int, pipe: Connection) -> None:
    """Take the requested number of steps, again and again, until the request is zero."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    bench = Bench.make(NETWORKS[network], patients, images, torch.device("cpu"))
    step = partial(bench.private, bench.pass_size())
    while steps := pipe.recv():
        for _ in range(steps):
            step()
        pipe.send(None)


def turns(network: str, case: tuple[int, int], runs: int, steps: int, repetitions: int) -> tuple[np.ndarray, ...]:
    """Return the seconds of ``runs`` runs with ``steps`` steps each: in parallel, and in sequence."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for threads in (*[1] * runs, runs):
        near, far = context.Pipe()
        context.Process(target=run, args=(network, *case, threads, far), daemon=True).start()
        pipes.append(near)
    *together, alone = pipes

    def seconds(chosen: list[Connection], count: int) -> float:
        began = time.perf_counter()
        for pipe in chosen:
            pipe.send(count)
        for pipe in chosen:
            pipe.recv()
        return time.perf_counter() - began

    for pipe in pipes:
        seconds([pipe], 1)
    found = [(seconds(together, steps), seconds([alone], runs * steps)) for _ in range(repetitions)]
    for pipe in pipes:
        pipe.send(0)
    return tuple(np.array(found).T)


def main() -> None:
    """Measure the chosen cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["24x4", "264x4"], help="patients x images, such as 24x4")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--runs", type=int, default=2, help="number of parallel runs (default: 2)")
    parser.add_argument("--steps", type=int, default=3, help="steps of each run in one turn")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS / "side_by_side.csv")
    chosen = parser.parse_args()
    lines = []
    for network in chosen.networks:
        for case in chosen.cases:
            patients, images = (int(number) for number in case.split("x"))
            beside, after = turns(network, (patients, images), chosen.runs, chosen.steps, chosen.repetitions)
            middle, low, high = ratio(np.stack((after, beside), axis=-1)[None])
            steps = chosen.runs * chosen.steps
            lines.append(
                {
                    "case": case,
                    "network": network,
                    "runs": chosen.runs,
                    "side_by_side_ms": 1e3 * np.median(beside) / steps,
                    "one_after_the_other_ms": 1e3 * np.median(after) / steps,
                    "ratio": middle,
                    "ratio_low": low,
                    "ratio_high": high,
                }
            )
            print(lines[-1], flush=True)
    write_text(chosen.output, to_csv(pd.DataFrame(lines), origin(*declared()), float_format="%.4g"))
    print(f"written to {chosen.output}")


if __name__ == "__main__":
    main()
