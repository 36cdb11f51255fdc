r"""The audit of whole trainings: whether all that a node sent can be told from what it sends without a canary.

The trainings are made by `zetadp.core.training.train`. The attacker sees every message of every round, follows the
weights with a server of its own, and computes the canary's gradient at each of them. A message of a node that draws
each patient with probability p projects on that gradient, in units of the clipping norm, as :math:`N(0, \sigma^2)`
without the canary and as the mixture :math:`(1-p) N(0, \sigma^2) + p N(1, \sigma^2)` with it. The attacker looks at

- ``sum``: the sum of the projections :math:`x_t`. "Took part" is what it says above p T / 2 after T rounds;
- ``likelihood``: the logarithm of their likelihood ratio,
  :math:`\sum_t \log(1 - p + p\, e^{(x_t - 1/2) / \sigma^2})`, above zero. By Neyman and Pearson nothing is better
  where nothing is at fault; for noise of many clipping norms the sum is as good. Against less noise than it believes
  its threshold is off, and that of the sum is not: hence the sum is the standard;
- ``nodes``: the sum of projections minus the mean of those of the trial's other nodes, which cancels shared noise;
- ``rounds``: the sum of squared differences of consecutive rounds, in which noise that rounds share cancels and a
  canary stays that is drawn in one of them. Its threshold is half of what such a canary leaves.

Trials run side by side, each a small federation among the nodes of one training. They are independent all the same:
noise is isotropic and the canary's gradient always reaches the clipping norm, so that a score does not depend on where
the weights are, which is all that the trials share. The attacker checks that it does.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.special import ndtr
from scipy.stats import binom
from torch.func import functional_call
from torch.nn import functional

from zetadp.audit.canary import CANARY, CLASSES, SILENT, record_of
from zetadp.audit.detection import (
    FALSE_ALARM,
    AuditResult,
    count_errors,
    result_of_epsilon,
)
from zetadp.audit.power import POWER, trials_for_curve
from zetadp.audit.quiet import quiet_trainings
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.records import Records, items_of
from zetadp.core.server import Server
from zetadp.core.settings import OptimiserSettings, Performance, TrainingSettings
from zetadp.core.training import Holding, TrainingData, TrainingFiles, train
from zetadp.nn.models import NetworkSettings, build
from zetadp.nn.parameters import Layout
from zetadp.privacy import accounting
from zetadp.privacy.ledger import read_ledger
from zetadp.randomness import Purpose, stream
from zetadp.validation import in_range, one_of, positive

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from zetadp.privacy.accounting import Mechanisms

logger = logging.getLogger(__name__)

VIEWS = ("sum", "likelihood", "nodes", "rounds")
NETWORKS = {
    "linear": NetworkSettings("linear"),
    "complex": NetworkSettings(widths=(2,), convolutions=1, head="pooled", groups=1),
}
"""Stub networks: the smallest of two families."""

SIDE_BY_SIDE = 192
"""Nodes in one training."""

CANDIDATES = 4
"""Pairs of images, in both orders, that the canary is chosen from."""

DRIFT = 5e-3
"""The weights drift by about this much in all rounds together, so that the canary's gradient stays what it was."""


def audit_training(
    folder: Path,
    *,
    trials: int,
    noise_multiplier: float,
    probability: float,
    rounds: int,
    delta: float = 1e-3,
    clip: float = 1.0,
    population: int = 1,
    family: str = "linear",
    view: str = "sum",
    nodes: int = 1,
    noise: str = "seeded",
    seed: int = 0,
    confidence: float = 1 - FALSE_ALARM,
    name: str | None = None,
) -> AuditResult:
    """Audit the code of whole trainings.

    The claim is epsilon at ``delta`` of what the nodes' ledger says they released.

    Parameters
    ----------
    folder
        An empty folder for ledgers, checkpoints and kept messages, best a temporary one.
    trials
        Independent trials with the canary, and as many without.
    noise_multiplier, probability, rounds
        sigma, the chance of a patient to be drawn in a round, and the number of rounds.
    delta
        The delta of epsilon.
    clip
        The clipping norm B.
    population
        Patients at a node; all but the canary contribute zero.
    family
        ``linear`` or ``complex``: the stub network.
    view
        What the attacker looks at: ``sum``, ``likelihood``, ``nodes`` or ``rounds``.
    nodes
        Nodes of each trial, of which the first may hold the canary; at least two for the view ``nodes``.
    noise
        ``seeded`` or ``os``.
    seed
        Seed of the trials.
    confidence
        Probability with which the measured figure is a lower bound.
    name
        Name of the result; by default a description.
    """
    positive(trials=trials, noise_multiplier=noise_multiplier, rounds=rounds, population=population)
    one_of(VIEWS, view=view)
    one_of(NETWORKS, family=family)
    in_range(1 if view != "nodes" else 2, SIDE_BY_SIDE // 2, nodes=nodes)
    name = name or f"training, {view}, {family} network, {noise} noise"
    settings = TrainingSettings(
        rounds=rounds,
        images_per_patient=CLASSES,
        optimiser=OptimiserSettings(learning_rate=DRIFT / rounds),
        clip=clip,
        noise=noise,
    )
    scores: dict[bool, list[float]] = {False: [], True: []}
    claim: Mechanisms = {}
    number = 0
    while len(scores[True]) < trials:
        together = min(2 * (trials - len(scores[True])), SIDE_BY_SIDE // nodes // 2 * 2)
        plan = Plan(
            run=RunName("audit", family, "audited", seed * 1_000_003 + number),
            network=NETWORKS[family],
            training=settings,
            nodes=tuple(
                NodeConstants(f"node-{place + 1:04d}", population, probability * population, noise_multiplier)
                for place in range(together * nodes)
            ),
            delta=delta,
            task={"name": "classification", "classes": CLASSES},
        )
        # Trials take turns: with the canary, without it.
        others = [[SILENT]] * (population - 1)
        holdings = [
            Holding(items_of([[CANARY if place % (2 * nodes) == 0 else SILENT], *others], CLASSES))
            for place in range(together * nodes)
        ]
        records = _records(plan)
        attacker = _Attacker(plan, records, nodes, view)
        place = folder / f"training-{number:05d}"
        with quiet_trainings():
            train(
                plan,
                TrainingData(records, holdings),
                TrainingFiles(place / "ledger.jsonl", place / "checkpoint.safetensors"),
                performance=Performance(evaluate_every=rounds, checkpoint_seconds=1e9, chunk=512),
                after_round=attacker.see,
            )
        found = attacker.scores()
        scores[True] += found[0::2]
        scores[False] += found[1::2]
        if number == 0:
            events = read_ledger(place / "ledger.jsonl")[-1].releases()
            claim = accounting.compose(event for event in events if event.node == plan.nodes[0].name)
        number += 1
        logger.info("%s: %d of %d trials a side", name, len(scores[True]), trials)
    if view == "rounds":
        threshold = max(0.5, (rounds - 1) * probability * (1 - probability))
    else:
        threshold = 0.0 if view == "likelihood" else probability * rounds / 2
    errors = count_errors(scores[False], scores[True], threshold, confidence=confidence)
    result = result_of_epsilon(name, errors, claim, delta)
    logger.info("%s: claimed epsilon %.3f, measured at least %.3f", name, result.claimed, result.measured)
    return result


def error_rates(probability: float, noise_multiplier: float, rounds: int) -> tuple[float, float]:
    """Return how often the sum of projections errs, (alpha, beta), where the noise is as given."""
    drawn = np.arange(rounds + 1)
    spread = noise_multiplier * math.sqrt(rounds)
    threshold = probability * rounds / 2
    missed = binom.pmf(drawn, rounds, probability) @ ndtr((threshold - drawn) / spread)
    return float(ndtr(-threshold / spread)), float(missed)


def training_trials(
    probability: float,
    noise_multiplier: float,
    rounds: int,
    *,
    shortfall: float = math.sqrt(2),
    false_alarm: float = FALSE_ALARM,
    power: float = POWER,
) -> int:
    """Return how many trials a side tell noise that falls short by a factor from the claimed trade-off curve.

    Parameters
    ----------
    probability, noise_multiplier, rounds
        The claimed mechanism.
    shortfall
        The noise that is to be caught is the claimed one divided by this.
    false_alarm, power
        As in `power.trials_needed`.
    """
    faulty = error_rates(probability, noise_multiplier / shortfall, rounds)
    mechanisms = {(probability, noise_multiplier): rounds}
    return trials_for_curve(mechanisms, faulty, false_alarm=false_alarm, power=power)


class _Attacker:
    """Whoever sees all messages: follows the weights and adds up the evidence for the canary at each trial's node."""

    def __init__(self, plan: Plan, records: Records, nodes: int, view: str) -> None:
        self.model, self.layout, start = _start(plan, records.inputs.shape[-1])
        self.server = Server(start, plan.training.optimiser, plan.training.rounds)
        self.images, self.labels = record_of(records, CANARY)
        self.node, self.clip, self.nodes, self.view = plan.nodes[0], plan.training.clip, nodes, view
        self.probability = self.node.sampling_probability
        self.total: np.ndarray | float = 0.0
        self.before: np.ndarray | None = None

    def see(self, done: int, messages: Tensor) -> None:
        """Take the messages of a round into account, and step to the next weights."""
        gradient = self._gradient()
        norm = float(np.linalg.norm(gradient))
        if norm < self.clip:
            msg = (
                f"Expected a canary whose gradient reaches the clipping norm {self.clip}, found {norm} in round {done}."
            )
            raise ValueError(msg)
        sums = messages.double().cpu().numpy() * (self.node.expected / self.clip)
        seen = (sums @ (gradient / norm)).reshape(-1, self.nodes)
        self.total = self.total + self._evidence(seen)
        self.server.step(messages, done - 1)

    def _evidence(self, seen: np.ndarray) -> np.ndarray:
        """Return what a round adds to the score of each trial; ``seen`` has shape (trial, node)."""
        own: np.ndarray = seen[:, 0]
        match self.view:
            case "sum":
                return own
            case "nodes":
                return np.asarray(own - seen[:, 1:].mean(axis=1))
            case "rounds":
                before, self.before = self.before, own
                return np.zeros_like(own) if before is None else np.square(own - before)
            case _:
                exponent = (own - 0.5) / self.node.noise_multiplier**2
                undrawn = math.log1p(-self.probability) if self.probability < 1 else -math.inf
                return np.asarray(np.logaddexp(undrawn, math.log(self.probability) + exponent))

    def scores(self) -> list[float]:
        """Return one score a trial."""
        return [float(score) for score in np.atleast_1d(self.total)]

    def _gradient(self) -> np.ndarray:
        """Return the canary's gradient at the present weights."""
        return _gradient(self.model, self.layout, self.server.weights.detach(), self.images, self.labels)


def _gradient(model: nn.Module, layout: Layout, weights: Tensor, images: Tensor, labels: Tensor) -> np.ndarray:
    """Return a patient's gradient by ordinary automatic differentiation, shape (dimension,), float64."""
    leaf = weights.clone().requires_grad_()
    scores = functional_call(model, layout.unflatten(leaf), (images,))
    (gradient,) = torch.autograd.grad(functional.cross_entropy(scores, labels), [leaf])
    return gradient.double().numpy()


def _start(plan: Plan, size: int) -> tuple[nn.Module, Layout, Tensor]:
    """Return the network, the order of its parameters, and the weights that the training will start from."""
    model = build(plan.network, CLASSES, size, stream(plan.run.seed, Purpose.WEIGHTS))
    layout = Layout.of(model)
    return model, layout, layout.flatten(dict(model.named_parameters())).detach()


def _records(plan: Plan, size: int = 8) -> Records:
    """Return a canary and a record that contributes zero.

    The canary's second image has the inverse magnitudes of the first, so that a network on log magnitude sees the same
    features negated and the two images of different class do not cancel. Of some candidates it is the one with the
    longest gradient at the first weights, which the network gets wrong.
    """
    random = np.random.default_rng(0)
    candidates: list[Tensor] = []
    for _ in range(CANDIDATES):
        magnitude = np.exp(random.standard_normal((size, size)))
        phase = np.exp(2j * np.pi * random.random((2, size, size)))
        images = torch.from_numpy(np.stack([magnitude, 1 / magnitude]) * phase).to(torch.complex64)
        candidates += [images, images.flip(0)]
    model, layout, start = _start(plan, size)
    labels = torch.arange(CLASSES)
    canary = max(
        candidates,
        key=lambda images: float(np.linalg.norm(_gradient(model, layout, start, images.unsqueeze(1), labels))),
    )
    return Records.stacked(torch.stack([canary, torch.full_like(canary, torch.nan)]).unsqueeze(2), labels)
