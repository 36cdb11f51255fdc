r"""The audit of whole runs, which tries to detect a canary in all messages of a node.

`zetadp.core.training.train` makes the runs. The attacker sees every message of every round, computes the weights with
its own server, and computes the canary's gradient at all these weights. A node draws each patient with probability p.
The projection of its message on the canary's gradient, in units of the clipping norm, has the law
:math:`N(0, \sigma^2)` without the canary and :math:`(1-p) N(0, \sigma^2) + p N(1, \sigma^2)` with it. The attacker
adds up the evidence of each projection (`evidence`) over T rounds. The decision is "took part" if the sum exceeds half
of the evidence of pT draws without noise.

By Neyman and Pearson the likelihood ratio is the best test of a mechanism without faults. The evidence is its odd part.
It is as good for noise of many clipping norms, and nearly as good for little noise. Without the canary its mean is zero
for every noise level, so the threshold is also right if there is less noise than the attacker believes.

Trials run in parallel, each at one node of a run. They are still independent: the noise is isotropic, and the canary's
gradient always reaches the clipping norm, which the attacker checks. A score therefore does not depend on the weights,
and the trials share nothing else.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from zetadp.audit.detection import AuditResult, Trials, count_errors
from zetadp.audit.one_round import CLASSES, SIDE_BY_SIDE, Audited, patient_gradient
from zetadp.base.randomness import Purpose, stream
from zetadp.base.tensors import Layout
from zetadp.base.validation import positive
from zetadp.base.workflow import PROGRESS, only_errors
from zetadp.core.checkpoint import RunFiles
from zetadp.core.plan import Plan
from zetadp.core.progress import OF_TRAINING
from zetadp.core.records import LabelledItems, items_of
from zetadp.core.server import Server
from zetadp.core.settings import Performance
from zetadp.core.training import train
from zetadp.nn.models import NetworkSettings, build
from zetadp.privacy import accounting
from zetadp.privacy.accounting import Exposure
from zetadp.privacy.kinds import sampled_loss
from zetadp.privacy.ledger import read_ledger

logger, progress = logging.getLogger(__name__), logging.getLogger(PROGRESS)

SIDE = 8
"""Side of the images of the stub network, which is linear."""

CANDIDATES = 4
"""Pairs of images, in both orders, from which the canary is chosen."""

_REACH = 9.0
"""Standard deviations of the noise that are considered on each side."""
_CELLS = 40_001
_CELLS_OF_SPREAD = 4096
"""Cells of the law of a projection, and cells per standard deviation of the sum of all rounds."""


def audit_training(
    folder: Path, trials: Trials, audited: Audited, *, rounds: int, name: str = "training"
) -> AuditResult:
    """Audit the code of whole runs.

    The claim is epsilon of the releases in the nodes' ledger.

    Parameters
    ----------
    folder
        An empty folder for ledgers, checkpoints and stored messages, preferably a temporary one.
    trials
        Number of trials, and settings of their interpretation.
    audited
        The mechanism of a round.
    rounds
        Number of rounds.
    name
        Name of the result.
    """
    positive(rounds=rounds)
    population = audited.population
    scores: dict[bool, list[float]] = {False: [], True: []}
    claim: Exposure = {}
    number = 0
    while len(scores[True]) < trials.count:
        together = min(2 * (trials.count - len(scores[True])), SIDE_BY_SIDE)
        plan = audited.plan(trials, together, NetworkSettings("linear"), rounds=rounds, part=number)
        attacker = _Attacker(plan, audited)
        # Trials alternate: with the canary, without it. The other patients contribute zero.
        images = torch.full((together, population, *attacker.canary.shape), torch.nan, dtype=attacker.canary.dtype)
        images[::2, 0] = attacker.canary
        records = LabelledItems.stacked(images.flatten(0, 1), torch.arange(CLASSES))
        units = items_of([[patient] for patient in range(together * population)], CLASSES)
        place = folder / f"training-{number:05d}"
        with only_errors("zetadp.core", OF_TRAINING):
            train(
                plan,
                records,
                [units[population * node : population * (node + 1)] for node in range(together)],
                RunFiles(place / "ledger.jsonl", place / "checkpoint.safetensors"),
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
        progress.info("%s: %d of %d trials a side", name, len(scores[True]), trials.count)
    threshold = threshold_of(audited.probability, audited.noise_multiplier, rounds)
    errors = count_errors(scores[False], scores[True], threshold, confidence=trials.confidence)
    result = AuditResult.of(name, errors, claim, trials.delta)
    logger.info("%s: claimed epsilon %.3f, measured at least %.3f", name, result.claimed, result.measured)
    return result


def evidence(projections: np.ndarray, probability: float, noise_multiplier: float) -> np.ndarray:
    """Return the evidence for the canary: the odd part of the log-likelihood ratio, in units of a projection.

    For noise of many clipping norms, and if everybody is drawn, it is the projection itself.

    Parameters
    ----------
    projections
        In units of the clipping norm, of any shape.
    probability, noise_multiplier
        The claimed mechanism of a round.
    """
    variance = noise_multiplier**2

    def ratio(x: np.ndarray) -> np.ndarray:
        return sampled_loss((x - 0.5) / variance, probability)

    return np.asarray((ratio(projections) - ratio(-projections)) * variance / (2 * probability))


def threshold_of(probability: float, noise_multiplier: float, rounds: int) -> float:
    """Return the sum of evidence above which the attacker decides that the canary took part."""
    return probability * rounds / 2 * float(evidence(np.ones(()), probability, noise_multiplier))


def error_rates(probability: float, noise_multiplier: float, rounds: int, *, true_noise: float) -> tuple[float, float]:
    """Return the error rates (alpha, beta) of the attack, accurate to about 0.001.

    Parameters
    ----------
    probability, noise_multiplier, rounds
        The claimed mechanism, which the attacker assumes.
    true_noise
        The noise multiplier of the mechanism that runs.
    """
    edges = np.linspace(-_REACH * true_noise, 1 + _REACH * true_noise, _CELLS)
    middles = (edges[1:] + edges[:-1]) / 2
    without = np.diff(ndtr(edges / true_noise))
    with_canary = (1 - probability) * without + probability * np.diff(ndtr((edges - 1) / true_noise))
    found = evidence(middles, probability, noise_multiplier)
    mean = with_canary @ found
    fineness = _CELLS_OF_SPREAD / math.sqrt(rounds * (with_canary @ found**2 - mean**2))
    # The sum of all rounds lies on a circle of cells that is long enough to make wrap-around negligible.
    cells = np.rint(found * fineness).astype(np.int64)
    size = 1 << math.ceil(math.log2(2 * (np.abs(cells).max() + rounds * mean * fineness) + 40 * _CELLS_OF_SPREAD))
    above = np.fft.fftfreq(size, 1 / size) > threshold_of(probability, noise_multiplier, rounds) * fineness

    def share_above(weights: np.ndarray) -> float:
        one = np.bincount(cells % size, weights / weights.sum(), size)
        return float(np.fft.irfft(np.fft.rfft(one) ** rounds, size)[above].sum())

    return share_above(without), 1 - share_above(with_canary)


class _Attacker:
    """An attacker who sees all messages, computes the weights and adds up the evidence for each trial's canary.

    The canary's second image has the inverse magnitudes of the first. A network on log magnitude then sees the same
    features with the opposite sign, and the gradients of the two images, which have different classes, do not cancel.
    Among some candidates, the canary is the one with the longest gradient at the first weights.
    """

    def __init__(self, plan: Plan, audited: Audited) -> None:
        self.model = build(plan.network, CLASSES, SIDE, stream(plan.run.seed, Purpose.WEIGHTS))
        self.layout = Layout.of(self.model)
        start = self.layout.flatten(dict(self.model.named_parameters())).detach()
        self.server = Server(start, plan.training.optimiser, plan.training.rounds)
        self.node, self.clip, self.audited = plan.nodes[0], plan.training.clip, audited
        self.total: np.ndarray | float = 0.0
        random = np.random.default_rng(0)
        candidates: list[Tensor] = []
        for _ in range(CANDIDATES):
            magnitude = np.exp(random.standard_normal((SIDE, SIDE)))
            phase = np.exp(2j * np.pi * random.random((2, SIDE, SIDE)))
            images = torch.from_numpy(np.stack([magnitude, 1 / magnitude]) * phase).to(torch.complex64).unsqueeze(1)
            candidates += [images, images.flip(0)]
        self.canary = max(candidates, key=lambda images: float(np.linalg.norm(self._gradient(start, images))))

    def _gradient(self, weights: Tensor, images: Tensor) -> np.ndarray:
        return patient_gradient(self.model, self.layout, weights, images, torch.arange(CLASSES))

    def see(self, done: int, messages: Tensor) -> None:
        """Add the evidence of a round's messages, and compute the next weights."""
        gradient = self._gradient(self.server.weights.detach(), self.canary)
        norm = float(np.linalg.norm(gradient))
        if norm < self.clip:
            raise ValueError(
                f"Expected a canary whose gradient reaches the clipping norm {self.clip}, found {norm} in round {done}."
            )
        sums = messages.double().cpu().numpy() * (self.node.expected / self.clip)
        found = evidence(sums @ (gradient / norm), self.audited.probability, self.audited.noise_multiplier)
        self.total = self.total + found
        self.server.step(messages, done - 1)

    def scores(self) -> list[float]:
        """Return one score per trial."""
        return [float(score) for score in np.atleast_1d(self.total)]
