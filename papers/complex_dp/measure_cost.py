"""Time the layers and steps of the cost tables of Ziller et al. (6 and 7) with the library's complex numbers.

    python -m papers.complex_dp.measure_cost                  # processor time of one thread
    python -m papers.complex_dp.measure_cost --device cuda    # seconds on this GPU

Table 6 has a matrix product and a convolution. Table 7 has a step of a small network of 64 images: forward and backward
pass, squared error and descent. The private step also clips one gradient per image and adds noise. All of them take
turns in one process. Writes cost-DEVICE.csv with medians, next to the printed times of another machine: only ratios
on one machine can be compared.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional

from papers.experiments import marked, parser_of
from papers.sizes import by_size
from zetadp.base.storage import write_text
from zetadp.base.tensors import Layout, keep_freed_memory, use_float32
from zetadp.mechanism.clipping import clipped_sums
from zetadp.mechanism.contributions import Contributors, Gradient
from zetadp.nn.layers import Conv2d, Linear
from zetadp.nn.stacked import block_weight, modulus, stack
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv

if TYPE_CHECKING:
    from collections.abc import Callable

PRINTED = Path(__file__).with_name("printed_cost.csv")
IMAGES, SIDE = 64, by_size(224, smoke=32)
CLIP, NOISE, RATE = 1.0, 1.0, 1e-3
KINDS = {"real": torch.float32, "complex": torch.complex64}
REPETITIONS = by_size(20, smoke=1)


class SmallNetwork(nn.Module):
    """The network of table 7: a convolution 3 to 32 without padding, and one output of its 28,800 features."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.is_complex = dtype.is_complex
        self.convolution = Conv2d(3, 32, padding=0, bias=True, dtype=dtype)
        self.linear = Linear(28_800, 1, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return one real number per image: of a complex network the modulus."""
        outputs: Tensor = self.linear(self.convolution(stack(x) if self.is_complex else x).flatten(1))
        return modulus(outputs) if self.is_complex else outputs


def squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each image, shape (image,)."""
    return functional.mse_loss(outputs, targets, reduction="none").flatten()


def steps(kind: str, model: SmallNetwork, device: torch.device) -> dict[str, Callable[[], None]]:
    """Return the step without privacy and the step with privacy of a real or complex network on random images."""
    images = torch.randn(IMAGES, 3, 32, 32, dtype=KINDS[kind], device=device)
    targets = torch.rand(IMAGES, 1, device=device)
    layout, parameters = Layout.of(model), dict(model.named_parameters())
    contribution = Gradient(model, layout, squared_errors)
    people = Contributors(
        images, targets, torch.arange(IMAGES, device=device)[:, None], torch.zeros(IMAGES, dtype=torch.int64), 1
    )

    @torch.no_grad()
    def descend(gradients: dict[str, Tensor]) -> None:
        for name, gradient in gradients.items():
            parameters[name].sub_(gradient, alpha=RATE)

    def step() -> None:
        loss = squared_errors(model(images), targets).mean()
        descend(dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True)))

    def private_step() -> None:
        total = clipped_sums(contribution, people, bound=CLIP, chunk=IMAGES).sums[0]
        noise = torch.randn(layout.dimension, device=device)
        descend(dict(layout.unflatten(total.add_(noise, alpha=NOISE * CLIP).div_(IMAGES))))

    return {f"step without privacy, {kind}": step, f"step with privacy, {kind}": private_step}


def layers(device: torch.device) -> dict[str, Callable[[], object]]:
    """Return the layers of table 6: real, complex as the library computes them, and with PyTorch's complex64."""
    flat, weight, images, kernel = (
        torch.randn(shape, dtype=torch.complex64, device=device)
        for shape in ((IMAGES, 512), (512, 512), (IMAGES, 3, SIDE, SIDE), (16, 3, 3, 3))
    )
    stacked_flat, stacked_images = stack(flat), stack(images)
    real_flat, real_weight, real_images, real_kernel = (
        part.real.contiguous() for part in (flat, weight, images, kernel)
    )
    return {
        "linear, real": lambda: functional.linear(real_flat, real_weight),
        "linear, complex": lambda: functional.linear(stacked_flat, block_weight(weight)),
        "linear, complex64": lambda: functional.linear(flat, weight),
        "convolution, real": lambda: functional.conv2d(real_images, real_kernel, padding=1),
        "convolution, complex": lambda: functional.conv2d(stacked_images, block_weight(kernel), padding=1),
        "convolution, complex64": lambda: functional.conv2d(images, kernel, padding=1),
    }


def milliseconds(
    calls: dict[str, Callable[[], object]], repetitions: int, device: torch.device
) -> dict[str, np.ndarray]:
    """Return the milliseconds of each call, shape (repetition,). Calls take turns; the first turn does not count."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    names, order = list(calls), np.random.default_rng(0)
    times = np.empty((repetitions + 1, len(names)))
    for turn in times:
        for index in order.permutation(len(names)):
            began = clock()
            calls[names[index]]()
            if device.type == "cuda":
                torch.cuda.synchronize()
            turn[index] = 1e3 * (clock() - began)
    return dict(zip(names, times[1:].T, strict=True))


def main() -> None:
    """Write and print the table."""
    parser = parser_of(__doc__, "complex_dp")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    arguments = parser.parse_args()
    keep_freed_memory()
    use_float32()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    calls = layers(device)
    for kind, dtype in KINDS.items():
        calls |= steps(kind, SmallNetwork(dtype).to(device), device)
    times = milliseconds(calls, arguments.repetitions, device)
    printed = pd.read_csv(PRINTED, comment="#").set_index("what")[arguments.device]
    rows = []
    for name, turns in times.items():
        low, middle, high = np.quantile(turns, (0.25, 0.5, 0.75))
        row = {"what": name, "ms": middle, "quarter": low, "three_quarters": high, "printed_ms": printed.get(name)}
        print(f"{name:32} {middle:10.3f} ms", flush=True)
        rows.append(row)
    source = marked(origin("none, random inputs", "0"))
    path = arguments.output / f"cost-{arguments.device}.csv"
    write_text(path, to_csv(pd.DataFrame(rows), source, float_format="%.4g"))


if __name__ == "__main__":
    main()
