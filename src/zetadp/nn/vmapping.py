"""Support for `torch.vmap` in functions that treat every image by itself: the mapped axis adds more images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def merged(x: Tensor, axis: int | None, size: int | None = None) -> Tensor:
    """Return a tensor whose mapped axis is joined with its first axis, images.

    Parameters
    ----------
    x
        Tensor with the mapped axis at ``axis``, or without it.
    axis
        Position of the mapped axis; ``None`` if the tensor is not mapped.
    size
        Length of the mapped axis, needed if ``axis`` is ``None``.
    """
    x = x.unsqueeze(0).expand(size, *x.shape) if axis is None else x.movedim(axis, 0)  # type: ignore[arg-type]
    return x.flatten(0, 1)


def split(outputs: Sequence[Tensor], size: int) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Return outputs with the mapped axis, of length ``size``, in front again, and its position for each output."""
    return tuple(x.view(size, len(x) // size, *x.shape[1:]) for x in outputs), (0,) * len(outputs)
