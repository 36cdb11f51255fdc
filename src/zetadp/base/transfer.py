"""Non-blocking copies from the processor's memory to a GPU."""

from __future__ import annotations

import torch
from torch import Tensor


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
