"""Flat vectors as bytes: exact, or rounded after the noise; and back, with every check that a receiver needs.

Updates are real vectors in which every real and every imaginary part has its place, so no aggregation rule can lose a
phase, and a message is four bytes a part and nothing more.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BLOCK = 256
"""Components that share a scale in ``int8``."""
LARGEST_HALF = float(np.finfo(np.float16).max)


class WrongUpdateError(ValueError):
    """Bytes that are no vector of the form that was agreed on."""


def encode(vector: Tensor, form: str = "float32") -> bytes:
    """Return a flat real vector as bytes.

    Rounding is a function of the vector alone: the same update always makes the same bytes, and since it comes after
    the noise it is post-processing.

    Parameters
    ----------
    vector
        Finite float32 tensor of shape (dimension,).
    form
        ``float32``: little-endian, as it is. ``float16``: rounded to nearest, saturating. ``int8``: for each block of
        256 components a float32 scale, then a byte a component, the block's largest component being 127 steps.
    """
    values = vector.detach().cpu().numpy().astype("<f4", copy=False)
    if form == "float32":
        return bytes(values.tobytes())
    if form == "float16":
        return bytes(np.clip(values, -LARGEST_HALF, LARGEST_HALF).astype("<f2").tobytes())
    blocks = _blocks(values)
    scales = (np.abs(blocks).max(axis=1) / np.float32(127)).astype("<f4")
    steps = np.rint(blocks / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
    return bytes(scales.tobytes() + steps.reshape(-1)[: len(values)].tobytes())


def decode(content: bytes, dimension: int, form: str = "float32") -> Tensor:
    """Return the float32 tensor of shape (dimension,) that `encode` was given, to the rounding of the form.

    Raises
    ------
    WrongUpdateError
        If the length is another, as with an update of real weights only or with one that goes on too long, or if
        anything in it is NaN or infinite.
    """
    expected = size_of(dimension, form)
    if len(content) != expected:
        msg = f"expected {expected} bytes ({dimension} real numbers as {form}), found {len(content)}"
        raise WrongUpdateError(msg)
    if form == "int8":
        count = -(-dimension // BLOCK)
        scales = np.frombuffer(content, "<f4", count)
        steps = _blocks(np.frombuffer(content, np.int8, offset=4 * count).astype(np.float32))
        with np.errstate(invalid="ignore"):  # infinite scales are found below
            values = (steps * scales[:, None]).reshape(-1)[:dimension]
    else:
        values = np.frombuffer(content, "<f4" if form == "float32" else "<f2").astype(np.float32)
    if not np.isfinite(values).all():
        msg = f"expected finite numbers, found {int((~np.isfinite(values)).sum())} that are not"
        raise WrongUpdateError(msg)
    return torch.from_numpy(values.copy())


def size_of(dimension: int, form: str = "float32") -> int:
    """Return the bytes that a vector takes."""
    if form == "int8":
        return dimension + 4 * -(-dimension // BLOCK)
    return dimension * (4 if form == "float32" else 2)


def _blocks(values: np.ndarray) -> np.ndarray:
    """Return the values as rows of a block each, filled up with zeros."""
    rows = -(-len(values) // BLOCK)
    return np.concatenate([values, np.zeros(rows * BLOCK - len(values), np.float32)]).reshape(rows, BLOCK)
