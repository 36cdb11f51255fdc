"""Public networks that runs start from, and finished models with everything that is needed to use them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

import torch
from torch import Tensor, nn

from zetadp.account.attempts import read_ledger
from zetadp.account.exposure import runs_of
from zetadp.account.totals import Total
from zetadp.accounting.threat import NOISE_SOURCES, Threat, Unit
from zetadp.base.epsilon import Delta, Target
from zetadp.base.names import checked_name
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import content_hash
from zetadp.base.tensors import load_tensors, save_tensors, tensors_below, tensors_digest
from zetadp.base.validation import Checked, Count, OneOf, UserError, Within, shown
from zetadp.nn.heads import head_scores
from zetadp.nn.models import NetworkSettings, build
from zetadp.nn.settings import FEATURES, STUDY
from zetadp.training.evaluation import outputs_of
from zetadp.training.plan import Plan
from zetadp.training.task import Classification, PipelineTask, PublicNetwork, pipeline_task_of, site_task_of, task_of

if TYPE_CHECKING:
    from zetadp.training.loop import Trained
    from zetadp.training.task import Words

BACKBONE = "backbone."
"""Prefix of the public backbone's tensors in a model's file."""
RELEASED = "released"
"""Name of the mixed rows in a model's file."""


@dataclass(frozen=True)
class TrainedOn(Checked):
    """What a model's file says of its training: public constants, which no ledger proves.

    Attributes
    ----------
    cohort
        Name of the cohort; empty if it has none.
    unit, units
        The unit of the guarantee, and the number of them that was trained on.
    target, delta
        What the run may cost one unit.
    noise
        Source of its noise.
    simulated
        Whether its patients were simulated.
    threat
        Against whom the pair holds.
    attempts, spent
        Number of trainings of the run, and what all of them cost together if there are several; None without a limit.
    """

    cohort: str
    unit: Unit
    units: Count
    target: Target
    delta: Delta
    noise: Annotated[str, OneOf(NOISE_SOURCES)]
    simulated: bool
    threat: Threat = "local"
    attempts: Count = 1
    spent: Annotated[float, Within(ge=0)] | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if not isinstance(self.simulated, bool):
            raise UserError(f"Expected whether its patients were simulated, found {self.simulated!r}.")
        if self.cohort != "":
            checked_name(self.cohort, "cohort")

    def to_json(self) -> dict[str, Any]:
        """Return this as a model's file holds it."""
        return {"epsilon": str(self.target), **{key: value for key, value in vars(self).items() if key != "target"}}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; raise TypeError, ValueError or UserError for something else."""
        remaining = dict(content)
        return cls(target=Target.named(remaining.pop("epsilon", None)), **remaining)


@dataclass(frozen=True)
class FinishedModel:
    """A trained network with everything that is needed to use it.

    Attributes
    ----------
    network
        The network, in evaluation mode and without gradients.
    settings
        Its architecture.
    task, task_name
        Its task, and the task's name.
    inputs
        Length of the last axis of its inputs: pixels a side, or features.
    backbone
        The public network whose features the network takes; None for other networks.
    trained_on
        What its file says of its training; None if it says nothing.
    """

    network: nn.Module
    settings: NetworkSettings
    task: PipelineTask
    task_name: str
    inputs: int
    backbone: PublicNetwork | None = None
    trained_on: TrainedOn | None = None

    @property
    def words(self) -> Words:
        """The texts about this model: those of its task, which may know more of some models (``words_of``)."""
        words_of = getattr(self.task, "words_of", None)
        return self.task.words if words_of is None else cast("Words", words_of(self.settings.domain, self.backbone))

    @property
    def public_head(self) -> tuple[Tensor, Tensor] | None:
        """Weight and bias of the public head that answers alongside the network; None if the network answers alone.

        Only a head on features of a study has one, if it started from it: those features ask for whole records, and so
        does the choice between two heads.
        """
        settings = self.settings
        if self.backbone is None or (settings.domain, settings.start) != (STUDY, "public"):
            return None
        start = self.backbone.start(replace(settings, taper=0))
        return start["affine.weight"], start["affine.bias"]

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs, shape (item, ...), for the items of whole records, without gradients.

        The scores of a trained and a public head are combined by the task (`Classification.combine_scores`). Both heads
        are public or released, so this is post-processing and costs no privacy.
        """
        trained = outputs_of(self.network, inputs)
        if self.public_head is None or not isinstance(self.task, Classification):
            return trained
        return self.task.combine_scores(trained, head_scores(inputs.flatten(1), self.public_head))

    def public_start(self, backbone: PublicNetwork) -> nn.Module:
        """Return the network with the public weights from before its training, in evaluation mode."""
        network = build(self.settings, self.task.outputs, self.inputs, stream(0, Purpose.WEIGHTS))
        start = backbone.start(self.settings)
        network.load_state_dict(start)
        return network.to(next(iter(start.values())).device).eval()


def starting_weights(network: NetworkSettings, backbone: PublicNetwork | None) -> dict[str, Tensor] | None:
    """Return a network's public starting weights, or None if it starts at random.

    Raises
    ------
    UserError
        If it starts from a backbone and none is given, or the backbone has no weights for it.
    """
    if network.start != "public":
        return None
    if backbone is None:
        msg = f"Expected start random for a network of family {network.family}: its task has no public backbone."
        raise UserError(msg)
    return backbone.start(network)


def with_public(plan: Plan, backbone: PublicNetwork | None) -> Plan:
    """Return a plan with the hashes of its inputs from a backbone."""
    if backbone is None:
        return plan
    start = starting_weights(plan.network, backbone)
    digests = {} if start is None else {"start": tensors_digest(start)}
    return plan.with_public(backbone=tensors_digest(backbone.tensors()), **digests)


def with_backbone(
    plan: Plan, files: Sequence[Path], task: PipelineTask, device: torch.device
) -> tuple[Plan, PublicNetwork | None]:
    """Return a plan with the hashes of its public inputs, and the backbone that its network starts from or takes.

    Parameters
    ----------
    plan
        The plan.
    files
        The backbone's file, in a list; empty if the network needs none.
    task, device
        The plan's task, and the device of the backbone.
    """
    public = task.backbone(files[0], device) if files else None
    declared = with_public(plan, public)
    if files and public is None:
        declared = declared.with_public(encoder=content_hash(files[0]))
    return declared, public


def public_network(plan: Plan, file: Path | None, device: torch.device | str = "cpu") -> PublicNetwork | None:
    """Return the public network in a file, or without a file the one that comes with the plan's task."""
    task = site_task_of(plan.task)
    return task.backbone(file or task.packaged(plan.network), torch.device(device))


def backbone_of(plan: Plan, file: Path | None, device: torch.device | str = "cpu") -> PublicNetwork | None:
    """Return the backbone that a plan names, or None if it names none.

    Parameters
    ----------
    plan
        The plan.
    file
        The backbone's file; None takes the packaged one for the network's domain.
    device
        Device of the backbone.

    Raises
    ------
    UserError
        If the file is not a backbone, or not the one in the plan.
    """
    expected = plan.public.get("backbone")
    if expected is None:
        return None
    public = public_network(plan, file, device)
    digest = "none" if public is None else tensors_digest(public.tensors())
    if digest != expected:
        where = file or "the package of the task"
        raise UserError(
            f"Expected the public backbone of the plan ({expected[:12]}), found another in {where} ({digest[:12]})."
        )
    return public


def load_model(path: Path, device: torch.device | str = "cpu") -> FinishedModel:
    """Read a model that training wrote.

    Raises
    ------
    UserError
        If the file is absent, damaged or not a model of this project.
    """
    tensors, content = load_tensors(path, device)
    try:
        settings = NetworkSettings(**content["network"])
        task, inputs, backbone = pipeline_task_of(content["task"]), int(content["inputs"]), None
        if "public" in content:
            restored = cast("Any", task).restored
            backbone = restored(tensors_below(tensors, BACKBONE), content["public"], torch.device(device))
        network = build(settings, task.outputs, inputs, stream(0, Purpose.WEIGHTS)).to(device)
        others = (BACKBONE, RELEASED)
        network.load_state_dict({key: value for key, value in tensors.items() if not key.startswith(others)})
        name = checked_name(content["task"]["name"], "the model's task")
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"Expected {path} to be a trained model of this version, found another file of zetadp: {shown(str(error))}."
        ) from error
    network.eval().requires_grad_(requires_grad=False)
    return FinishedModel(network, settings, task, name, inputs, backbone, _trained_on(path, content))


def _trained_on(path: Path, content: Mapping[str, Any]) -> TrainedOn | None:
    """Return what a model's file says of its training, after a check of every type and range."""
    if "trained_on" not in content:
        return None
    try:
        return TrainedOn.from_json(content["trained_on"])
    except (TypeError, ValueError, UserError) as error:
        raise UserError(
            f"Expected {path} to describe its training: {shown(str(error))} Get the model again."
        ) from error


def save_model(
    path: Path, trained: Trained, plan: Plan, *, inputs: int, backbone: PublicNetwork | None, ledger: Path
) -> None:
    """Write a trained network with everything that is needed to use it.

    Parameters
    ----------
    path
        The file, written whole or not at all.
    trained, plan
        Result of the run, and its plan. Mixed rows that were released are stored as well.
    inputs
        Length of the last axis of the network's inputs.
    backbone
        The public backbone. It is stored if the network takes its features, because a head is useless without it. The
        encoder of a task is not stored.
    ledger
        The run's ledger. If it has several attempts, the model says what all of them cost.
    """
    tensors = {key: value.detach().cpu() for key, value in trained.model.named_parameters()}
    if trained.released is not None:
        tensors[RELEASED] = trained.released
    how, attempts = plan.training, runs_of(ledger, read_ledger(ledger))
    spent = Total.of(attempts, attempts[-1].delta).epsilon if len(attempts) > 1 else math.inf
    about = TrainedOn(
        plan.cohort,
        plan.protects,
        plan.people,
        plan.target,
        plan.delta,
        noise=how.noise.value,
        simulated=plan.simulated,
        threat=plan.threat,
        attempts=max(1, len(attempts)),
        spent=spent if math.isfinite(spent) else None,
    )
    content: dict[str, Any] = {"ledger_head": trained.ledger_head, "trained_on": about.to_json()}
    keeps = plan.network.domain in FEATURES and hasattr(task_of(plan.task), "restored")
    if backbone is not None and keeps:
        tensors |= {f"{BACKBONE}{key}": value.detach().cpu() for key, value in backbone.tensors().items()}
        content |= {"public": backbone.content()}
    content |= model_content(plan.network, plan.task, inputs)
    save_tensors(path, tensors, content)


def model_content(network: NetworkSettings, task: Mapping[str, Any], inputs: int) -> dict[str, Any]:
    """Return the description of a network and its task in a model's file, with ``inputs`` as in `save_model`."""
    return {"network": network.to_json(), "task": dict(task), "inputs": inputs}
