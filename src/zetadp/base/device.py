"""The machine under PyTorch: its device, copies to a GPU, rounding on it, and freed memory.

TF32 keeps 10 bits of every factor of a product instead of float32's 23. By default PyTorch lets cuDNN use it in
convolutions, so it is turned off here: everything is float32.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch
from torch import Tensor

from zetadp.base.validation import UserError, first_sentence

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Options of glibc's ``mallopt``."""
KEPT = 1 << 30
"""Bytes of freed memory that the process keeps."""


def pick_device(name: str) -> torch.device:
    """Return the device called ``auto`` (CUDA if there is one), ``cpu`` or ``cuda``, and turn TF32 off.

    Raises
    ------
    UserError
        If PyTorch has no such device.
    """
    try:
        found = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.zeros(1, device=found).item()  # which a device without numbers, such as meta, refuses
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UserError(
            f"device: Expected auto, cpu, or cuda where PyTorch has one, found {name!r}: {first_sentence(error)} Use "
            "device auto or cpu."
        ) from error
    use_float32()
    return found


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, copied in the order of the device's other work.

    Parameters
    ----------
    values
        Tensor in the processor's memory, or on the device already.
    device
        Device for the tensor. A copy to a GPU goes through page-locked memory, from which the GPU reads without the
        processor. With a plain copy the processor would wait until the GPU had finished all earlier work.

    Returns
    -------
    Tensor on the device; ``values`` itself if it is already there.
    """
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def keep_freed_memory() -> bool:
    """Keep up to 1 GiB of freed memory for the next allocation, for the rest of the process.

    By default glibc returns freed blocks of megabytes to the system, which must soon clear and map them again. This
    took 6 to 13 % of a training step on a CPU (measured). Peak memory stays the same. Without glibc nothing happens.

    Returns
    -------
    Whether the C library took the setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT) and mallopt(M_MMAP_MAX, 0))


def use_float32() -> None:
    """Forbid TF32 on a GPU, in convolutions and in matrix products, for the rest of the process."""
    cudnn: Any = torch.backends.cudnn
    if hasattr(cudnn, "conv"):  # settings by name (version 2.9 or later), which must not be mixed with older ones
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        cudnn.conv.fp32_precision = "ieee"
    else:
        torch.backends.cuda.matmul.allow_tf32 = False
        cudnn.allow_tf32 = False
