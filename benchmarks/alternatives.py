"""Compare the time of our private step with that of the alternatives, on the same work.

There are three groups. The steps of a group run in turn in one process:

- ``real``: a real-valued network of the pooled shape, on 24 patients with four images each. Opacus protects single
  images, by its hooks, by functorch and by ghost clipping. Our step protects images (96 patients with one image each)
  or patients.
- ``complex``: the complex network of the same shape. Single images are protected by `torch.vmap` of the gradient or by
  our step.
- ``layers``: the layers and steps of tables 6 and 7 of Ziller et al., Complex-valued deep learning with differential
  privacy. The printed figures are from another machine.

    python benchmarks/alternatives.py
    python benchmarks/alternatives.py --groups layers --repetitions 5

Needs the extra ``opacus``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from opacus import PrivacyEngine
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from step import CLIP, NETWORKS, SIGMA, Bench, declared, timed
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from zetadp.base.memory import keep_freed_memory
from zetadp.base.storage import write_text
from zetadp.nn.layers import Conv2d, Linear
from zetadp.nn.models import NetworkSettings
from zetadp.nn.stacked import block_weight, stack
from zetadp.opacus.engine import PrivacyEngine as Bridge
from zetadp.privacy import clipping, contributions
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parents[1] / "docs/results/benchmarks"
CPU = torch.device("cpu")
PATIENTS, IMAGES, CHUNK = 24, 4, 96
REAL = NetworkSettings(family="real", domain="image", convolutions=1, head="pooled")
PRINTED = {
    "linear 512 x 512, batch 64, real": 0.0686,
    "linear 512 x 512, batch 64, complex": 1.21,
    "convolution 3 to 16, 64 images of 224 x 224, real": 31.8,
    "convolution 3 to 16, 64 images of 224 x 224, complex": 214.0,
    "step without privacy, real": 156.0,
    "step without privacy, complex": 1450.0,
    "step with privacy, real": 27_600.0,
    "step with privacy, complex": 64_800.0,
}
"""Milliseconds on a CPU, tables 6 and 7; a step trains a convolution 3 to 32 and a linear layer on 64 images."""


def real_twin(bench: Bench) -> nn.Sequential:
    """Return PyTorch's own layers in the shape of our real network."""
    layers: list[nn.Module] = []
    for module in bench.model.blocks:
        match type(module).__name__:
            case "Conv2d":
                outputs, inputs = module.weight.shape[:2]
                layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))
            case "GroupNorm":
                layers.append(nn.GroupNorm(module.groups, len(module.scale)))
            case "Mish":
                layers += [nn.Mish(), nn.AvgPool2d(2)]
    outputs, inputs = bench.model.head[0].weight.shape
    twin = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, outputs))
    assert sum(p.numel() for p in twin.parameters()) == sum(p.numel() for p in bench.model.parameters())
    return twin


def opacus_step(bench: Bench, mode: str) -> Callable[[], None]:
    """Return a step of Opacus, one clipped gradient an image."""
    twin = real_twin(bench)
    images, labels = bench.images.flatten(0, 1), bench.labels.flatten()
    loss_of: Any = nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=twin,
        optimizer=torch.optim.NAdam(twin.parameters()),
        data_loader=DataLoader(TensorDataset(images, labels), batch_size=len(images)),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        grad_sample_mode=mode,
        **({"criterion": loss_of} if mode == "ghost" else {}),
    )
    model, optimizer = made[0], made[1]
    if mode == "ghost":
        loss_of = next(part for part in made if isinstance(part, DPLossFastGradientClipping))

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()

    return step


def bridge_step(bench: Bench) -> Callable[[], None]:
    """Return a step of a complex network by Opacus's hooks as `zetadp.opacus` mends them, one gradient per patient."""
    model, optimizer, loader = Bridge().make_private(
        module=bench.model,
        optimizer=torch.optim.NAdam(bench.model.parameters()),
        data_loader=TensorDataset(bench.images.flatten(0, 1), bench.labels.flatten()),
        patients=torch.arange(PATIENTS).repeat_interleave(IMAGES),
        sampling_probability=1.0,
        rounds=1,
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
    )

    def step() -> None:
        for images, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    return step


def plain_step(bench: Bench) -> Callable[[], None]:
    """Return a non-private step of PyTorch's own real layers."""
    twin = real_twin(bench)
    optimizer = torch.optim.NAdam(twin.parameters())
    images, labels = bench.images.flatten(0, 1), bench.labels.flatten()

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(twin(images), labels).backward()
        optimizer.step()

    return step


def mapped(bench: Bench, chunk: int) -> None:
    """Take a private step whose gradients come from `torch.vmap`."""
    with mock.patch.object(contributions, "knows_patients", return_value=False):
        bench.private(chunk)


def networks(settings: NetworkSettings) -> dict[str, Callable[[], None]]:
    """Return the steps of a whole network: the alternatives and our own."""
    by_image = Bench.make(settings, PATIENTS * IMAGES, 1, CPU)
    by_patient = Bench.make(settings, PATIENTS, IMAGES, CPU)
    ours = {
        "ours, not private": partial(by_patient.non_private, by_patient.model, CHUNK),
        "ours, per image": partial(by_image.private, CHUNK),
        "ours, per patient": partial(by_patient.private, CHUNK),
    }
    if settings.family == "real":
        theirs = {
            f"Opacus {mode}, per image": opacus_step(by_patient, mode) for mode in ("hooks", "functorch", "ghost")
        }
        return {"PyTorch's layers, not private": plain_step(by_patient), **theirs, **ours}
    return {
        "vmap, per image": partial(mapped, by_image, 32),
        "vmap, per patient": partial(mapped, by_patient, 32),
        "Opacus hooks mended, per patient": bridge_step(Bench.make(settings, PATIENTS, IMAGES, CPU)),
        **ours,
    }


class Small(nn.Module):
    """The network of the printed steps: a convolution 3 to 32 without padding, then one output of 28 800 features."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.complex = dtype.is_complex
        self.convolution, self.linear = Conv2d(3, 32, dtype=dtype), Linear(28_800, 1, dtype=dtype)
        self.convolution.padding = 0
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Return one real number an image: of a complex network the modulus."""
        scores: Tensor = self.linear(self.convolution(stack(x) if self.complex else x).flatten(1))
        return torch.linalg.vector_norm(scores, dim=1, keepdim=True) if self.complex else scores


def small_steps(dtype: torch.dtype) -> dict[str, Callable[[], None]]:
    """Return the steps of table 7: forward, backward, squared error, descent; private ones also clip and noise."""
    kind = "complex" if dtype.is_complex else "real"
    model, images, wanted = Small(dtype), torch.randn(64, 3, 32, 32, dtype=dtype), torch.rand(64, 1)
    parameters = dict(model.named_parameters())

    def plain() -> None:
        gradients = torch.autograd.grad(functional.mse_loss(model(images), wanted), list(parameters.values()))
        with torch.no_grad():
            torch._foreach_add_(list(parameters.values()), list(gradients), alpha=-1e-3)

    def private() -> None:
        leaves = {n: p.detach().expand(64, *p.shape).requires_grad_() for n, p in parameters.items()}
        loss = functional.mse_loss(functional_call(model, leaves, (images,)), wanted, reduction="sum")
        found = torch.autograd.grad(loss, list(leaves.values()))
        rows = [(torch.view_as_real(g) if g.is_complex() else g).reshape(64, -1) for g in found]
        factors, _ = clipping.clip_factors(rows, CLIP)
        with torch.no_grad():
            for parameter, row in zip(parameters.values(), rows, strict=True):
                real = torch.view_as_real(parameter) if parameter.is_complex() else parameter
                total = (factors @ row).add_(torch.randn(row.shape[1]), alpha=SIGMA * CLIP)
                real.sub_(total.view(real.shape), alpha=1e-3 / 64)

    return {f"step without privacy, {kind}": plain, f"step with privacy, {kind}": private}


def layers() -> dict[str, Callable[[], None]]:
    """Return the layers of table 6 and the steps of table 7."""
    flat, weight = torch.randn(64, 512, dtype=torch.complex64), torch.randn(512, 512, dtype=torch.complex64)
    images, kernel = (
        torch.randn(64, 3, 224, 224, dtype=torch.complex64),
        torch.randn(16, 3, 3, 3, dtype=torch.complex64),
    )
    stacked_flat, stacked = stack(flat), stack(images)
    real = [part.real.contiguous() for part in (flat, weight, images, kernel)]
    linear, convolution = (name.removesuffix(", real") for name in list(PRINTED)[:4:2])
    return {
        f"{linear}, real": lambda: functional.linear(real[0], real[1]),
        f"{linear}, complex": lambda: functional.linear(stacked_flat, block_weight(weight)),
        f"{linear}, PyTorch's complex64": lambda: functional.linear(flat, weight),
        f"{convolution}, real": lambda: functional.conv2d(real[2], real[3], padding=1),
        f"{convolution}, complex": lambda: functional.conv2d(stacked, block_weight(kernel), padding=1),
        f"{convolution}, PyTorch's complex64": lambda: functional.conv2d(images, kernel, padding=1),
        **small_steps(torch.float32),
        **small_steps(torch.complex64),
    }


GROUPS: dict[str, Callable[[], dict[str, Callable[[], None]]]] = {
    "real": partial(networks, REAL),
    "complex": partial(networks, NETWORKS["pooled"]),
    "layers": layers,
}


def main() -> None:
    """Measure the chosen groups and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--output", type=Path, default=RESULTS / "alternatives.csv")
    chosen = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(chosen.threads)
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
    lines = []
    for group in chosen.groups:
        steps = GROUPS[group]()
        times = timed(steps, chosen.repetitions, CPU, time.perf_counter)
        for name in steps:
            low, middle, high = 1e3 * np.quantile(times[name], (0.25, 0.5, 0.75))
            line = {"group": group, "what": name, "threads": chosen.threads, "ms": middle, "quarter": low}
            lines.append({**line, "three_quarters": high, "printed_ms": PRINTED.get(name, float("nan"))})
            print(f"{group:8} {name:64} {middle:10.3f} ms", flush=True)
    write_text(chosen.output, to_csv(pd.DataFrame(lines), origin(*declared()), float_format="%.4g"))
    print(f"written to {chosen.output}")


if __name__ == "__main__":
    main()
