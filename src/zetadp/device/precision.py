"""TF32 rounding on GPUs: only in convolutions that do not compute weight gradients, and only on request.

TF32 keeps 10 bits of every factor of a product instead of float32's 23. PyTorch lets cuDNN use it in convolutions
unless told otherwise, so it is told. Matrix products, norms and weight gradients are float32 always. The guarantee does
not hang on it: a clip norm is taken over the very numbers that are summed, however they were rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def set_tf32(*, convolutions: bool) -> None:
    """Allow or forbid TF32 in convolutions on a GPU; matrix products never use it."""
    if _by_name():
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    else:
        torch.backends.cuda.matmul.allow_tf32 = False
    _set(tf32=convolutions)


def tf32_in_convolutions() -> bool:
    """Return whether convolutions may use TF32 at this moment."""
    if _by_name():
        return bool(_convolutions().fp32_precision == "tf32")
    return torch.backends.cudnn.allow_tf32


@contextmanager
def float32_convolutions() -> Iterator[None]:
    """Keep TF32 out of the convolutions of a block, whatever was set before."""
    before = tf32_in_convolutions()
    if not before:  # the rule: nothing to change and nothing to restore
        yield
        return
    _set(tf32=False)
    try:
        yield
    finally:
        _set(tf32=True)


def _set(*, tf32: bool) -> None:
    if _by_name():
        _convolutions().fp32_precision = "tf32" if tf32 else "ieee"
    else:
        torch.backends.cudnn.allow_tf32 = tf32


def _by_name() -> bool:
    """Return whether this PyTorch has the named settings (from 2.9 on), which must not be mixed with older ones."""
    return hasattr(torch.backends.cudnn, "conv")


def _convolutions() -> Any:  # noqa: ANN401  (PyTorch's annotations do not know it)
    cudnn: Any = torch.backends.cudnn
    return cudnn.conv
