"""Time the kernels for one weight gradient a patient on the layers of the networks of `step.py`, on a CPU.

For comparison, the backend's single call for all patients is timed too. It gives only the sum over patients. All
kernels run in turn.

    python benchmarks/weight_gradients.py                           # 24 patients of four images, two threads
    python benchmarks/weight_gradients.py --images 20 --threads 1
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pandas as pd
import torch
from step import WARM, timed

from zetadp.base.memory import keep_freed_memory
from zetadp.nn import weight_gradients
from zetadp.nn.weight_gradients import Geometry, by_patient, by_patient_in_three

LAYERS = ((2, 64, 32), (64, 64, 32), (64, 128, 16), (128, 128, 16), (128, 256, 8), (256, 256, 8))
"""Stacked channels in and out, and the side of the images."""
PATIENTS, KERNEL = 24, 3


def measured(inputs: int, outputs: int, side: int, images: int, repetitions: int) -> dict[str, float]:
    """Return milliseconds of each kernel on one layer."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(PATIENTS * images, inputs, side, side, generator=generator)
    gradient = torch.randn(PATIENTS * images, outputs, side, side, generator=generator)
    weight = torch.empty(outputs, inputs, KERNEL, KERNEL)
    kernels = {
        "one call for all": lambda: weight_gradients._weight_gradient(x, gradient, weight, 1, 1),
        "four products": lambda: by_patient(x, gradient, PATIENTS, Geometry(KERNEL, 1, 1), is_complex=True),
        "three products": lambda: by_patient_in_three(x, gradient, PATIENTS, Geometry(KERNEL, 1, 1)),
        "chosen": lambda: weight_gradients.convolution_gradients(
            x, gradient, PATIENTS, Geometry(KERNEL, 1, 1), is_complex=True
        ),
    }
    times = timed(kernels, repetitions, x.device, time.perf_counter, WARM)
    return {name: 1e3 * float(np.median(found)) for name, found in times.items()}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4, help="of a patient (%(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=25)
    chosen = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(chosen.threads)
    found = {f"{i} to {o}, {side}": measured(i, o, side, chosen.images, chosen.repetitions) for i, o, side in LAYERS}
    print(f"milliseconds, {PATIENTS} patients of {chosen.images} images, {chosen.threads} threads")
    print(pd.DataFrame(found).T.round(1).to_string())


if __name__ == "__main__":
    main()
