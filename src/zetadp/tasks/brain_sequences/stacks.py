"""Images of brains as the records that training and evaluation take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from zetadp.base.storage import Items
from zetadp.core.records import LabelledItems
from zetadp.core.task import places_of


def load_role(files: Sequence[Path], partition: pd.DataFrame, role: str) -> tuple[np.ndarray, pd.DataFrame]:
    """Return the images of all records with one role and, in the same order, their rows of the partition.

    Images have shape (record, sequence, slice, row, column). Of every file, only the images of these records are kept.

    Raises
    ------
    UserError
        If the files do not hold every record with this role.
    """
    rows = partition[partition["role"] == role].reset_index(drop=True)
    parts = []
    for file in files:
        shard = Items.read(file, ("values",))
        parts.append(shard.part(shard.names["record"].isin(rows["record"]).to_numpy()))
    names = [name for part in parts for name in part.names["record"]]
    places = places_of(rows["record"], names, "records", files[0].parent if files else Path("no file"))
    return np.concatenate([part.arrays["values"] for part in parts])[places], rows


def to_records(values: np.ndarray, device: torch.device) -> LabelledItems:
    """Return images of shape (record, sequence, slice, row, column) as records on a device.

    An item is one image, whose class is the index of its sequence.
    """
    records, sequences, slices = values.shape[:3]
    images = as_given(values).reshape(records, sequences * slices, 1, *values.shape[3:])
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
