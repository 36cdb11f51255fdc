"""Work for several nodes at a time, in the threads that PyTorch may take."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Result = TypeVar("Result")


def side_by_side(function: Callable[..., Result], *sequences: Iterable[object]) -> list[Result]:
    """Return what a function gives for the first of each sequence, for the second, and so on: `map` in threads.

    Worth it where the function lets go of Python's lock. It must not call PyTorch on a CPU: each of the threads would
    start threads of its own.

    Parameters
    ----------
    function
        Called at once as often as PyTorch has threads (`torch.get_num_threads`).
    *sequences
        Its arguments, all of one length.
    """
    calls = list(zip(*sequences, strict=True))
    threads = min(len(calls), torch.get_num_threads())
    if threads <= 1:
        return [function(*arguments) for arguments in calls]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda arguments: function(*arguments), calls))
