"""Evaluation of a network on items that it was not trained on."""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor, nn

from zetadp.core.records import Records
from zetadp.core.task import Task

ITEMS_AT_ONCE = 80
"""Items of a pass. What convolutions make of so many stays in the cache of a processor: 512 take 1.4 times as long."""


@torch.no_grad()
def outputs_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return what a network gives for inputs of shape (item, ...)."""
    return torch.cat([model(part) for part in torch.split(inputs, ITEMS_AT_ONCE)])


def watched(task: Task, model: nn.Module, records: Records) -> tuple[float, float]:
    """Return the task's metric and the loss, both as means over all items, or NaN if there are no items."""
    if not len(records.inputs):
        return float("nan"), float("nan")
    metric, loss = watched_on_device(task, model, records).tolist()
    return metric, loss


def watched_on_device(task: Task, model: nn.Module, records: Records) -> Tensor:
    """Return both in one tensor on the device, so that a GPU is waited for once."""
    outputs = outputs_of(model, records.inputs)
    return torch.stack([part(outputs, records.targets).mean() for part in (task.scores, task.losses)])


def predict(task: Task, model: nn.Module, records: Records, items: pd.DataFrame) -> pd.DataFrame:
    """Return the table of predictions, one row an item.

    Parameters
    ----------
    task
        The task.
    model
        The network.
    records
        Items that it was not trained on.
    items
        One row an item, with column ``patient`` and those that distinguish the items of a patient.

    Returns
    -------
    ``items`` with the columns of `Task.measure`.
    """
    found = task.measure(outputs_of(model, records.inputs), records.targets)
    return items.assign(**found)
