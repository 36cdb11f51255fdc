r"""The audit of training runs, which tries to detect a canary in all messages of its node.

`zetadp.training.loop.train` makes the runs, of one round or of many. The canary is a patient whose gradient is known
and reaches the clipping norm. The network is a head: one complex affine map of features, whose scores are the real
parts of its outputs. The canary has the features x in one class and -x in the other, so its gradient is a multiple of
the conjugate of x. Imaginary x give an imaginary gradient.

Neighbours: the canary's contribution is replaced by zero. It still counts at the node, so the number of patients,
the sampling probability and the divisor do not change. A record that contributes zero has features that are not finite.

The attacker sees every message of every round, computes the weights with a copy of the server, and computes the
canary's gradient at all these weights. A node draws each patient with probability p. The projection of its message on
the canary's gradient, in units of the clipping norm, has the law :math:`N(0, \sigma^2)` without the canary and
:math:`(1-p) N(0, \sigma^2) + p N(1, \sigma^2)` with it. The attacker adds up the evidence of each projection
(`Audited.evidence`) over T rounds. The decision is "took part" if the sum exceeds half of the evidence of pT draws
without noise, or of one draw if fewer are expected.

By Neyman and Pearson the likelihood ratio is the best test of a mechanism without faults. The evidence is its odd part.
It is as good for noise of many clipping norms, and nearly as good for little noise. Without the canary its mean is zero
for every noise level, so the threshold is also right if there is less noise than the attacker believes.

Two differences find faults that single projections cannot show. The difference of ``nodes`` subtracts the mean
projection of other nodes, which cancels noise that nodes share. The difference of ``rounds`` is that of the first and
the last projection: it cancels noise that rounds share, and has the size one if the canary was drawn in one of the two.

Trials run in parallel, at different nodes of one run. They are still independent: the noise is isotropic, and the
canary's gradient always reaches the clipping norm, which the attacker checks. A score therefore does not depend on the
weights, and the trials share nothing else.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from zetadp.account.attempts import read_ledger
from zetadp.accounting import composition
from zetadp.accounting.composition import Exposure
from zetadp.accounting.kinds import NoisySum, sampled_loss
from zetadp.accounting.threat import NOISE_SOURCES, NoiseSource
from zetadp.audit.detection import FALSE_ALARM, Claim, Errors, count_errors
from zetadp.base.epsilon import Target
from zetadp.base.logs import PROGRESS, only_errors
from zetadp.base.randomness import Purpose, stream
from zetadp.base.runfolder import RunFolder, RunName
from zetadp.base.tensors import Layout
from zetadp.base.validation import Checked, Count, OneOf, Positive, Share
from zetadp.nn.models import build
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import Trained, train
from zetadp.training.plan import HEAD, NodeConstants, Plan
from zetadp.training.progress import OF_TRAINING
from zetadp.training.records import LabelledItems, items_of
from zetadp.training.server import Server
from zetadp.training.settings import OptimiserSettings, Performance, TrainingSettings

logger, progress = logging.getLogger(__name__), logging.getLogger(PROGRESS)

CLASSES = 2
FEATURES = 16
"""Complex features of the canary. The head has twice as many complex weights, and two complex biases."""
EXCESS = 100.0
"""The canary's gradient is longer than the clipping norm by this factor, so missing clipping is visible."""
DRIFT = 1e-3
"""Approximate drift of each weight over all rounds, divided by the clipping norm. It is so small that the canary's
scores stay nearly equal, and its gradient long."""
SIDE_BY_SIDE = 192
"""Most nodes in one run."""
COMPARED = 3
"""Nodes of a trial that compares nodes."""

_REACH = 9.0
"""Standard deviations of the noise that are considered on each side."""
_CELLS = 40_001
_CELLS_OF_SPREAD = 4096
"""Cells of the law of a projection, and cells per standard deviation of the sum of all rounds."""


@dataclass(frozen=True)
class Audited(Checked):
    """The mechanism under audit, which is the same at each node, and the attacker's statistic.

    Attributes
    ----------
    name
        Name for readers.
    noise_multiplier, clip
        As in `NodeMechanism`: sigma and B.
    probability
        Probability that a patient is drawn. The divisor is this probability times N.
    population
        Number N of patients at a node. All but the canary contribute zero.
    rounds
        Number of rounds of a run.
    noise
        ``seeded`` or ``os``.
    imaginary
        Whether the canary's gradient has no real parts.
    difference
        Differences of projections that the attacker computes: of ``nodes``, of ``rounds``, or ``none``.
    trials
        Number of independent trials with the canary, and as many without.
    seed
        Seed of the trials.
    delta
        The delta of the claimed epsilon.
    confidence
        Probability with which the measured epsilon is a lower bound.
    finds, power
        The fault that the attack looks for, and the chance to find it; None if the fault leaves no noise.
    """

    name: str
    noise_multiplier: Positive = 1.0
    clip: Positive = 1.0
    probability: Share = 1.0
    population: Count = 1
    rounds: Count = 1
    noise: Annotated[str, OneOf(NOISE_SOURCES)] = NoiseSource.SEEDED.value
    imaginary: bool = False
    difference: Annotated[str, OneOf(("none", "nodes", "rounds"))] = "none"
    trials: Count = 300
    seed: int = 0
    delta: float = 1e-3
    confidence: float = 1 - FALSE_ALARM
    finds: str = "noise too small by √2"
    power: float | None = None

    def plan(self, nodes: int, part: int = 0) -> Plan:
        """Return the plan of a run with this number of nodes; ``part`` distinguishes the runs of one audit."""
        expected = self.probability * self.population
        return Plan(
            run=RunName("audit", "federated", Target(math.inf), (self.seed * 1_000_003 + part) % 2**63),
            network=HEAD,
            training=TrainingSettings(
                rounds=self.rounds,
                images_per_patient=CLASSES,
                optimiser=OptimiserSettings(learning_rate=DRIFT / (self.clip * self.rounds)),
                clip=self.clip,
                noise=NoiseSource(self.noise),
            ),
            nodes=tuple(
                NodeConstants(f"node-{number + 1:04d}", self.population, expected, self.noise_multiplier)
                for number in range(nodes)
            ),
            delta=self.delta,
            task={"name": "classification", "classes": CLASSES},
        )

    def canary(self) -> Tensor:
        """Return the canary's features in each class, shape (class, 1, 1, feature)."""
        parts = np.random.default_rng(0).standard_normal((2, FEATURES))
        x = (0.0 if self.imaginary else parts[0]) + 1j * parts[1]
        # At weights zero the gradient's norm is that of x divided by the square root of two.
        x *= EXCESS * self.clip * math.sqrt(2) / np.linalg.norm(x)
        return torch.from_numpy(np.stack([x, -x])).to(torch.complex64)[:, None, None]

    @property
    def mechanisms(self) -> Exposure:
        """The releases of one run, in the accountant's form."""
        return {NoisySum(self.probability, self.noise_multiplier): self.rounds}

    def evidence(self, projections: np.ndarray) -> np.ndarray:
        """Return the evidence for the canary: the odd part of the log-likelihood ratio, in units of a projection.

        For noise of many clipping norms, and if all patients are drawn, it equals the projection.

        Parameters
        ----------
        projections
            In units of the clipping norm, of any shape.
        """
        variance = self.noise_multiplier**2

        def ratio(x: np.ndarray) -> np.ndarray:
            return sampled_loss((x - 0.5) / variance, self.probability)

        return np.asarray((ratio(projections) - ratio(-projections)) * variance / (2 * self.probability))

    @property
    def threshold(self) -> float:
        """Score above which the attacker decides that the canary took part."""
        if self.difference == "rounds":
            return 0.5
        return max(1, self.probability * self.rounds) / 2 * float(self.evidence(np.ones(())))

    def scores(self, projections: np.ndarray) -> np.ndarray:
        """Return one score per trial for projections of shape (round, trial, node), in units of the clipping norm."""
        target = projections[..., 0]
        if self.difference == "rounds":
            return np.asarray(np.abs(target[0] - target[-1]))
        if self.difference == "nodes":
            target = target - projections[..., 1:].mean(axis=-1)
        return np.asarray(self.evidence(target).sum(axis=0))

    def error_rates(self, true_noise: float) -> tuple[float, float]:
        """Return the error rates (alpha, beta) of the attack without differences, accurate to about 0.001.

        Parameters
        ----------
        true_noise
            The noise multiplier of the mechanism that runs. The attacker assumes the claimed one.
        """
        edges = np.linspace(-_REACH * true_noise, 1 + _REACH * true_noise, _CELLS)
        middles = (edges[1:] + edges[:-1]) / 2
        without = np.diff(ndtr(edges / true_noise))
        with_canary = (1 - self.probability) * without + self.probability * np.diff(ndtr((edges - 1) / true_noise))
        evidence = self.evidence(middles)
        mean = with_canary @ evidence
        fineness = _CELLS_OF_SPREAD / math.sqrt(self.rounds * (with_canary @ evidence**2 - mean**2))
        # The sum of all rounds lies on a circle of cells that is long enough to make wrap-around negligible.
        cells = np.rint(evidence * fineness).astype(np.int64)
        reach = np.abs(cells).max() + self.rounds * mean * fineness
        size = 1 << math.ceil(math.log2(2 * reach + 40 * _CELLS_OF_SPREAD))
        above = np.fft.fftfreq(size, 1 / size) > self.threshold * fineness

        def share_above(weights: np.ndarray) -> float:
            law = np.bincount(cells % size, weights / weights.sum(), size)
            return float(np.fft.irfft(np.fft.rfft(law) ** self.rounds, size)[above].sum())

        return share_above(without), 1 - share_above(with_canary)


@dataclass(frozen=True)
class AuditResult:
    """A claimed epsilon, and the result of an attack on it.

    Attributes
    ----------
    audited
        The mechanism and the attack.
    claim
        Claim from the ledger of a node.
    errors
        The errors at the threshold. Their confidence is the probability with which `measured` is a lower bound.
    """

    audited: Audited
    claim: Claim
    errors: Errors

    @cached_property
    def measured(self) -> float:
        """Lower confidence bound on the epsilon of the mechanism that ran."""
        return self.claim.epsilon_of(self.errors.alpha.upper, self.errors.beta.upper)

    @cached_property
    def estimate(self) -> float:
        """The value without a confidence margin. A better attack could find more."""
        return self.claim.epsilon_of(self.errors.alpha.share, self.errors.beta.share)

    @property
    def passed(self) -> bool:
        """Whether the attack did not refute the claim."""
        return self.measured <= self.claim.epsilon


def attacked_run(
    plan: Plan,
    records: LabelledItems,
    folder: Path,
    *,
    start: Mapping[str, Tensor] | None = None,
    after_round: Callable[[int, Tensor], None] | None = None,
) -> Trained:
    """Train with the shipped code on records that are one patient each, and write the ledger into a folder.

    Parameters
    ----------
    plan
        The plan, whose nodes hold the patients in turn.
    records
        Items ordered by patient, with the same number per patient.
    folder
        Folder for ``ledger.jsonl`` and the checkpoint.
    start, after_round
        As in `train`.
    """
    ends = list(accumulate((node.population for node in plan.nodes), initial=0))
    units = items_of([[patient] for patient in range(ends[-1])], plan.training.images_per_patient)
    files = RunFiles(RunFolder(folder).ledger, RunFolder(folder).checkpoint)
    performance = Performance(evaluate_every=plan.training.rounds, checkpoint_seconds=1e9)
    units_of_nodes = [units[first:last] for first, last in pairwise(ends)]
    with only_errors("zetadp.training", OF_TRAINING):
        holders = LocalHolders(plan, records, units_of_nodes, start=start, performance=performance)
        return train(holders, files, after_round=after_round)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder, in memory if possible: on a disk, syncing ledgers takes most of the time."""
    memory = Path("/dev/shm")  # noqa: S108  (the folder made in it has a unique name and belongs to the user only)
    with TemporaryDirectory(prefix="zetadp-audit-", dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def audit(audited: Audited) -> AuditResult:
    """Audit the training code. The claim is epsilon of the releases in the ledger of a node."""
    n_nodes, canary = COMPARED if audited.difference == "nodes" else 1, audited.canary()
    scores: dict[bool, list[float]] = {False: [], True: []}
    mechanisms: Exposure = {}
    number = 0
    while len(scores[True]) < audited.trials:
        n_trials = min(2 * (audited.trials - len(scores[True])), SIDE_BY_SIDE // (2 * n_nodes) * 2)
        plan = audited.plan(n_nodes * n_trials, number)
        attacker = Attacker(plan, canary)
        # Trials alternate: with the canary, without it. All other patients contribute zero.
        items = torch.full((n_trials, n_nodes, audited.population, *canary.shape), torch.nan, dtype=canary.dtype)
        items[::2, 0, 0] = canary
        records = LabelledItems.stacked(items.flatten(0, 2), torch.arange(CLASSES))
        with scratch_folder() as folder:
            attacked_run(plan, records, folder, start=attacker.start, after_round=attacker.observe)
            if number == 0:
                events = read_ledger(RunFolder(folder).ledger)[-1].releases()
                mechanisms = composition.compose(event for event in events if event.node == plan.nodes[0].name)
        new_scores = audited.scores(np.stack(attacker.projections).reshape(-1, n_trials, n_nodes))
        scores[True] += new_scores[0::2].tolist()
        scores[False] += new_scores[1::2].tolist()
        number += 1
        progress.info("%s: %d of %d trials a side", audited.name, len(scores[True]), audited.trials)
    errors = count_errors(scores[False], scores[True], audited.threshold, confidence=audited.confidence)
    result = AuditResult(audited, Claim(mechanisms, audited.delta), errors)
    claimed = result.claim.epsilon
    logger.info("%s: claimed epsilon %.3f, measured at least %.3f", audited.name, claimed, result.measured)
    return result


class Attacker:
    """An attacker who sees all messages, computes the weights and projects the messages on the canary's gradient.

    Attributes
    ----------
    start
        The starting weights, which are zero: the scores of the canary's classes are then equal.
    projections
        For each round, the projection of each node's message, shape (node,), in units of the clipping norm.
    """

    def __init__(self, plan: Plan, canary: Tensor) -> None:
        self.model = build(plan.network, CLASSES, FEATURES, stream(plan.run.seed, Purpose.WEIGHTS))
        self.layout, self.canary = Layout.of(self.model), canary
        self.start = {name: torch.zeros_like(value) for name, value in self.model.named_parameters()}
        self.server = Server(self.layout.flatten(self.start), plan.training.optimiser, plan.training.rounds)
        self.node, self.clip = plan.nodes[0], plan.training.clip
        self.projections: list[np.ndarray] = []

    def gradient(self) -> np.ndarray:
        """Return the canary's gradient before clipping, shape (dimension,), without functions of the audited code."""
        weights = self.server.weights.detach().clone().requires_grad_()
        scores = functional_call(self.model, self.layout.unflatten(weights), (self.canary,))
        (gradient,) = torch.autograd.grad(functional.cross_entropy(scores, torch.arange(CLASSES)), [weights])
        return gradient.double().cpu().numpy()

    def observe(self, done: int, messages: Tensor) -> None:
        """Project a round's messages, and compute the next weights."""
        gradient = self.gradient()
        norm = float(np.linalg.norm(gradient))
        if norm < self.clip:
            raise ValueError(
                f"Expected a canary whose gradient reaches the clipping norm {self.clip}, found {norm} in round {done}."
            )
        sums = messages.double().cpu().numpy() * (self.node.expected / self.clip)
        self.projections.append(sums @ (gradient / norm))
        self.server.step(messages, done - 1)
