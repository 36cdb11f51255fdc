"""TF32 rounding on GPUs: only in convolutions, and only on request.

TF32 keeps 10 bits of every factor of a product instead of float32's 23. By default PyTorch lets cuDNN use it in
convolutions, so it is set explicitly here. Matrix products and norms always use float32. The guarantee does not depend
on it: clipping takes the norm of the same rounded numbers that are summed.
"""

from __future__ import annotations

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
    """Return whether convolutions may currently use TF32."""
    if _by_name():
        return bool(_convolutions().fp32_precision == "tf32")
    return torch.backends.cudnn.allow_tf32


def _set(*, tf32: bool) -> None:
    if _by_name():
        _convolutions().fp32_precision = "tf32" if tf32 else "ieee"
    else:
        torch.backends.cudnn.allow_tf32 = tf32


def _by_name() -> bool:
    """Return whether PyTorch has settings by name (version 2.9 or later), which must not be mixed with older ones."""
    return hasattr(torch.backends.cudnn, "conv")


def _convolutions() -> Any:  # noqa: ANN401  (PyTorch's annotations do not know it)
    cudnn: Any = torch.backends.cudnn
    return cudnn.conv
