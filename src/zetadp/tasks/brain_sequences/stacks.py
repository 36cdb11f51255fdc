"""Image stacks as the records that training and evaluation take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from zetadp.base.storage import ImageStack, read_stack
from zetadp.base.validation import UserError
from zetadp.core.records import LabelledItems


def load_role(files: Sequence[Path], partition: pd.DataFrame, role: str) -> tuple[ImageStack, pd.DataFrame]:
    """Return the images of all records with one role and, in the same order, their rows of the partition.

    In addition to the result, one file is in memory at a time.

    Raises
    ------
    UserError
        If the files do not hold every record with this role.
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


def to_records(stack: ImageStack, device: torch.device) -> LabelledItems:
    """Return an image stack as records on a device: one image an item, whose class is the index of its sequence."""
    records, sequences, slices = stack.values.shape[:3]
    images = as_given(stack.values).reshape(records, sequences * slices, 1, *stack.values.shape[3:])
    labels = torch.arange(sequences).repeat_interleave(slices)
    return LabelledItems.stacked(images, labels).to(device)


def as_given(values: np.ndarray) -> torch.Tensor:
    """Return prepared images as networks take them: real ones standardised, complex ones unchanged."""
    return torch.from_numpy(values if np.iscomplexobj(values) else standardise(values))


def standardise(images: np.ndarray) -> np.ndarray:
    """Give each real image (..., row, column) mean zero and standard deviation one, as float32.

    The scale of MRI intensities is arbitrary, and no statistic may cross patients. A constant image becomes NaN.
    """
    centred = images - images.mean(axis=(-2, -1), keepdims=True)
    # NaN makes the patient contribute zero. A warning in a log would reveal that there is such a patient.
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(centred / centred.std(axis=(-2, -1), keepdims=True), dtype=np.float32)
