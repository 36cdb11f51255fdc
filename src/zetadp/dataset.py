"""From image stacks and the partition to what training and evaluation take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from zetadp.core.records import Records
from zetadp.device.precision import set_tf32
from zetadp.storage import ImageStack, read_stack
from zetadp.validation import UserError


def load_role(files: Sequence[Path], partition: pd.DataFrame, role: str) -> tuple[ImageStack, pd.DataFrame]:
    """Return the images of all records with one role and, in the same order, their rows of the partition.

    One file is held at a time beside the result.
    """
    rows = partition[partition["role"] == role].reset_index(drop=True)
    place = {record: number for number, record in enumerate(rows["record"])}
    result: np.ndarray | None = None
    seen: set[str] = set()
    for file in files:
        stack = read_stack(file)
        if result is None:
            result = np.empty((len(rows), *stack.values.shape[1:]), dtype=stack.values.dtype)
        pairs = [(place[record], i) for i, record in enumerate(stack.patients) if record in place]
        if pairs:
            targets, sources = np.array(pairs).T
            result[targets] = stack.values[sources]
            seen |= place.keys() & set(stack.patients)
    if result is None or len(seen) != len(rows):
        raise UserError(
            f"Expected images of {len(rows)} records with role {role}, found {len(seen)}. Run the data stages again."
        )
    return ImageStack(result, tuple(rows["record"]), stack.sequences, stack.axes, stack.units, stack.provenance), rows


def to_records(stack: ImageStack, device: torch.device) -> Records:
    """Put an image stack on a device, with the index of the sequence as the class of each image."""
    records, sequences, slices = stack.values.shape[:3]
    images = as_given(stack.values).reshape(records, sequences * slices, 1, *stack.values.shape[3:])
    labels = torch.arange(sequences).repeat_interleave(slices)
    return Records.stacked(images, labels).to(device)


def as_given(values: np.ndarray) -> torch.Tensor:
    """Return prepared images as networks take them: real ones standardised, complex ones as they are."""
    return torch.from_numpy(values if np.iscomplexobj(values) else standardise(values))


def standardise(images: np.ndarray) -> np.ndarray:
    """Give each real image mean zero and standard deviation one.

    The scale of MRI intensities is arbitrary, and no statistic may cross patients.
    """
    centred = images - images.mean(axis=(-2, -1), keepdims=True)
    # A constant image becomes NaN, and its patient contributes zero. A warning in a log would tell that there is one.
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(centred / centred.std(axis=(-2, -1), keepdims=True), dtype=np.float32)


def pick_device(name: str) -> torch.device:
    """Return the device called ``auto`` (CUDA where there is one), ``cpu`` or ``cuda``, on which all is float32."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device: cuda was asked for, but PyTorch finds no CUDA device. Use device: auto or cpu.")
    set_tf32(convolutions=False)  # PyTorch's default is to let convolutions round
    use_cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if use_cuda else "cpu")
