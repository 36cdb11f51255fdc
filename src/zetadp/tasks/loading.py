"""Items of one role in a partition, as records that networks take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zetadp.base.storage import Items
from zetadp.core.task import places_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import pandas as pd
    import torch

    from zetadp.core.records import LabelledItems

    Take = Callable[[Mapping[str, np.ndarray], np.ndarray], tuple[np.ndarray, np.ndarray]]


def records_of(items: Items, partition: pd.DataFrame, role: str, device: torch.device, take: Take) -> LabelledItems:
    """Return the items of all records with one role, in the order of the partition's rows.

    Parameters
    ----------
    items
        All items of the file.
    partition, role, device
        Same as for `zetadp.core.task.PipelineTask.load`.
    take
        Function from the arrays of `items` and the positions of the chosen items to their inputs and targets.

    Raises
    ------
    UserError
        If the file lacks a record.
    """
    import torch  # takes seconds, and every start of the workflow makes a task

    from zetadp.core.records import LabelledItems

    rows = partition[partition["role"] == role].reset_index(drop=True)
    places = places_of(rows["record"], items.names["record"], "records", items.source)
    table = items.names.loc[places].merge(rows, on="record", how="left", validate="many_to_one")
    inputs, targets = (torch.from_numpy(values) for values in take(items.arrays, places))
    return LabelledItems(inputs, targets, items=table).to(device)


def values_and_labels(arrays: Mapping[str, np.ndarray], places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values and labels of some items."""
    return arrays["values"][places], arrays["labels"][places]
