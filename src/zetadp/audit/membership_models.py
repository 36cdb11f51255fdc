"""Models for membership inference, in each of which every candidate takes part with probability one half."""

from __future__ import annotations

import logging
import math
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from zetadp.audit.settings import MembershipSettings
from zetadp.base.epsilon import UNCLIPPED
from zetadp.base.validation import UserError
from zetadp.base.workflow import PROGRESS, only_errors
from zetadp.core.checkpoint import RunFiles
from zetadp.core.evaluation import outputs_of
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.progress import OF_TRAINING
from zetadp.core.records import LabelledItems, items_of
from zetadp.core.settings import OptimiserSettings, Performance, TrainingSettings
from zetadp.core.training import train
from zetadp.federation.partition import node_name
from zetadp.nn.models import NetworkSettings
from zetadp.privacy import accounting
from zetadp.privacy.book import recorded_runs
from zetadp.privacy.calibration import noise_for_epsilon
from zetadp.privacy.exposure import Run

progress = logging.getLogger(PROGRESS)

_IMAGES_AT_ONCE = 1024


@dataclass(frozen=True)
class AttackedRuns:
    """One kind of run that is attacked.

    Attributes
    ----------
    name
        Name of the arm in tables.
    epsilon
        As in `RunName`: a number, ``inf`` or ``unclipped``.
    rounds
        Number of rounds of a run.
    noise_multiplier
        sigma; zero adds no noise.
    """

    name: str
    epsilon: str
    rounds: int
    noise_multiplier: float = 0.0

    @property
    def private(self) -> bool:
        """Whether there is a privacy claim for its models."""
        return self.noise_multiplier > 0


@dataclass(frozen=True)
class Models:
    """Outputs of a set of finished models, and their members.

    Attributes
    ----------
    members
        Whether each patient took part in each run, shape (run, patient).
    confidence
        Mean log odds of the true class over a patient's images, shape (run, patient).
    accuracy
        Share of a patient's images that the model classifies correctly, shape (run, patient).
    exposure
        Releases in the ledgers, which are the same for all models.
    """

    members: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    exposure: Run

    def part(self, runs: slice) -> Models:
        """Return the models of some of the runs."""
        return Models(self.members[runs], self.confidence[runs], self.accuracy[runs], self.exposure)


def arms(settings: MembershipSettings, delta: float) -> list[AttackedRuns]:
    """Return the attacked arms: a private one, the same without noise, and an overfitted one without clipping."""
    sigma = noise_for_epsilon(settings.epsilon, delta, settings.sampling_probability, settings.rounds)
    return [
        AttackedRuns(f"private, epsilon {settings.epsilon:g}", f"{settings.epsilon:g}", settings.rounds, sigma),
        AttackedRuns("clipped, no noise", "inf", settings.rounds),
        AttackedRuns("unclipped, overfitted", UNCLIPPED, settings.rounds * settings.overfitted),
    ]


def train_models(
    arm: AttackedRuns,
    settings: MembershipSettings,
    network: NetworkSettings,
    records: LabelledItems,
    members: np.ndarray,
) -> Models:
    """Train one model for each row of ``members``, shape (run, patient), and return the models' outputs."""
    each, rest = divmod(len(records.inputs), settings.patients)
    alike = not rest and (records.strata.reshape(-1, each) == records.strata[:each]).all()
    if members.shape[1] != settings.patients or not alike:
        found = f"{len(records.inputs)} items and memberships of {members.shape[1]}"
        raise ValueError(f"Expected records and memberships of {settings.patients} patients, found {found}.")
    size = settings.population
    units = items_of([[patient] for patient in range(settings.patients)], each)
    nodes = [units[size * node : size * (node + 1)] for node in range(settings.nodes)]
    expected = settings.sampling_probability * size
    plan = Plan(
        run=RunName(network.family, "federated", arm.epsilon, settings.seed),
        network=network,
        training=TrainingSettings(
            rounds=arm.rounds,
            images_per_patient=each,
            optimiser=OptimiserSettings(learning_rate=settings.learning_rate),
            clip=settings.clip,
            noise=settings.noise,
        ),
        nodes=tuple(
            NodeConstants(node_name(node), size, expected, arm.noise_multiplier) for node in range(settings.nodes)
        ),
        task={"name": "classification", "classes": int(records.targets.max()) + 1},
    )
    performance = Performance(evaluate_every=arm.rounds, checkpoint_seconds=1e9, chunk=_IMAGES_AT_ONCE)
    shown: list[tuple[np.ndarray, np.ndarray]] = []
    exposures: list[Run] = []
    reported = time.monotonic()
    for number, row in enumerate(members):
        # The gradient of a patient that does not take part is not finite, so the patient contributes zero.
        inputs = records.inputs.clone()
        inputs[torch.from_numpy(np.repeat(~row, each)).to(inputs.device)] = math.nan
        # Runs with different numbers draw independently. The seed is equal, so that the starting weights are.
        numbered = replace(plan, cohort=f"attacked-{number}")
        with (
            only_errors("zetadp.core", OF_TRAINING),
            TemporaryDirectory(prefix="zetadp-membership-", dir=_scratch()) as folder,
        ):
            files = RunFiles(Path(folder) / "ledger.jsonl", Path(folder) / "checkpoint.safetensors")
            model = train(numbered, replace(records, inputs=inputs), nodes, files, performance=performance).model
            exposures += recorded_runs(files.ledger)
        shown.append(_shown(model, records, each))
        if time.monotonic() - reported > 10:
            reported = time.monotonic()
            progress.info("%s: %d of %d trainings", arm.name, number + 1, len(members))
    if len({_mechanisms(run) for run in exposures}) != 1:
        raise RuntimeError(f"Expected every training of the arm {arm.name!r} to record the same releases.")
    confidence, accuracy = (np.stack(part) for part in zip(*shown, strict=True))
    if not np.isfinite(confidence).all():
        raise UserError(f"Models of the arm {arm.name!r} diverged. Lower audit.membership.learning_rate or overfitted.")
    return Models(members, confidence, accuracy, exposures[0])


def _scratch() -> Path | None:
    """Return a folder in memory for temporary ledgers: on a disk, syncing them takes most of the time."""
    memory = Path("/dev/shm")  # noqa: S108  (the folder made in it has a name of its own and is the user's alone)
    return memory if os.access(memory, os.W_OK) else None


def _shown(model: nn.Module, records: LabelledItems, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a model's confidence and accuracy on each patient."""
    scores = outputs_of(model, records.inputs).double()
    labels = records.targets[:, None]
    true = scores.gather(1, labels)[:, 0]
    # From the scores, not from the probabilities, which round to one if a model is certain.
    odds = true - scores.scatter(1, labels, -math.inf).logsumexp(dim=1)
    right = (scores.argmax(dim=1) == labels[:, 0]).double()
    return odds.view(-1, each).mean(dim=1).cpu().numpy(), right.view(-1, each).mean(dim=1).cpu().numpy()


def _mechanisms(run: Run) -> tuple[object, ...]:
    """Return everything on which the claims depend, for comparison."""
    nodes = {name: (accounting.ordered(h.mechanisms), h.releases) for name, h in run.nodes.items()}
    return run.declared_rounds, tuple(sorted(nodes.items()))
