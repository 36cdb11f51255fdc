"""Work for several nodes at a time, in the threads that PyTorch may take."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return what a function gives for each item, in their order.

    Worth it where the function lets go of Python's lock. It must not call PyTorch on a CPU: each of the threads would
    start threads of its own.

    Parameters
    ----------
    function
        Called at once for as many items as PyTorch has threads (`torch.get_num_threads`).
    items
        Its arguments.
    """
    threads = min(len(items), torch.get_num_threads())
    if threads <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))
