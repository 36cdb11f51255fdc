"""Measure the time of each part of a private step, and of the whole non-private step in one pass.

python benchmarks/parts.py                 # 24 patients of four images, both networks, two threads
python benchmarks/parts.py --case 24x20 --threads 1
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pandas as pd
import step
import torch
from step import NETWORKS, WARM, Bench

from zetadp.base.memory import keep_freed_memory
from zetadp.core.server import Server
from zetadp.nn import layers
from zetadp.privacy import clipping
from zetadp.privacy.contributions import Gradient

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = {
    "gradients": (Gradient, "rows"),
    "of these, weights of convolutions": (layers, "convolution_gradients"),
    "norms and factors": (clipping, "clip_factors"),
    "gradients, norms and clipped sum": (step, "clipped_sums"),
    "noise": (step, "side_by_side"),
    "optimiser": (Server, "step"),
}


def measured(bench: Bench, chunk: int, repetitions: int) -> dict[str, float]:
    """Return milliseconds of each part, of the whole and of the floor, medians over repetitions."""
    taken: dict[str, list[float]] = defaultdict(list)

    def watched(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            began = time.perf_counter()
            result = function(*arguments, **options)
            current[name] += time.perf_counter() - began
            return result

        return call

    for repetition in range(-WARM, repetitions):
        current: dict[str, float] = defaultdict(float)
        with ExitStack() as patches:
            for name, (owner, attribute) in PARTS.items():
                patches.enter_context(patch.object(owner, attribute, watched(name, getattr(owner, attribute))))
            watched("whole private step", bench.private)(chunk)
        watched("non-private step", bench.non_private)(bench.model, bench.labels.numel())
        if repetition >= 0:
            for name, seconds in current.items():
                taken[name].append(seconds)
    return {name: 1e3 * float(np.median(taken[name])) for name in [*PARTS, "whole private step", "non-private step"]}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="24x4", help="patients x images (%(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=96, help="images in one pass of the private step (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=25)
    chosen = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(chosen.threads)
    patients, images = map(int, chosen.case.split("x"))
    device = torch.device("cpu")
    table = pd.DataFrame(
        {
            network: measured(Bench.make(settings, patients, images, device), chosen.chunk, chosen.repetitions)
            for network, settings in NETWORKS.items()
        }
    )
    print(f"milliseconds, {chosen.case}, {chosen.threads} threads\n{table.round(1).to_string()}")


if __name__ == "__main__":
    main()
