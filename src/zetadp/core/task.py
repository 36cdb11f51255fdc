"""Tasks: the losses, the reported metric, and the table of predictions for unseen items.

A plan names its task, and every site finds the same one by this name: a module of `zetadp.tasks`, or an entry point of
the group ``zetadp.tasks`` in an installed package. Nothing is imported from a path in a plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from zetadp.validation import UserError, did_you_mean, positive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import pandas as pd
    import torch
    from torch import Tensor

    from zetadp.core.plan import Plan
    from zetadp.core.records import Records
    from zetadp.nn.backbone import Backbone

GROUP = "zetadp.tasks"
"""Group of entry points in which installed packages name their tasks."""


class Held(NamedTuple):
    """Items that are held somewhere, and whose they are.

    Attributes
    ----------
    records
        The items.
    items
        One row an item, with columns ``patient`` (or the unit), ``node`` if there is a partition, and those that
        distinguish the items of a patient.
    """

    records: Records
    items: pd.DataFrame

    def units(self, of: pd.Series[bool] | None = None) -> list[list[int]]:
        """Return the positions of each patient's items, in the order of the patients' names; of some items alone."""
        places = np.arange(len(self.items)) if of is None else np.flatnonzero(of)
        owners = self.items["patient"].to_numpy()[places]
        order = owners.argsort(kind="stable")
        _, starts = np.unique(owners[order], return_index=True)
        return [own.tolist() for own in np.split(places[order], starts[1:])]


class Words(NamedTuple):
    """Description of a finished model, for its card.

    Attributes
    ----------
    title
        Description of the model.
    about
        What kind of network it is, and what it tells.
    inputs, outputs
        What it takes, and gives.
    usage
        Command that applies it.
    limits
        What it must not be used for.
    """

    title: str
    about: str
    inputs: str
    outputs: str
    usage: str
    limits: tuple[str, ...]


class Task(Protocol):
    """A learning task: all that training, evaluation and tables know about it."""

    @property
    def outputs(self) -> int:
        """Numbers that a network of the library gives for an item; a public constant, never counted from targets."""

    @property
    def metric(self) -> str:
        """Name of the metric that training watches and tables show first."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each item, shape (item,); a unit's contribution is the gradient of their mean.

        Parameters
        ----------
        outputs
            Output of the network, shape (item, ...).
        targets
            What it should have said, shape (item, ...).
        """

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the metric of each item, shape (item,); what is watched is their mean. Parameters as of `losses`."""

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
        """Return columns of the table of predictions, with a value an item. Parameters as of `losses`."""

    def summarise(self, predictions: pd.DataFrame) -> dict[str, Any]:
        """Return the metrics of a run from its table of predictions.

        Parameters
        ----------
        predictions
            One row an item: ``patient``, the columns that say which item of it, and those of `measure`.

        Returns
        -------
        Dictionary for ``metrics.json``: a value under the name of `metric`, its interval under ``<metric>_interval``,
        and whatever else there is to say.
        """


class PipelineTask(Task, Protocol):
    """A task that also finds its data in a workflow."""

    def load(self, files: Sequence[Path], partition: pd.DataFrame, role: str, device: torch.device) -> Held:
        """Return the items of all records with one role, in the order of the partition's rows.

        Parameters
        ----------
        files
            Files that the task's rules made for the domain of the network.
        partition
            One row a record: ``patient``, ``record``, ``role`` and ``node``.
        role
            ``train``, ``validation`` or ``test``.
        device
            Where they are wanted.
        """

    def backbone(self, file: Path, device: torch.device) -> Backbone | None:
        """Return what networks of this task start from, or None for a file that only makes their features."""

    def words(self, network: Mapping[str, Any]) -> Words:
        """Return what the card of a model says of the task, for a network of these settings."""


class SiteTask(PipelineTask, Protocol):
    """A task that hospitals can train for as well: each reads a folder of its own patients."""

    def site(
        self, folder: Path, plan: Plan, cache: Path, *, part: str, patients: int, backbone: Backbone | None
    ) -> Held:
        """Return the items of the patients of one site of a federation, each prepared by itself.

        Parameters
        ----------
        folder
            Folder with the patients of this site only.
        plan
            For whose network they are prepared.
        cache
            Folder where prepared items are kept; they are made again when files or plan change.
        part
            ``train`` for a hospital, ``test`` for patients that the server watches.
        patients
            Declared number of patients.
        backbone
            The public backbone, where the network takes its features.

        Raises
        ------
        UserError
            For everything that is wrong with the folder: later, stopping would be a function of one patient.
        """

    def input_shape(self, domain: str, backbone: Backbone | None) -> tuple[int, ...]:
        """Return the shape of what a network takes of one item, which every site must know without having one."""


@dataclass(frozen=True)
class Classification:
    """Classes, told by softmax of as many scores and learnt by cross-entropy.

    What a class is called in tables, ``called`` says.

    Attributes
    ----------
    classes
        Number of classes; None where a network of one's own says how many scores there are.
    balanced
        Whether every unit has equally many items of every class, which heads in closed form count on.
    """

    classes: int | None = None
    balanced: bool = False

    metric = "accuracy"
    called = "class"

    def __post_init__(self) -> None:
        """Check the number."""
        positive(classes=1 if self.classes is None else self.classes)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each class, in the order of the scores."""
        return tuple(map(str, range(self.outputs)))

    @property
    def outputs(self) -> int:
        """Number of classes."""
        if self.classes is None:
            raise UserError(
                "Expected a plan that says how many classes there are: task={'name': 'classification', 'classes': 4}."
            )
        return self.classes

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return cross-entropies of scores, shape (item, class), for true classes, shape (item,)."""
        from zetadp.privacy.contributions import cross_entropies  # PyTorch takes seconds to import

        return cross_entropies(outputs, targets)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each class, shape (item, class), from scores of that shape."""
        return outputs.softmax(dim=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 for each item whose class was told, else 0."""
        return (self.probabilities(outputs).argmax(dim=1) == targets).float()

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
        """Return the names of the true and the predicted class, and the probability of the predicted one."""
        best, which = self.probabilities(outputs).cpu().max(dim=1)
        called = self.names
        return {
            self.called: [called[int(i)] for i in targets.tolist()],
            "predicted": [called[i] for i in which.tolist()],
            "probability": best.numpy(),
        }

    def summarise(self, predictions: pd.DataFrame) -> dict[str, Any]:
        """Return accuracy with its interval over patients, and errors by class (`zetadp.core.metrics`)."""
        from zetadp.core.metrics import summarise

        return summarise(predictions, self.names, self.called)


def task_of(content: Mapping[str, Any]) -> Task:
    """Return the task that a plan names.

    Parameters
    ----------
    content
        ``name``, and the task's settings. Nothing stands for a classification by a network of one's own.

    Raises
    ------
    UserError
        If the task is unknown or refuses its settings.
    """
    settings = {"name": "classification", **content}
    name = str(settings.pop("name"))
    maker = _maker(name)
    try:
        return maker(**settings)
    except TypeError as error:
        raise UserError(f"The task {name} refuses its settings {settings}: {error}.") from error


def pipeline_task_of(content: Mapping[str, Any]) -> PipelineTask:
    """Return the task that a plan names, or refuse one that cannot find data of its own; else as `task_of`."""
    return cast("PipelineTask", _with("load", "reads data of its own", content))


def site_task_of(content: Mapping[str, Any]) -> SiteTask:
    """Return the task that a plan names, or refuse one that reads no hospital's folder; else as `task_of`."""
    return cast("SiteTask", _with("site", "reads the folder of a hospital", content))


def _with(method: str, does: str, content: Mapping[str, Any]) -> Task:
    found = task_of(content)
    if not hasattr(found, method):
        raise UserError(f"Expected a task that {does}, found {content.get('name', 'none')}.")
    return found


def places_of(wanted: Iterable[str], names: Iterable[str], called: str, file: Path) -> np.ndarray:
    """Return where the items of some records lie in a file, record after record.

    Parameters
    ----------
    wanted
        Names of the records of a partition.
    names
        Record of each item of the file; those of one record may be several.
    called, file
        What records are called, and the file, for errors.

    Raises
    ------
    UserError
        If the file lacks a record.
    """
    import pandas as pd

    records, index = pd.Index(wanted), pd.Index(names)
    if not records.isin(index).all():
        raise UserError(
            f"Expected all {len(records)} {called} of the partition in {file}, found fewer. Run the data stages again."
        )
    return np.asarray(index.get_indexer_for(records))


def _maker(name: str) -> Callable[..., Task]:
    if name == "classification":
        return Classification
    if name.isidentifier() and find_spec(f"zetadp.tasks.{name}"):
        maker: Callable[..., Task] = import_module(f"zetadp.tasks.{name}").task
        return maker
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name in found:
        installed: Callable[..., Task] = found[name].load()
        return installed
    hint = did_you_mean(name, found)
    raise UserError(
        f"Expected the name of a task in the plan, found {name!r}.{hint} Give task={{'name': 'classification', "
        "'classes': 4}, a task of this package, or one that an installed package names in the group of entry points "
        f"{GROUP}."
    )
