"""Measure the effect of TF32 in convolutions on accuracy, emulated on a CPU.

With `training.tf32` a GPU may use only 10 bits of each factor in the products of convolutions. This holds for forward
passes and for the gradients of inputs. Weight gradients, norms and everything else stay float32. Here the factors are
rounded to the nearest such number before each of these convolutions, and sums are float32 as on a GPU. Everything else
in a run is the same as without TF32: patients, draws and noise, for each seed. Evaluation uses float32.

The network and the rounds are those of `config.yaml`, the simulated patients those of `updates.py`.

    python benchmarks/tf32.py
    python benchmarks/tf32.py --folder FOLDER   # keeps the cohort
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pandas as pd
import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional
from updates import COHORT, DELTA, EPSILON, EXPECTED, NODES, POPULATION, TASK, cohort, units

from zetadp.base.memory import keep_freed_memory
from zetadp.base.storage import write_text
from zetadp.core.evaluation import outputs_of
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.records import Records
from zetadp.core.settings import OptimiserSettings, TrainingSettings
from zetadp.core.training import Holding, TrainingData, TrainingFiles, train
from zetadp.nn import layers
from zetadp.nn.models import NetworkSettings
from zetadp.nn.stacked import block_weight
from zetadp.nn.weight_gradients import Geometry, convolution_gradients
from zetadp.privacy.calibration import noise_for_epsilon
from zetadp.report.provenance import origin, seeds_shown
from zetadp.report.rendering import to_csv

if TYPE_CHECKING:
    from torch import Tensor

NETWORK = NetworkSettings(widths=(16, 32, 64), convolutions=1, head="pooled", groups=8)
SETTINGS = TrainingSettings(rounds=160, images_per_patient=4, optimiser=OptimiserSettings(learning_rate=0.005))
SEEDS = 3
DROPPED = 13
"""Bits of float32's mantissa that TF32 does not have."""


def to_tf32(x: Tensor) -> Tensor:
    """Return float32 numbers rounded to the nearest of TF32, ties away from zero.

    Examples
    --------
    >>> to_tf32(torch.tensor([1.0, 1 + 2**-10, 1 + 2**-11, -(1 + 2**-12)])) - 1
    tensor([ 0.0000e+00,  9.7656e-04,  9.7656e-04, -2.0000e+00])
    """
    bits = x.contiguous().view(torch.int32)
    return ((bits + (1 << DROPPED - 1)) & -(1 << DROPPED)).view(torch.float32)


class _Rounded(torch.autograd.Function):
    """The complex convolution of patients (`zetadp.nn.layers`), rounding where TF32 may be used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, stride: int, padding: int) -> Tensor:  # noqa: ANN401  (untyped)
        block = to_tf32(block_weight(weights[0]))
        ctx.save_for_backward(x, block)
        ctx.patients, ctx.geometry = len(weights), {"stride": stride, "padding": padding}
        return functional.conv2d(to_tf32(x), block, **ctx.geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: ANN401  (untyped)
        x, block = ctx.saved_tensors
        of_x = torch.nn.grad.conv2d_input(x.shape, block, to_tf32(gradient), **ctx.geometry)
        of_weights = convolution_gradients(
            x, gradient, ctx.patients, Geometry(block.shape[-1], **ctx.geometry), is_complex=True
        )
        return of_x, of_weights, None, None


def predicted(epsilon: str, seed: int, records: Records, test: Records, *, rounded: bool) -> Tensor:
    """Train one network, and return its classes for the test images, shape (item,)."""
    sigma = noise_for_epsilon(EPSILON, DELTA, EXPECTED / POPULATION, SETTINGS.rounds) if epsilon != "inf" else 0.0
    nodes = tuple(NodeConstants(f"node-{node + 1:02d}", POPULATION, EXPECTED, sigma) for node in range(NODES))
    holdings = [Holding(units(node)) for node in range(NODES)]
    plan = Plan(RunName("complex", "federated", epsilon, seed), NETWORK, SETTINGS, nodes, delta=DELTA, task=TASK)
    rounding = patch.object(layers, "_PatientConv2d", _Rounded) if rounded else nullcontext()
    with tempfile.TemporaryDirectory() as name, rounding:
        files = TrainingFiles(Path(name) / "ledger.jsonl", Path(name) / "checkpoint.safetensors")
        model = train(plan, TrainingData(records, holdings), files).model
    return outputs_of(model, test.inputs).argmax(dim=1)


def declared(seeds: int = SEEDS) -> tuple[str, str]:
    """Return cohort and seeds."""
    size = f"{COHORT.train_patients} + {COHORT.test_patients} patients"
    return f"simulated patients of updates.py, {size}, seed {COHORT.seed}", seeds_shown(range(seeds))


def main() -> None:
    """Train in pairs, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="pairs of trainings for each epsilon (%(default)s)")
    parser.add_argument("--folder", type=Path, help="for the cohort (default: do not store it)")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/tf32.csv"))
    chosen = parser.parse_args()
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as name:
        folder = chosen.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        records, test = cohort(folder)
    lines = []
    for epsilon in (f"{EPSILON:g}", "inf"):
        for seed in range(chosen.seeds):
            plain, rounded = (predicted(epsilon, seed, records, test, rounded=how) for how in (False, True))
            accuracies = [100 * float((found == test.targets).float().mean()) for found in (plain, rounded)]
            changed = 100 * float((plain != rounded).float().mean())
            lines.append([epsilon, seed, *accuracies, accuracies[1] - accuracies[0], changed])
            said = "epsilon {}, seed {}: {:.2f} % in float32, {:.2f} % in TF32 ({:+.2f}), {:.2f} % of answers changed"
            print(said.format(*lines[-1]), flush=True)
    table = pd.DataFrame(lines, columns=["epsilon", "seed", "float32", "tf32", "difference", "changed"])
    write_text(chosen.output, to_csv(table.round(3), origin(*declared(chosen.seeds))))
    summary = table.groupby("epsilon", sort=False)[["float32", "tf32", "difference", "changed"]].agg(["mean", "std"])
    print(summary.round(2).to_string())
    print(f"written to {chosen.output}")


if __name__ == "__main__":
    main()
