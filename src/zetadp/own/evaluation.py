"""The evaluation of a private run on patients who were held out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import nn

from zetadp.base.usercode import user_code
from zetadp.base.validation import UserError
from zetadp.own.losses import Metric, mean_over_patients, metric_name, values_of
from zetadp.own.records import Records
from zetadp.training.evaluation import outputs_of
from zetadp.training.task import Classification, Task


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a run on patients who were held out.

    Attributes
    ----------
    content
        The metrics by name, with their intervals.
    trained
        Whether the network was trained. If not, the metrics are those of its starting weights.
    """

    content: Mapping[str, Any]
    trained: bool = True

    @property
    def value(self) -> float:
        """The metric that the task reports first."""
        return float(self.content[self.content["metric"]])

    def __str__(self) -> str:
        name, patients = self.content["metric"], self.content["patients"]
        interval = self.content.get(f"{name}_interval") or {}
        ends = interval.get("low"), interval.get("high")  # none for a single patient
        interval_text = "" if None in ends else f" ({ends[0]:.3g} to {ends[1]:.3g})"
        before = "" if self.trained else "Before training: "
        return f"{before}{name} {self.value:.3g}{interval_text} on {patients} held-out patients, who have no guarantee."

    __repr__ = __str__


def measure(
    model: nn.Module, task: Task, training: Records, held_out: Records, metric: Metric | None
) -> dict[str, Any]:
    """Return the metrics of a network on patients that it was not trained on, with intervals over patients.

    Parameters
    ----------
    model, task, training
        The network, on the device of the evaluation; the run's task, and the records that the run is about.
    held_out, metric
        As in `zetadp.own.run.PrivateRun.evaluate`.

    Raises
    ------
    UserError
        As `zetadp.own.run.PrivateRun.evaluate`.
    """
    _check_held_out(held_out, training)
    if isinstance(task, Classification):
        task.check(held_out.targets)
    table = pd.DataFrame({"patient": [f"{held_out.ids[code]}" for code in held_out.owner]})
    table["item"] = range(len(table))
    network = copy.deepcopy(model).eval()  # training may follow, in the mode that the user chose
    items = held_out.items.to(next(network.parameters()).device)
    outputs = outputs_of(network, items.inputs)
    with user_code("task: Expected losses and metrics of held-out items, found an error: "):
        content = task.summarise(table.assign(**task.measure(outputs, items.targets)))
    if metric is None:
        return content
    table["value"] = values_of(metric, outputs, items.targets)
    return {**content, **mean_over_patients(table, "value", metric_name(metric))}


def _check_held_out(held_out: Records, training: Records) -> None:
    """Refuse records that are not like those of the training, or hold one of its patients."""
    if not isinstance(held_out, Records):
        raise UserError(f"evaluate: Expected zetadp.Records of held-out patients, found {type(held_out).__name__}.")
    trained_on = training.keys
    both = [patient for key, patient in held_out.keys.items() if key in trained_on]
    if both:
        raise UserError(f"evaluate: Expected patients who were not trained on, found patient {both[0]!r} in both.")
    for what, trained, evaluated in (
        ("items", training.inputs, held_out.inputs),
        ("labels", training.targets, held_out.targets),
    ):
        if (trained.shape[1:], trained.dtype) != (evaluated.shape[1:], evaluated.dtype):
            raise UserError(
                f"evaluate: Expected {what} as in the training, {trained.dtype} of shape {tuple(trained.shape[1:])}, "
                f"found {evaluated.dtype} of shape {tuple(evaluated.shape[1:])}."
            )
