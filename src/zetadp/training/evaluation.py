"""Evaluation of a network on items that it was not trained on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from zetadp.base.tensors import index_device
from zetadp.base.usercode import user_code
from zetadp.training.records import LabelledItems
from zetadp.training.task import Task

ITEMS_AT_ONCE = 80
"""Items of a pass, whose intermediate results stay in a processor's cache. With 512, an item takes 1.4 times as
long."""


@torch.no_grad()
def outputs_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return a network's outputs, shape (item, ...), for inputs of shape (item, ...), without gradients."""
    indices = torch.arange(len(inputs), device=index_device(inputs))
    with user_code("model: Expected a network that takes every item, found an error: "):
        return torch.cat([model(inputs[part]) for part in torch.split(indices, ITEMS_AT_ONCE)])


def without_absent(outputs: Tensor, present: np.ndarray) -> Tensor:
    """Return outputs, shape (item, ...), in which those of absent items (`LabelledItems.present`) are NaN.

    Their inputs are NaN, but an activation may turn a NaN into a number.
    """
    if present.all():
        return outputs
    absent = torch.from_numpy(~present).to(outputs.device)
    return outputs.masked_fill(absent.reshape(-1, *[1] * (outputs.ndim - 1)), float("nan"))


def watched(task: Task, model: nn.Module, records: LabelledItems | None) -> tuple[float, float]:
    """Return the task's metric and the loss, both as means over all present items; both are NaN without items."""
    if records is None or not len(records.inputs):
        return float("nan"), float("nan")
    metric, loss = watched_on_device(task, model, records).tolist()
    return metric, loss


def watched_on_device(task: Task, model: nn.Module, records: LabelledItems) -> Tensor:
    """Return the two means of `watched` in one tensor on the device, so that the processor waits for a GPU once."""
    outputs = without_absent(outputs_of(model, records.inputs), records.present)
    with user_code("task: Expected a metric and losses of watched items, found an error: "):
        per_item = [part(outputs, records.targets) for part in (task.scores, task.losses)]
    if not records.present.all():
        per_item = [values[torch.from_numpy(records.present).to(values.device)] for values in per_item]
    return torch.stack([values.mean() for values in per_item])
