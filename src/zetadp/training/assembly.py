"""The objects that a site builds from a plan: contributions, mechanisms, and the receiver of messages."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from zetadp.account.declaration import Declaration
from zetadp.account.ledger import Ledger
from zetadp.accounting.calibration import kind_in_place_of
from zetadp.accounting.kinds import NoisySum
from zetadp.accounting.masked import LEAST_STEPS
from zetadp.base.randomness import Purpose, stream
from zetadp.base.tensors import use_float32
from zetadp.base.validation import UserError
from zetadp.mechanism.grid import Grid, from_grid
from zetadp.mechanism.release import NodeMechanism
from zetadp.nn.class_means import ClassMeans
from zetadp.nn.mixture import Labelled, Mixture, OfAllClasses, OpenToClasses
from zetadp.nn.models import build
from zetadp.nn.settings import DESCENT, MIXED_ROWS
from zetadp.training.plan import Plan
from zetadp.training.records import LabelledItems
from zetadp.training.round import Phase
from zetadp.training.seeding import seeding_of
from zetadp.training.server import HeadReceiver, Receiver, Server
from zetadp.training.settings import GAUSSIAN
from zetadp.training.task import Classification, Task, task_of


@dataclass(frozen=True)
class Assembly:
    """The parts of a run, the same at every site that holds the plan.

    Attributes
    ----------
    plan, task
        The plan, and the task that it names.
    phase
        Contribution of a unit. Its network has the starting weights.
    grid
        The grid of integer sums, common to all nodes; None if noise is not exact.
    """

    plan: Plan
    task: Task
    phase: Phase
    grid: Grid | None

    @classmethod
    def of(
        cls,
        plan: Plan,
        records: LabelledItems,
        start: Mapping[str, Tensor] | None = None,
        model: nn.Module | None = None,
        task: Task | None = None,
    ) -> Assembly:
        """Assemble what a plan describes, on the device of the records.

        Parameters
        ----------
        plan
            The plan.
        records
            Any items, possibly none. Only the shape of their inputs and their device are used.
        start
            Starting weights, which must be public; None draws them from the run's seed.
        model
            The user's own network, for a plan whose network is of family ``own``.
        task
            The user's own task; None takes the one that the plan names.

        Raises
        ------
        UserError
            If the task is unknown, or does not fit the estimator.
        """
        use_float32()
        task = task_of(plan.task) if task is None else task
        if model is None:
            random = stream(plan.run.seed, Purpose.WEIGHTS)
            model = build(plan.network, task.outputs, records.inputs.shape[-1], random)
        model = model.to(records.inputs.device)
        if start is not None:
            model.load_state_dict(start)
        solved = _statistic(plan, task, records)
        phase = Phase.of(model, plan.together, task.losses, solved)
        if isinstance(solved, Mixture):
            phase = replace(phase, rows=solved.rows, schedule=solved.schedule)
        return cls(plan, task, phase, _grid(plan, phase.dimension))

    @property
    def solved(self) -> ClassMeans | Mixture | None:
        """What units contribute to a head in closed form or to mixed rows; None if they contribute gradients."""
        contribution = self.phase.contribution
        return contribution if isinstance(contribution, ClassMeans | Mixture) else None

    def receiver(self) -> Receiver:
        """Return the receiver. The network's parameters become views of its weights, so a step copies nothing."""
        weights, layout, training = self.phase.weights(), self.phase.layout, self.plan.training
        receiver: Receiver
        if self.solved is None:
            receiver = Server(weights, training.optimiser, training.rounds, layout)
        else:
            receiver = HeadReceiver(weights, layout, self.plan, self.solved)
        for name, view in layout.unflatten(receiver.weights.data).items():
            owner, _, leaf = name.rpartition(".")
            setattr(self.phase.model.get_submodule(owner), leaf, torch.nn.Parameter(view))
        return receiver

    def mechanism(self, name: str, entropy: int, ledger: Ledger) -> NodeMechanism:
        """Return a node's mechanism: exact with noise from the operating system, otherwise seeded with ``entropy``."""
        event, exact = self.plan.event(name, 0), self.plan.protects_people
        law, delta = self.plan.training.mechanism, self.plan.delta
        if law != GAUSSIAN and isinstance(event.kind, NoisySum) and event.kind.private:
            kind = kind_in_place_of(event.kind, law, self.phase.message, self.plan.training.rounds, delta)
            event = replace(event, kind=kind)
        return NodeMechanism(
            event,
            ledger=ledger,
            rows=self.phase.rows,
            grid=self.grid,
            seed=None if exact else entropy,
            node_index=self.plan.position(name),
        )

    def received(self, messages: Tensor, missing: Collection[str] = ()) -> Tensor:
        """Return messages as the receiver takes them: the mean of a sum over all nodes as one row, others as they are.

        Parameters
        ----------
        messages
            Messages of the nodes, shape (node, number); of masked sums, their sum in whole steps, shape (1, number).
        missing
            Names of nodes without a part in a masked sum, which is then divided by the expected units of the others.
        """
        plan = self.plan
        if plan.sums is None:
            return messages
        if self.grid is not None and plan.masked:
            return from_grid(messages, self.grid, plan.expected(missing))
        whole = plan.expected()
        shares = torch.tensor([node.expected / whole for node in plan.nodes], device=messages.device)
        return (shares[:, None] * messages).sum(dim=0, keepdim=True)

    def declaration(self) -> Declaration:
        """Return what an attempt declares, with the dimension of one contribution."""
        grid_bits = None if self.grid is None else self.grid.bits
        return replace(self.plan.declaration(), grid_bits=grid_bits, dimension=self.phase.dimension)


def _statistic(plan: Plan, task: Task, records: LabelledItems) -> ClassMeans | Mixture | None:
    """Return the statistic that units contribute instead of gradients; None for descent."""
    if plan.training.estimator == DESCENT:
        return None
    if not records.present.all():
        raise UserError(
            f"Expected items of every class of every {plan.unit} for estimator {plan.training.estimator}, whose bound "
            f"counts on them, found {plan.unit}s that lack some, such as a pulse sequence. Leave these {plan.unit}s "
            f"out, or choose estimator {DESCENT}."
        )
    if plan.training.mixing is not None:
        return mixture_of(plan, task, records.inputs.shape[-1])
    if not (isinstance(task, Classification) and task.balanced and task.classes):
        raise UserError(
            f"Expected a task in which every unit has equally many items of every class for estimator "
            f"{plan.training.estimator}, found {plan.task.get('name', 'none')}."
        )
    return ClassMeans(
        components=plan.network.components or records.inputs.shape[-1],
        shares=(1 / task.classes,) * task.classes,
        norm=plan.training.feature_norm,
        bound=plan.training.clip,
        clipped=math.isfinite(plan.clip),
    )


def mixture_of(plan: Plan, task: Task, inputs: int) -> Mixture:
    """Return the mixture that a plan describes.

    Parameters
    ----------
    plan, task
        The plan, and the task that it names.
    inputs
        Number of complex components of the features.

    Raises
    ------
    UserError
        If the task has no classes, or if rows are open to some classes only but every unit has all classes.
    """
    mixing = plan.training.mixing
    if mixing is None or not (isinstance(task, Classification) and task.classes):
        raise UserError(
            f"Expected a classification task for estimator {MIXED_ROWS}, found {plan.task.get('name', 'none')}."
        )
    components = plan.network.components or inputs
    norms = (plan.training.feature_norm, plan.training.clip, math.isfinite(plan.clip))
    if task.balanced:
        if mixing.active < 1:
            raise UserError(
                f"Expected training.mixing.active of 1 for a task in which every unit has items of every class, found "
                f"{mixing.active:g}: a unit would be in every row that is open to any of its classes."
            )
        return OfAllClasses(mixing.rows, task.classes, components, *norms)
    if mixing.active < 1:
        # The seed depends on public constants only, so every site computes the same public schedule.
        seed = int(seeding_of(plan)[:16], 16)
        shares = mixing.shares_of(task.classes)
        return OpenToClasses(
            mixing.rows, task.classes, components, *norms, 0.0, mixing.real, seed, mixing.open_rows, shares
        )
    return Labelled(mixing.rows, task.classes, components, *norms, 1 / (mixing.balance**2 + 1), mixing.real)


def _grid(plan: Plan, dimension: int) -> Grid | None:
    if not (plan.protects_people or plan.masked):
        return None
    sigmas = [node.noise_multiplier for node in plan.nodes]
    most_noise, population = max(sigmas), max(node.population for node in plan.nodes)
    if plan.masked:
        # The sum of all nodes has the patients of all, and must have room for the noise of all.
        most_noise, population = most_noise * math.sqrt(len(sigmas)), plan.people
    grid = Grid.choose(
        plan.training.clip,
        noise_multiplier=min(sigmas),
        most_noise=most_noise,
        population=population,
        dimension=dimension,
    )
    if plan.masked and grid.noise_scale(min(sigmas)) < LEAST_STEPS:
        raise UserError(f"Expected shares of noise of at least {LEAST_STEPS} steps of the grid, found less.")
    return grid
