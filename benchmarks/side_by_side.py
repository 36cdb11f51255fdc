"""Time runs side by side with one thread each against one after the other with all threads.

Several trainings, as of a grid of targets and seeds, can share a machine in either way. Here each run is a process that
takes private steps of its own. In turns, all runs step at the same time with one thread each, then one run alone takes
as many steps, one after the other, with all threads. The ratio is side by side over one after the other, so below one
side by side is faster; the interval is a bootstrap over turns.

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

from zetadp.device.memory import keep_freed_memory
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv
from zetadp.storage import write_text

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

RESULTS = Path(__file__).parents[1] / "docs/results/benchmarks"


def run(network: str, patients: int, images: int, threads: int, pipe: Connection) -> None:
    """Take as many steps as asked for, until asked for none."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    bench = Bench.make(NETWORKS[network], patients, images, torch.device("cpu"))
    step = partial(bench.private, bench.pass_size())
    while steps := pipe.recv():
        for _ in range(steps):
            step()
        pipe.send(None)


def turns(network: str, case: tuple[int, int], runs: int, steps: int, repetitions: int) -> tuple[np.ndarray, ...]:
    """Return seconds that ``runs`` runs take for ``steps`` steps each: side by side, and one after the other."""
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
    parser.add_argument("--runs", type=int, default=2, help="as many as there are cores (default: 2)")
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
