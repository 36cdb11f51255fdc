"""Tasks: the loss, the reported metric, and the table of predictions for unseen items.

A plan names its task, and every site finds the same task by this name: the pipeline's own task, or an entry point in
the group ``zetadp.tasks`` of another package. Nothing is imported from a path in a plan.
"""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from zetadp.base.installed import PAPERS, entry_point, load
from zetadp.base.storage import Items
from zetadp.base.usercode import user_code
from zetadp.base.validation import Checked, Count, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import pandas as pd
    import torch
    from torch import Tensor

    from zetadp.nn.settings import NetworkSettings
    from zetadp.training.plan import Plan
    from zetadp.training.records import LabelledItems

    Take = Callable[[Mapping[str, np.ndarray], np.ndarray], Sequence[np.ndarray]]

GROUP = "zetadp.tasks"
"""Group of entry points in which installed packages name their tasks."""

SHIPPED = EntryPoint("brain_sequences", "zetadp.brain:task", GROUP)
"""The pipeline's own task, which is found without an installation too."""


class Words(NamedTuple):
    """Description of a finished model, for its card.

    Attributes
    ----------
    title
        Title of the card.
    about
        What it predicts.
    inputs, outputs
        Description of its inputs and outputs.
    limits
        Uses that it is not made for.
    usage
        Command that applies it.
    """

    title: str
    about: str
    inputs: str
    outputs: str
    limits: tuple[str, ...]
    usage: str = "from zetadp.training.pretrained import load_model"


class Task(Protocol):
    """A learning task, as training, evaluation and tables see it."""

    @property
    def outputs(self) -> int:
        """Number of outputs of a network for an item; a public constant, never counted from targets."""

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
            Correct outputs, shape (item, ...).
        """

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the metric of each item, shape (item,); training reports their mean. Parameters as in `losses`."""

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
        """Return columns of the table of predictions, with one value per item. Parameters as in `losses`."""

    def summarise(self, predictions: pd.DataFrame) -> dict[str, Any]:
        """Return the metrics of a run from its table of predictions.

        Parameters
        ----------
        predictions
            One row per item: ``patient``, the columns that distinguish a patient's items, and those of `measure`.

        Returns
        -------
        Dictionary for ``metrics.json``: a value under the name of `metric`, its interval under ``<metric>_interval``,
        and any further metrics of the task.
        """


class PublicNetwork(Protocol):
    """A network that a task trained on public data. Networks start from it, or take its features."""

    def start(self, settings: NetworkSettings) -> dict[str, Tensor]:
        """Return the public starting weights of a network; raise `UserError` if there are none for it."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all weights, whose hash becomes part of plans."""

    def content(self) -> dict[str, Any]:
        """Return what a file needs besides the weights, as JSON."""


class PipelineTask(Task, Protocol):
    """A task that also loads its data in a workflow.

    A task of another package also has ``rules``: the path of the file with its Snakemake rules, which make the files
    that `load` reads. The rules of the pipeline's own task are in ``workflow/rules/tasks``.

    The configuration asks a task for these, if it has them: ``simulates`` and ``downloads`` (whether the rules can
    make a cohort of this source), ``cohort_faults`` (a method from the section ``cohort`` to what is wrong in it),
    ``of_patients`` (False if no item is ever of a patient), ``items_of_a_record`` (a declared number),
    ``attackable`` (whether attacks on messages know the items), and ``before_training`` (names of settings that only
    the rules use, which plans leave out). A plan with the taper ``noise`` asks for ``signal`` (that in the first
    component of its features, relative to one clipped contribution). The file of a head holds the public network whose
    features the head takes, if the task has ``restored``: a method from tensors, content and device to the network
    that `PublicNetwork.tensors` and `PublicNetwork.content` describe.
    """

    def load(self, files: Sequence[Path], partition: pd.DataFrame, role: str, device: torch.device) -> LabelledItems:
        """Return the items of all records with one role, in the order of the partition's rows.

        Parameters
        ----------
        files
            Files that the task's rules made for the domain of the network.
        partition
            One row per record: ``patient``, ``record``, ``role`` and ``node``.
        role
            ``train``, ``validation`` or ``test``.
        device
            Device for the items.
        """

    def backbone(self, file: Path, device: torch.device) -> PublicNetwork | None:
        """Return the network that networks of this task start from, or None if the file only computes features."""

    @property
    def words(self) -> Words:
        """The description of the task for a model card, which describes the network by itself."""


class SiteTask(PipelineTask, Protocol):
    """A task that hospitals can also train: each reads a folder with its own patients."""

    def packaged(self, network: NetworkSettings) -> Path:
        """Return the file for `backbone` that comes with the task, for a network that needs one."""

    def site(
        self, folder: Path, plan: Plan, cache: Path, *, part: str, patients: int, backbone: PublicNetwork | None
    ) -> LabelledItems:
        """Return the items of the patients of one site of a federation, each prepared by itself.

        Parameters
        ----------
        folder
            Folder with the patients of this site only.
        plan
            Plan with the network that they are prepared for.
        cache
            Folder for prepared items. They are prepared again when files or plan change.
        part
            ``train`` for a hospital, ``test`` for the server's watched patients.
        patients
            Declared number of patients.
        backbone
            The public backbone, if the network takes its features.

        Raises
        ------
        UserError
            If anything is wrong with the folder. A later stop could depend on one patient's data and reveal it.
        """

    def input_shape(self, domain: str, backbone: PublicNetwork | None) -> tuple[int, ...]:
        """Return the input shape of one item. Every site must know it, even without any item."""


@dataclass(frozen=True)
class Classification(Checked):
    """Classification by softmax of one score a class, learnt by cross-entropy.

    The class attribute ``called`` is the word for a class in tables.

    Attributes
    ----------
    classes
        Number of classes. None is allowed if the user brings the network, which defines the number of scores.
    balanced
        Whether every unit has equally many items of every class. Heads in closed form require it.
    """

    classes: Count | None = None
    balanced: bool = False

    metric = "accuracy"
    called = "class"

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each class, in the order of the scores."""
        return tuple(map(str, range(self.outputs)))

    @property
    def outputs(self) -> int:
        """Number of classes; raise `UserError` if it is not known."""
        if self.classes is None:
            raise UserError(
                "Expected the number of classes in the plan, such as task={'name': 'classification', 'classes': 4}, "
                "found none."
            )
        return self.classes

    def check(self, targets: Tensor) -> None:
        """Raise `UserError` for labels, shape (item,), that are not classes; once a run, before its ledger starts."""
        low, high = (int(targets.min()), int(targets.max())) if len(targets) else (0, 0)
        last = high if self.classes is None else self.classes - 1
        if low < 0 or high > last:
            wrong = low if low < 0 else high
            raise UserError(f"Expected labels from 0 to {last}, one for each class, found {wrong}.", "labels")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return cross-entropies of scores, shape (item, class), for true classes, shape (item,)."""
        from zetadp.mechanism.contributions import cross_entropies  # PyTorch takes seconds to import

        return cross_entropies(outputs, targets)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each class, shape (item, class), from scores of that shape."""
        return outputs.softmax(dim=1)

    def combine_scores(self, trained: Tensor, public: Tensor) -> Tensor:
        """Return the scores of a model with a trained and a public head, for the items of whole records.

        Parameters
        ----------
        trained, public
            Scores of the two heads, shape (item, class). By default those of the trained head are returned.
        """
        return trained

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 for each item whose class was predicted, else 0, as float32 of shape (item,)."""
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
        """Return accuracy with its interval over patients, and errors by class (`zetadp.training.metrics`)."""
        from zetadp.training.metrics import summarise

        return summarise(predictions, self.names, self.called)


def task_of(content: Mapping[str, Any]) -> Task:
    """Return the task that a plan names.

    Parameters
    ----------
    content
        ``name``, and the task's settings. Without a name, the task is a classification.

    Raises
    ------
    UserError
        If the task is unknown or refuses its settings.
    """
    settings = {"name": "classification", **content}
    name = str(settings.pop("name"))
    maker = _maker(name)
    with user_code(f"task: Expected the task {name} with the settings {settings}, found an error: "):
        try:
            return maker(**settings)
        except (TypeError, ValueError) as error:
            raise UserError(f"The task {name} refuses its settings {settings}: {str(error).rstrip('.')}.") from error


def settings_class(name: str) -> type | None:
    """Return the class of a task's settings; None if the task does not exist, or its settings are not a dataclass."""
    try:
        maker = _maker(name)
    except UserError:
        return None
    return maker if isinstance(maker, type) and is_dataclass(maker) else None


def is_packaged(task: Task) -> bool:
    """Return whether a task is one of this repository, whose tests show that its losses keep items apart."""
    package = type(task).__module__.partition(".")[0]
    if package == __name__.partition(".")[0]:
        return True
    points = entry_points(group=GROUP)
    return package in {point.module.partition(".")[0] for point in points if point.dist and point.dist.name == PAPERS}


def module_of(name: str) -> str:
    """Return the module that defines a task, without importing it; raise `UserError` if the task does not exist."""
    return _entry_point(name).module


def pipeline_task_of(content: Mapping[str, Any]) -> PipelineTask:
    """Return the task that a plan names, as `task_of`; raise `UserError` if it cannot load data of its own."""
    return cast("PipelineTask", _with("load", "reads data of its own", content))


def site_task_of(content: Mapping[str, Any]) -> SiteTask:
    """Return the task that a plan names, as `task_of`; raise `UserError` if it cannot read a hospital's folder."""
    return cast("SiteTask", _with("site", "reads the folder of a hospital", content))


def _with(method: str, does: str, content: Mapping[str, Any]) -> Task:
    task = task_of(content)
    if not hasattr(task, method):
        raise UserError(f"Expected a task that {does}, found {content.get('name', 'none')}.")
    return task


def positions_of(records: Iterable[str], names: Iterable[str], called: str, file: Path) -> np.ndarray:
    """Return the positions in a file of the items of some records, record after record, shape (item,).

    Parameters
    ----------
    records
        Names of the records of a partition.
    names
        Record of each item of the file. A record may have several items.
    called, file
        Word for records, and the file, for error messages.

    Raises
    ------
    UserError
        If the file lacks a record.
    """
    import pandas as pd

    selected, available = pd.Index(records), pd.Index(names)
    if not selected.isin(available).all():
        raise UserError(
            f"Expected all {len(selected)} {called} of the partition in {file}, found fewer. Run the data stages again."
        )
    return np.asarray(available.get_indexer_for(selected))


def records_of(
    files: Sequence[Path],
    partition: pd.DataFrame,
    role: str,
    device: torch.device,
    *,
    arrays: Sequence[str] = ("values", "labels"),
    names: Sequence[str] = ("record",),
    take: Take | None = None,
) -> LabelledItems:
    """Return the items of all records with one role, in the order of the partition's rows.

    Parameters
    ----------
    files, partition, role, device
        Same as for `PipelineTask.load`. One file holds all items.
    arrays, names
        Arrays and columns of texts that are read (`zetadp.base.storage.Items`).
    take
        Function from the arrays and the positions of the chosen items to their inputs and targets. By default these are
        the two arrays at these positions.

    Raises
    ------
    UserError
        If the file lacks a record.
    """
    import torch  # takes seconds, and every start of the workflow makes a task

    from zetadp.training.records import LabelledItems

    (file,) = files
    items = Items.read(file, arrays, names)
    rows = partition[partition["role"] == role].reset_index(drop=True)
    positions = positions_of(rows["record"], items.names["record"], "records", items.source)
    table = items.names.loc[positions].merge(rows, on="record", how="left", validate="many_to_one")
    chosen = take(items.arrays, positions) if take else [values[positions] for values in items.arrays.values()]
    inputs, targets = (torch.from_numpy(values) for values in chosen)
    return LabelledItems(inputs, targets, items=table).to(device)


def _entry_point(name: str) -> EntryPoint:
    """Return the entry point of a task; raise `UserError` if there is none, or if packages disagree about it."""
    remedy = (
        "Give task={'name': 'classification', 'classes': 4}, a task of this package, or a task that an installed "
        f"package has as an entry point in {GROUP}."
    )
    return entry_point(GROUP, name, "task", remedy, [SHIPPED])


def _maker(name: str) -> Callable[..., Task]:
    if name == "classification":
        return Classification
    maker: Callable[..., Task] = load(_entry_point(name), "task")
    return maker
