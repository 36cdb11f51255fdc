"""Dropout whose draws follow from a unit's key, and do not depend on the other units in the batch.

PyTorch draws the masks of a whole batch from one generator, so a mask depends on the unit's position among the drawn
units. Here the bits of a mask are a hash of the key and the index in the unit's tensor (SplitMix64: Steele, Lea and
Flood 2014, doi:10.1145/2660193.2660195).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import dropout as layers
from torch.overrides import TorchFunctionMode

KINDS = {
    functional.dropout: None,
    functional.dropout1d: 2,
    functional.dropout2d: 2,
    functional.dropout3d: 2,
}
"""Functions that are replaced, and the number of axes that have draws of their own; None for all axes."""
LAYERS = (layers.Dropout, layers.Dropout1d, layers.Dropout2d, layers.Dropout3d)
BITS = 53
"""Bits of a uniform number."""


def drops(model: nn.Module) -> bool:
    """Return whether a network has layers of `LAYERS` that draw."""
    return any(isinstance(one, LAYERS) and one.p > 0 and one.training for one in model.modules())


def drawn_by_unit(keys: Tensor | None) -> AbstractContextManager[object]:
    """Return a block in which dropout draws from the units' keys (`UnitDropout`), or an ordinary one without keys."""
    return nullcontext() if keys is None else UnitDropout(keys)


class UnitDropout(TorchFunctionMode):
    """In the block, the dropout of each unit's items draws from the unit's key.

    Parameters
    ----------
    keys
        Whole numbers, int64 of shape (unit,). The items of a batch are blocks of equal length, one per unit.
    """

    def __init__(self, keys: Tensor) -> None:
        super().__init__()
        self.keys, self.calls = keys, 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  (whatever the function returns)
        """Call a function, or its replacement."""
        return self._dropped(KINDS[func], *args, **kwargs or {}) if func in KINDS else func(*args, **kwargs or {})

    def _dropped(
        self,
        axes: int | None,
        input: Tensor,  # noqa: A002  (PyTorch's name)
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return input
        self.calls += 1
        shape = input.shape if axes is None else (*input.shape[:axes], *[1] * (input.ndim - axes))
        indices = torch.arange(torch.Size(shape).numel() // len(self.keys), device=input.device)
        bits = _mixed(_mixed(self.keys + self.calls)[:, None] + indices) & ((1 << BITS) - 1)
        mask = (bits >= p * 2**BITS).view(shape) * (1 / (1 - p) if p < 1 else 0.0)
        return input.mul_(mask) if inplace else input * mask


def _mixed(value: Tensor) -> Tensor:
    """Return SplitMix64's output for states, as int64."""
    value = value * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685), (31, 1)):
        # PyTorch shifts the sign in from the left, which the mask takes out.
        value = (value ^ ((value >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return value
