"""A computation of fixed shape as one CUDA graph: hundreds of launches become one.

What is captured must keep to static memory: it reads and writes buffers that stay where they are, asks the device for
no value, and has no shape that depends on values (https://docs.pytorch.org/docs/stable/notes/cuda.html, CUDA graphs).
**Written without a GPU at hand: none of this has run on one.** Where capture fails, the computation is done as it is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

WARM_UPS = 3
"""Runs before the capture, in which libraries choose algorithms, load kernels and take their workspaces."""


def captured_or_plain(compute: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return what does the same as ``compute``: on a GPU its captured graph, if it can be had, and itself elsewhere.

    Parameters
    ----------
    compute
        Reads and writes static buffers. It is run a few times: what it added to must be reset afterwards.
    device
        Where the buffers are.

    Raises
    ------
    torch.OutOfMemoryError
        If the GPU has too little memory for it, which another way of launching would not mend.
    """
    if device.type != "cuda":
        return compute
    try:
        return captured(compute, device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        logger.warning("no CUDA graph of a pass, launching its operations one by one: %s", str(error).split("\n")[0])
        return compute


def captured(compute: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Run ``compute`` to warm up, capture it, and return the replay of its graph.

    The graph is kept by what is returned, and with it the memory of all intermediate results.

    Raises
    ------
    RuntimeError
        If something in it cannot be captured.
    """
    with torch.cuda.device(device):
        # Apart from the stream that others use: what libraries set up for a stream is not done during the capture.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            compute()
    return graph.replay  # a bound method: the graph lives as long as it
