"""Inputs that stay where they are, on a disk or in a torch Dataset, and are looked up when they are needed."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from zetadp.base.arrays import network_numbers, tensor_of
from zetadp.base.tensors import to_device
from zetadp.base.usercode import user_code
from zetadp.base.validation import UserError


@contextmanager
def other_random_numbers() -> Iterator[None]:
    """Put the random numbers of Python, NumPy and PyTorch into another state for a block, and back after it."""
    before, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  (the one that datasets use)
    with torch.random.fork_rng():
        try:
            random.seed(secrets.randbits(32))
            np.random.seed(secrets.randbits(32))  # noqa: NPY002
            torch.manual_seed(secrets.randbits(32))
            yield
        finally:
            random.setstate(before)
            np.random.set_state(of_numpy)  # noqa: NPY002


class LookedUp:
    """Inputs that stay where they are, on a disk or in a torch Dataset, and are looked up when they are needed.

    It has what training needs of a tensor of inputs: shape, type, device, and items by position.

    Parameters
    ----------
    source
        HDF5 dataset or map-style torch Dataset.
    places
        For each item, its position in the source; None takes all.
    device
        Device on which items arrive.

    Attributes
    ----------
    shape, dtype, device
        As of a tensor of all inputs.
    """

    def __init__(
        self,
        source: Any,  # noqa: ANN401  (many kinds)
        indices: np.ndarray | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.source, self.device = source, torch.device(device)
        self.indices = np.arange(len(source)) if indices is None else indices
        first = self._items([int(self.indices[0])])
        self.dtype, self.shape = first.dtype, torch.Size((len(self.indices), *first.shape[1:]))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Tensor | np.ndarray) -> Tensor:
        """Return the inputs at positions of any shape. Positions in the processor's memory make no device wait."""
        positions = np.asarray(key.cpu() if isinstance(key, Tensor) else key)
        unique, back = np.unique(self.indices[positions], return_inverse=True)
        with reading():
            items = to_device(self._items(unique.tolist()), self.device)
        return items[to_device(torch.from_numpy(back.reshape(positions.shape)), self.device)]

    def part(self, positions: np.ndarray) -> Self:
        """Return some of the inputs."""
        return type(self)(self.source, self.indices[positions])

    def to(self, device: torch.device) -> Self:
        """Return the same inputs, which arrive on another device."""
        return type(self)(self.source, self.indices, device)

    def _items(self, indices: list[int]) -> Tensor:
        """Return the items at indices of the source, each once and in ascending order."""
        if isinstance(self.source, Joined):
            return self.source.items(indices)
        if not isinstance(self.source, torch.utils.data.Dataset):
            if not self.source:
                raise UserError(
                    "items: Expected an HDF5 dataset of an open file, found that its file was closed. Keep it open "
                    "until training has ended."
                )
            # HDF5 reads many items at once, several times as fast.
            return network_numbers(tensor_of(self.source[indices], "items"), "items")
        items = (self.source[index] for index in indices)
        parts = [tensor_of(one[0] if isinstance(one, tuple | list) else one, "items") for one in items]
        return network_numbers(torch.stack(parts), "items")


class Joined(torch.utils.data.ConcatDataset[Any]):
    """Inputs of several holders, one after the other, of which each holder's are looked up at once."""

    def items(self, indices: list[int]) -> Tensor:
        """Return the items at indices in ascending order."""
        first = [0, *self.cumulative_sizes]
        parts = np.split(np.asarray(indices), np.searchsorted(indices, first[1:-1]))
        holders = zip(self.datasets, parts, first[:-1], strict=True)
        return torch.cat([inputs[torch.from_numpy(part - before)] for inputs, part, before in holders if len(part)])


@contextmanager
def reading() -> Iterator[None]:
    """Turn any error of items that cannot be used or read into one message."""
    failed = (
        "items: Expected a tensor, array or dataset of numbers, with items of one shape that can be looked up by "
        "position. Reading them failed: "
    )
    with user_code(failed):
        yield
