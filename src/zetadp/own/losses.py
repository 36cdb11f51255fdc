"""The user's own loss as a task, and what outputs, labels and a loss must be like to be trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from zetadp.base.randomness import Purpose, stream
from zetadp.base.usercode import user_code
from zetadp.base.validation import UserError
from zetadp.mechanism.contributions import LOSS_FAILED, Losses, complex_hint, compute_item_losses
from zetadp.training.evaluation import ITEMS_AT_ONCE
from zetadp.training.metrics import bootstrapped, mean_interval
from zetadp.training.networks import embedding_hint
from zetadp.training.stateless import ITEMS, check_loss, check_network, copied
from zetadp.training.task import Classification, Task

if TYPE_CHECKING:
    import pandas as pd

    from zetadp.training.records import LabelledItems

logger = logging.getLogger(__name__)

Loss = Callable[[Tensor, Tensor], Tensor]
Metric = Callable[[Tensor, Tensor], Tensor]

SHIFT = 0.5
"""Number that is added to all scores of an item, to see whether a loss has a softmax inside."""


@dataclass(frozen=True)
class OwnLoss:
    """A task of any loss: the loss is its metric too.

    Attributes
    ----------
    loss
        Function of outputs and labels, both of shape (item, ...). It returns real numbers of shape (item, ...); the
        loss of an item is the mean of its numbers.
    """

    loss: Loss

    metric = "mean_loss"

    @property
    def outputs(self) -> int:
        """Not known: the user brings the network."""
        raise UserError("Expected the user's own network for the user's own loss.")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each item, shape (item,)."""
        values = self.loss(outputs, targets)
        if not isinstance(values, Tensor) or values.shape[:1] != targets.shape[:1]:
            return values  # which is refused
        return values.flatten(1).mean(dim=1) if values.ndim > 1 else values

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each item, shape (item,)."""
        return self.losses(outputs, targets)

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
        """Return the column ``loss``."""
        return {"loss": self.losses(outputs, targets).cpu().numpy()}

    def summarise(self, predictions: pd.DataFrame) -> dict[str, Any]:
        """Return the mean loss, and its interval over patients."""
        return mean_over_patients(predictions, "loss", self.metric)


def mean_over_patients(table: pd.DataFrame, column: str, name: str) -> dict[str, Any]:
    """Return the mean of a column over all items as a metric of this name, with its interval over patients.

    Parameters
    ----------
    table
        One row an item: ``patient``, and the column.
    column, name
        The column, and the name of the metric.
    """
    groups = table.groupby("patient")[column]
    sums, counts = groups.sum().to_numpy(), groups.count().to_numpy()
    low, high = mean_interval(sums, counts, stream(0, Purpose.BOOTSTRAP))
    return {
        "metric": name,
        "patients": len(counts),
        name: float(table[column].mean()),
        f"{name}_interval": bootstrapped(low, high, "patients"),
    }


def metric_name(metric: Metric) -> str:
    """Return the name of a metric in results: that of its function or class, if it has no other meaning there."""
    name = str(getattr(metric, "__name__", type(metric).__name__)).strip("<>")
    return f"{name}_value" if name in ("metric", "patients") else name


def values_of(metric: Metric, outputs: Tensor, labels: Tensor) -> np.ndarray:
    """Return what a user's metric makes of each item, shape (item,): the mean of its numbers, if it has several.

    Raises
    ------
    UserError
        If it is not a function, fails, or does not return a finite real number for each item.
    """
    expected = (
        f"metric: Expected a function of outputs and labels that returns a number for each of {len(labels)} items"
    )
    if isinstance(metric, type) or not callable(metric):
        raise UserError(f"{expected}, found {metric!r:.60}.")
    with user_code(f"{expected}; it failed: "):
        values = torch.as_tensor(metric(outputs, labels))
    if values.shape not in (labels.shape[:1], labels.shape, outputs.shape) or values.is_complex():
        kind = str(values.dtype).removeprefix("torch.")
        raise UserError(
            f"{expected}, found {kind} of shape {tuple(values.shape)}. Let it return the values of single items, not "
            "their mean."
        )
    values = values.double().flatten(1).mean(dim=1) if values.ndim > 1 else values.double()
    if not torch.isfinite(values).all():
        raise UserError(f"{expected}, found NaN or infinity for {int((~torch.isfinite(values)).sum())} of them.")
    return values.detach().cpu().numpy()


def task_for(model: nn.Module, loss: Loss | None, task: Task | None, records: LabelledItems) -> Task:
    """Return the task of a training, after a look at what copies of the model and the loss make of some items.

    They are first judged on public random items of the records' shape and type, and on random labels
    (`zetadp.training.stateless`). A few items of the records come last, to refuse losses that are not finite.

    Parameters
    ----------
    model
        The user's network, which is never evaluated.
    loss, task
        What the user gave; neither is classification by cross-entropy.
    records
        Items and labels of all patients.

    Raises
    ------
    UserError
        If the model or the loss remembers items, or if outputs, labels and loss do not fit each other. The message
        names the argument and what to do.
    """
    if loss is not None and task is not None:
        raise UserError("loss: Expected a loss or a task, found both. A task has its own losses.")
    if loss is not None and (isinstance(loss, type) or not callable(loss)):
        raise UserError(
            f"loss: Expected a function of outputs and labels, like torch.nn.MSELoss(reduction='none'), found {loss!r}."
        )
    if task is not None and not hasattr(task, "losses"):
        raise UserError(
            f"task: Expected an object with losses and metrics (zetadp.training.task.Task), found {task!r}."
        )
    inputs, labels = records.inputs, records.targets
    kind, shape = str(inputs.dtype).removeprefix("torch."), (ITEMS, *inputs.shape[1:])
    model_failed = f"model: Expected a network that takes {kind} items of shape {shape}, found an error: "
    with user_code(model_failed, embedding_hint(model)):
        trial_outputs = check_network(model, inputs)
    if task is None and loss is None:
        task = _classification(trial_outputs[0], labels)
    elif task is None:
        task = OwnLoss(loss)  # type: ignore[arg-type]
    with user_code(LOSS_FAILED, complex_hint(trial_outputs[0])):
        scores, classes = check_loss(task.losses, trial_outputs, labels)
        # Only now: whatever remembers items was refused.
        first = torch.arange(min(ITEMS, len(labels)))
        network, task_copy = copied((model, task))
        with user_code(model_failed, embedding_hint(model)):
            outputs = network(inputs[first])
        targets = labels[first].to(outputs.device)
        finite = bool(torch.isfinite(compute_item_losses(task_copy.losses, outputs, targets)).all())
        if isinstance(task_copy, OwnLoss):
            _check_alike(task_copy.loss(outputs, targets), outputs, targets)
    if not finite:
        raise UserError("loss: Expected finite losses, found NaN or infinity for the first items at starting weights.")
    _check_labels(task_copy.losses, scores, labels)
    _check_scores(task_copy.losses, trial_outputs, scores, classes)
    return task


def _check_labels(losses: Losses, outputs: Tensor, labels: Tensor) -> None:
    """Refuse labels that the loss does not take: training would end at that item.

    Outputs are those of public items, and serve all labels in turn.
    """
    scale = "" if labels.is_complex() else f" from {labels.min().item():g} to {labels.max().item():g}"

    def take(indices: Tensor) -> None:
        losses(outputs[indices % len(outputs)], labels[indices.to(labels.device)].to(outputs.device))

    for indices in torch.split(torch.arange(len(labels)), ITEMS_AT_ONCE):
        try:
            take(indices)
        except Exception:  # noqa: BLE001  (a user's loss may raise anything)
            for index in indices.tolist():
                failed = (
                    f"labels: Expected labels that the loss takes, found labels{scale}, of which it refuses that of "
                )
                with user_code(f"{failed}item {index}: ", " Classes are numbered from 0."):
                    take(torch.tensor([index]))


def _check_scores(losses: Losses, batches: Sequence[Tensor], outputs: Tensor, labels: Tensor) -> None:
    """Refuse probabilities for a loss that makes probabilities of scores itself, and warn where it is not certain.

    A loss with a softmax inside does not change if the same number is added to all scores of an item. One with a
    sigmoid inside rises by the score if the label changes from one to zero.

    Parameters
    ----------
    losses
        Loss of each item.
    batches
        Outputs of the network for batches of public items.
    outputs, labels
        Outputs of the first batch, and random labels which the loss takes.
    """
    if outputs.is_complex() or outputs.ndim < 2:
        return
    least, most = torch.cat([batch.flatten() for batch in batches]).aminmax()
    if not 0 <= least < most <= 1:
        return
    try:
        shift = losses(outputs + SHIFT, labels) - losses(outputs, labels)
    except Exception:  # noqa: BLE001  (a loss of probabilities, such as BCELoss, takes no others)
        return
    if outputs.shape[1] > 1 and all(torch.allclose(batch.sum(1), torch.ones(()), atol=1e-4) for batch in batches):
        if torch.allclose(shift, torch.zeros(()), atol=1e-5):
            raise UserError(
                "model: Expected class scores, found probabilities, which sum to one: the loss takes a softmax itself, "
                "so there would be two, and it would learn little. Leave the softmax out of the network, or give "
                "loss=lambda outputs, labels: torch.nn.functional.nll_loss(outputs.log(), labels, reduction='none')."
            )
        if torch.allclose(shift, torch.full((), -SHIFT), atol=1e-5):
            logger.warning(
                "loss: outputs of the network are probabilities, which sum to one, and the loss seems to expect their "
                "logarithms. With NLLLoss, end the network with log_softmax"
            )
    elif torch.allclose(shift, torch.zeros(()), atol=1e-5) or _has_sigmoid(losses, outputs, labels):
        logger.warning(
            "model: all outputs for random items lie between 0 and 1, as behind a sigmoid, and the loss turns scores "
            "into probabilities itself. If the network ends with a sigmoid, leave it out"
        )


def _has_sigmoid(losses: Losses, outputs: Tensor, labels: Tensor) -> bool:
    """Return whether a loss of scores and labels of zero and one has a sigmoid inside (`_check_scores`)."""
    if labels.shape != outputs.shape or not labels.is_floating_point():
        return False
    rise = losses(outputs, torch.zeros_like(labels)) - losses(outputs, torch.ones_like(labels))
    return torch.allclose(rise, outputs.flatten(1).mean(dim=1), atol=1e-5)


def _check_alike(losses: object, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a loss of every output with every label, to which PyTorch spreads two different shapes."""
    shapes = outputs.shape, targets.shape
    if isinstance(losses, Tensor) and losses.ndim > 1 and losses.shape not in shapes and outputs.ndim != targets.ndim:
        raise UserError(
            f"labels: Expected labels of the outputs' shape {tuple(outputs.shape)}, found {tuple(targets.shape)}: the "
            "loss would compare items with others. Use labels[:, None] for one number an item."
        )


def described(task: Task) -> dict[str, Any]:
    """Return the description of a task in a plan."""
    if isinstance(task, Classification) and type(task).__module__ == Classification.__module__:
        return {"name": "classification", "classes": task.classes}
    loss = getattr(task, "loss", task)
    return {"name": "own", "loss": getattr(loss, "__qualname__", type(loss).__qualname__)}


def _classification(outputs: Tensor, labels: Tensor) -> Classification:
    """Return the classification that outputs stand for; refuse outputs and labels that are none."""
    if outputs.is_complex():
        raise UserError(
            "model: Expected real class scores, found complex outputs. Let the network return a real number for each "
            "class, for instance .abs(), or give a loss of complex outputs."
        )
    if outputs.ndim != 2:
        raise UserError(
            f"model: Expected class scores of shape (item, class), found {tuple(outputs.shape)}. For anything but "
            "classification give loss=."
        )
    if labels.is_floating_point() or labels.is_complex():
        raise UserError(
            f"labels: Expected whole numbers, the classes, found {str(labels.dtype).removeprefix('torch.')}. Use "
            "labels.long() for classes, or loss=torch.nn.MSELoss(reduction='none') for regression."
        )
    if labels.ndim != 1:
        how = "squeeze" if labels.shape[1:].numel() == 1 else "argmax"  # argmax of one column is 0, whatever it holds
        raise UserError(
            f"labels: Expected one class for each item, found shape {tuple(labels.shape)}. Use labels.{how}(1)."
        )
    classification = Classification(outputs.shape[1])
    try:
        classification.check(labels)
    except UserError as error:
        raise UserError(
            f"labels: {error} The network has {outputs.shape[1]} outputs, and classes are numbered from 0."
        ) from error
    return classification
