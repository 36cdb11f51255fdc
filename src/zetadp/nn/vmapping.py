"""Support for `torch.vmap` in functions that treat every image alone: a further axis means more images."""

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
        Place of the mapped axis; ``None`` where all maps share the tensor.
    size
        Length of the mapped axis, needed where ``axis`` is ``None``.
    """
    x = x.unsqueeze(0).expand(size, *x.shape) if axis is None else x.movedim(axis, 0)  # type: ignore[arg-type]
    return x.flatten(0, 1)


def split(outputs: Sequence[Tensor], size: int) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Return outputs with the mapped axis, of length ``size``, in front again, and its place."""
    return tuple(x.view(size, len(x) // size, *x.shape[1:]) for x in outputs), (0,) * len(outputs)
