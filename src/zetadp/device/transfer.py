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
        Where it is wanted. For a GPU it goes through page-locked memory, from which the GPU reads by itself: a plain
        copy would make the processor wait until all that was asked of the GPU before is done.

    Returns
    -------
    ``values`` itself where it is there already.
    """
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
