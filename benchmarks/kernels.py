"""Count the kernels of a private and of a non-private step on a GPU, and the bytes that they move, without a GPU.

Both steps of `benchmarks.step` run on PyTorch's meta device, whose tensors hold no numbers. Each operation that is not
a view counts as one kernel, which reads its inputs and writes its outputs once. A view whose windows overlap counts as
the numbers that it is a view of. The table has the operations on which the private step spends most in addition. The
times are those of a memory of 3.5 TB/s, so they are lower bounds: convolutions and large matrix products take longer,
and so do copies that change the order of axes.

    python -m benchmarks.kernels
    python -m benchmarks.kernels --networks A8a --shapes
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import step

META = torch.device("meta")
BYTES_A_MS = 3.5e9
"""Bytes that the memory of an NVIDIA H200 moves in a millisecond, about three quarters of what its maker states."""
WITHOUT_KERNEL = ("empty", "detach", "_unsafe_view")
"""Parts of the names of operations that read and write nothing, besides views."""


class Kernels(TorchDispatchMode):
    """Count operations on the meta device, and their bytes, by name, or by name and largest shape."""

    def __init__(self, *, shapes: bool) -> None:
        super().__init__()
        self.shapes = shapes
        self.count: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401  (an operator)
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  (whatever the operator returns)
        """Call an operation and count it."""
        result = func(*args, **(kwargs or {}))
        tensors = {id(leaf): leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)}
        name = func.name().removeprefix("aten::")
        aliases = [returned.alias_info for returned in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        on_device = any(tensor.device == META for tensor in tensors.values())
        if on_device and not is_view and not any(part in name for part in WITHOUT_KERNEL):
            if self.shapes:
                name = f"{name} {tuple(max((t.shape for t in tensors.values()), key=math.prod))}"
            self.count[name] += 1
            self.bytes[name] += sum(map(moved, tensors.values()))
            kind = (kwargs or {}).get("dtype")
            if name.startswith("linalg_vector_norm") and kind not in (None, args[0].dtype):
                # PyTorch first copies the input to the type of the result, and reads the copy.
                copied = args[0].numel() * kind.itemsize
                self.count["copies within norms"] += 1
                self.bytes["copies within norms"] += 2 * copied
        return result


def moved(tensor: Tensor) -> int:
    """Return the bytes of a tensor. Numbers that repeat in an expanded axis or in overlapping windows count once."""
    numbers = math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return min(numbers * tensor.element_size(), tensor.untyped_storage().nbytes())


def counted(take_step: Callable[[], None], *, shapes: bool) -> Kernels:
    """Return the kernels of a step after a first one, which fills tables."""
    take_step()
    with Kernels(shapes=shapes) as kernels:
        take_step()
    return kernels


def compare(network: str, patients: int, images: int, *, shapes: bool, rows: int) -> None:
    """Print the kernels of both steps of a network, and where they differ most."""
    bench = step.Bench.make(step.NETWORKS[network], patients, images, META)
    steps = step.steps_of(bench, bench.pass_size())
    floor, private = (counted(steps[name], shapes=shapes) for name in ("floor", "private"))
    print(f"\n{network}, {patients} patients x {images} images")
    for name, kernels in (("floor", floor), ("private", private)):
        moved_bytes = kernels.bytes.total()
        print(f"{name}: {kernels.count.total()} kernels, {moved_bytes / 1e9:.1f} GB, {moved_bytes / BYTES_A_MS:.1f} ms")
    table = pd.DataFrame(
        [
            {
                "operation": name,
                "floor": floor.count[name],
                "private": private.count[name],
                "GB more": (private.bytes[name] - floor.bytes[name]) / 1e9,
                "ms more": (private.bytes[name] - floor.bytes[name]) / BYTES_A_MS,
            }
            for name in {*floor.count, *private.count}
        ]
    )
    print(table.nlargest(rows, "ms more").round(2).to_string(index=False))


def main() -> None:
    """Print the comparison of the chosen networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="264x4", help="patients x images (%(default)s)")
    parser.add_argument("--networks", nargs="+", choices=step.NETWORKS, default=list(step.NETWORKS))
    parser.add_argument("--shapes", action="store_true", help="count operations of each shape by themselves")
    parser.add_argument("--rows", type=int, default=12, help="rows of a table (%(default)s)")
    chosen = parser.parse_args()
    patients, images = map(int, chosen.case.split("x"))
    for network in chosen.networks:
        compare(network, patients, images, shapes=chosen.shapes, rows=chosen.rows)


if __name__ == "__main__":
    main()
