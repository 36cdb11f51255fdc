"""Blocks of images that stay in cache while several operations pass over them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

BLOCK = 1 << 19
"""Approximate numbers in one block on a CPU; a block has at least one image. On a GPU all images are one block."""


def blocks(x: Tensor, size: int = BLOCK) -> Iterator[slice]:
    """Return slices of a tensor's first axis, images, that cover it; each has up to ``size`` numbers or one image."""
    step = max(1, size // max(1, x[:1].numel()) if x.device.type == "cpu" else len(x))
    return (slice(start, start + step) for start in range(0, len(x), step))
