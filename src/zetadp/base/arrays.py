"""Arrays of numbers of any library as tensors. All arrays that a user passes go through one function.

It converts properties without a meaning, such as the order of bytes. It refuses arrays that would lose their meaning,
such as masked ones.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zetadp.base.usercode import user_code
from zetadp.base.validation import UserError

WIDEST = {"f": np.float64, "c": np.complex128}
"""The widest types that PyTorch has, by NumPy's kind of number."""
NARROWER = {
    torch.complex128: torch.complex64,
    torch.complex32: torch.complex64,
    torch.float64: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
"""Types of numbers that networks do not take, with the types to which they are converted."""


def tensor_of(values: Any, name: str, *, hint: str = "") -> Tensor:  # noqa: ANN401  (a user may give anything)
    """Return numbers of any library as an ordinary tensor: dense, without a gradient, in the machine's order of bytes.

    Memory is shared with ``values`` where that is possible.

    Parameters
    ----------
    values
        A tensor, an array, anything that NumPy converts to an array, or a sequence of these.
    name
        The user's argument, for the message.
    hint
        Advice for values that are not numbers, for the message.

    Raises
    ------
    UserError
        If values are masked, sparse, without values, or not numbers.
    """
    failed = f"{name}: Expected a tensor or an array of numbers, found {type(values).__name__}: "
    with user_code(failed, hint):
        if isinstance(values, list | tuple) and values and all(isinstance(part, Tensor) for part in values):
            return torch.stack([tensor_of(part, name) for part in values])
        if isinstance(values, Tensor):
            return _plain(values, name)
        return _from_array(values, name)


def network_numbers(items: Tensor, name: str) -> Tensor:
    """Return numbers as float32 or complex64, which networks take.

    Raises
    ------
    UserError
        If whole numbers are too large for float32, which would make different ones equal.
    """
    if items.dtype in (torch.complex64, torch.float32):
        return items
    if items.dtype in NARROWER:
        return items.to(NARROWER[items.dtype])
    numbers = items.to(torch.float32)
    if not items.is_floating_point() and (numbers.double() != items.double()).any():
        raise UserError(
            f"{name}: Expected whole numbers that float32 holds exactly, found some beyond "
            f"{exact_up_to(torch.float32):.0f}. Scale or number them."
        )
    return numbers


def exact_up_to(number_type: Any) -> float:  # noqa: ANN401  (a type of NumPy, PyTorch or pandas)
    """Return the number up to which a type of real numbers holds all whole numbers; infinity for other types."""
    if isinstance(number_type, torch.dtype):
        return 2 / torch.finfo(number_type).eps if number_type.is_floating_point else float("inf")
    number_type = getattr(number_type, "numpy_dtype", number_type)
    floating = isinstance(number_type, np.dtype) and number_type.kind == "f"
    return 2 / float(np.finfo(number_type).eps) if floating else float("inf")


def has_mask(values: Any) -> bool:  # noqa: ANN401  (a user may give anything)
    """Return whether values, or parts of a sequence of them, are masked arrays with something masked."""
    parts = values if isinstance(values, list | tuple) else [values]
    return any(np.ma.isMaskedArray(part) and bool(np.ma.is_masked(part)) for part in parts)


def _plain(values: Tensor, name: str) -> Tensor:
    """Return a tensor as an ordinary one."""
    if values.layout != torch.strided or values.is_meta or values.is_nested:
        if values.is_meta:
            reason, remedy = "without values", "Load it"
        elif values.is_nested:
            reason, remedy = "nested", "Call .to_padded_tensor(0)"
        else:
            reason, remedy = "sparse", "Call .to_dense()"
        raise UserError(f"{name}: Expected a dense tensor with values, found one that is {reason}. {remedy}.")
    tensor = values.detach().resolve_conj().resolve_neg()
    return (tensor.dequantize() if tensor.is_quantized else tensor).as_subclass(Tensor)


def _from_array(values: Any, name: str) -> Tensor:  # noqa: ANN401  (a user may give anything)
    """Return anything that NumPy converts to an array as a tensor."""
    if has_mask(values):
        raise UserError(
            f"{name}: Expected numbers everywhere, found a masked array, whose masked values would count as numbers. "
            "Fill them with .filled(value), or leave those items out."
        )
    array = np.asarray(values)
    dtype = array.dtype
    if dtype.kind in WIDEST and dtype.itemsize > np.dtype(WIDEST[dtype.kind]).itemsize:
        array = array.astype(WIDEST[dtype.kind])
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    if any(step < 0 for step in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arrays that cannot be written to: nothing here writes to them
        return torch.from_numpy(array)
