r"""The audit of one round at fixed weights: whether its message can be told from one without the canary.

The canary is a patient whose gradient is known and reaches the clipping norm. The network is a stub: one complex affine
layer of the library, whose scores are the real parts of its outputs. There are two classes, with the image x in one and
-x in the other. If all weights are zero, the gradient of the weights is :math:`\mp \bar{x} / 2`, which has the phase of
x's conjugate: real x gives a real gradient, imaginary x an imaginary one. If the weights equal the conjugate images,
the softmax is saturated and the gradient is zero.

Neighbours: the canary's contribution is replaced by zero. It keeps its place at the node, so the number of patients,
the sampling probability and the divisor do not change. The record that contributes zero has images that are not finite.

The attacker has the weights, the canary and every node's message, and knows every public constant. The attacker
projects a message, multiplied by the divisor, on the canary's gradient. If the code has no fault, this is the best
attack: in units of the clipping norm, the projection of a drawn canary is :math:`N(1, \sigma^2)`, and otherwise
:math:`N(0, \sigma^2)`. Two other statistics find faults that a projection cannot see:

- ``nodes`` subtracts the mean projection of the other nodes' messages, which cancels noise that nodes share;
- ``rounds`` subtracts the projection of a second round, at weights where the canary's gradient is zero, which cancels
  noise that rounds share.

Trials run in parallel. Each is a separate small federation, in which the first node holds the canary or not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from zetadp.audit.detection import AuditResult, Trials, count_errors
from zetadp.base.tensors import Layout
from zetadp.base.validation import in_range, one_of, positive
from zetadp.core.assembly import Assembly
from zetadp.core.outbox import Outbox
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.records import LabelledItems, Node, items_of
from zetadp.core.round import Phase, do_round
from zetadp.core.settings import OptimiserSettings, TrainingSettings
from zetadp.nn.layers import Linear
from zetadp.nn.settings import NetworkSettings
from zetadp.nn.stacked import stack
from zetadp.privacy import accounting
from zetadp.privacy.ledger import Ledger, read_ledger

logger = logging.getLogger(__name__)

CANARY, SILENT = range(2)
"""Positions of the records: the canary, and one that contributes zero."""
CLASSES = 2
SIDE = 4
"""Side of the canary's images; the stub network has ``2 (SIDE**2 + 1)`` complex weights."""
EXCESS = 100.0
"""The canary's gradient is longer than the clipping norm by this factor, so missing clipping is visible."""
DIRECTIONS = ("general", "imaginary")
VIEWS = ("projection", "nodes", "rounds")
SIDE_BY_SIDE = 192
"""Nodes in one simulated round."""
DRIFT = 5e-3
"""Approximate drift of the weights in all rounds together. It is small, so the canary's gradient hardly changes."""


@dataclass(frozen=True)
class Audited:
    """The mechanism under audit, which is the same at each node.

    Attributes
    ----------
    noise_multiplier, clip
        As in `NodeMechanism`: sigma and B.
    probability
        Probability that a patient is drawn. The divisor is this probability times N.
    population
        Number N of patients at a node. All but the canary contribute zero.
    noise
        ``seeded`` or ``os``.
    """

    noise_multiplier: float = 1.0
    clip: float = 1.0
    probability: float = 1.0
    population: int = 1
    noise: str = "seeded"

    def __post_init__(self) -> None:
        """Check every constant."""
        positive(noise_multiplier=self.noise_multiplier, clip=self.clip, population=self.population)
        one_of(("seeded", "os"), noise=self.noise)

    def plan(self, trials: Trials, nodes: int, network: NetworkSettings, *, rounds: int = 1, part: int = 0) -> Plan:
        """Return the plan of trials side by side, each at one node or at several.

        Parameters
        ----------
        trials
            Their seed and delta are the plan's.
        nodes
            Number of nodes.
        network
            The attacked network, of classes `CLASSES`.
        rounds
            Number of rounds.
        part
            Distinguishes plans of one audit.
        """
        expected = self.probability * self.population
        return Plan(
            run=RunName("audit", network.family, "inf", (trials.seed * 1_000_003 + part) % 2**63),
            network=network,
            training=TrainingSettings(
                rounds=rounds,
                images_per_patient=CLASSES,
                optimiser=OptimiserSettings(learning_rate=DRIFT / rounds),
                clip=self.clip,
                noise=self.noise,
            ),
            nodes=tuple(
                NodeConstants(f"node-{place + 1:04d}", self.population, expected, self.noise_multiplier)
                for place in range(nodes)
            ),
            delta=trials.delta,
            task={"name": "classification", "classes": CLASSES},
        )


USUAL = Audited()
"""sigma and B are one, one patient is always drawn, and the noise is seeded."""


class ComplexScores(nn.Module):
    """The real part of a complex affine map of all coefficients.

    Parameters
    ----------
    size
        Side of the square images.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.affine = Linear(size * size, CLASSES, dtype=torch.complex64)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of shape (image, class) for images of shape (image, 1, row, column)."""
        scores: Tensor = self.affine(stack(images.flatten(1)))
        return scores[:, :CLASSES]


@dataclass(frozen=True)
class Stub:
    """Everything that a round on canaries needs besides its nodes.

    Attributes
    ----------
    model
        The stub network, with weights zero.
    records
        The records `CANARY` and `SILENT`.
    direction
        Unit vector of the canary's gradient at weights zero, shape (dimension,), float64.
    """

    model: nn.Module
    records: LabelledItems
    direction: np.ndarray

    @classmethod
    def of(cls, *, clip: float, direction: str = "general") -> Stub:
        """Make the stub network and its records.

        Parameters
        ----------
        clip
            The clipping norm B, which the canary's gradient exceeds by `EXCESS`.
        direction
            ``general``, or ``imaginary`` for a gradient without real parts.
        """
        one_of(DIRECTIONS, direction=direction)
        parts = np.random.default_rng(0).standard_normal((2, SIDE, SIDE))
        x = torch.from_numpy((0.0 if direction == "imaginary" else parts[0]) + 1j * parts[1])
        # The gradient's norm is that of x divided by the square root of two.
        x *= EXCESS * clip * 2**0.5 / float(torch.linalg.vector_norm(x))
        canary = torch.stack([x, -x]).to(torch.complex64)
        together = torch.stack([canary, torch.full_like(canary, torch.nan)])
        records = LabelledItems.stacked(together.unsqueeze(2), torch.arange(CLASSES))
        model = ComplexScores(SIDE)
        layout = Layout.of(model)
        start = layout.flatten(dict(model.named_parameters())).detach()
        gradient = patient_gradient(model, layout, start, *record_of(records, CANARY))
        return cls(model, records, gradient / np.linalg.norm(gradient))

    @contextmanager
    def saturated(self) -> Iterator[None]:
        """Set the weights at which the canary's gradient is zero, while the block runs."""
        weight = self.model.get_parameter("affine.weight")
        with torch.no_grad():
            weight.copy_(record_of(self.records, CANARY)[0].flatten(1).conj())
        yield
        with torch.no_grad():
            weight.zero_()


def record_of(records: LabelledItems, record: int) -> tuple[Tensor, Tensor]:
    """Return images and labels of a record with an image of each class."""
    own = records.part(slice(CLASSES * record, CLASSES * (record + 1)))
    return own.inputs, own.targets


def patient_gradient(model: nn.Module, layout: Layout, weights: Tensor, images: Tensor, labels: Tensor) -> np.ndarray:
    """Return a patient's gradient before clipping, by ordinary automatic differentiation: not by the audited code.

    Returns
    -------
    float64 array of shape (dimension,).
    """
    leaf = weights.clone().requires_grad_()
    scores = functional_call(model, layout.unflatten(leaf), (images,))
    (gradient,) = torch.autograd.grad(functional.cross_entropy(scores, labels), [leaf])
    return gradient.double().cpu().numpy()


def audit_one_round(
    folder: Path,
    trials: Trials,
    audited: Audited = USUAL,
    *,
    direction: str = "general",
    view: str = "projection",
    nodes: int = 1,
) -> AuditResult:
    """Audit the code of one round.

    The claim follows from the ledger. If everybody is drawn, it is ``mu = 1 / sigma``. Otherwise it is the accountant's
    trade-off curve, and the values are epsilons.

    Parameters
    ----------
    folder
        An empty folder for ledgers and stored messages, preferably a temporary one.
    trials
        Number of trials, and settings of their interpretation.
    audited
        The mechanism.
    direction
        As in `Stub.of`.
    view
        Statistic of the attacker: ``projection``, ``nodes`` or ``rounds``.
    nodes
        Number of nodes of each trial. The first may hold the canary. The view ``nodes`` needs at least two.
    """
    in_range(1 if view != "nodes" else 2, SIDE_BY_SIDE, nodes=nodes)
    one_of(VIEWS, view=view)
    stub = Stub.of(clip=audited.clip, direction=direction)
    plan = audited.plan(trials, SIDE_BY_SIDE // nodes * nodes, NetworkSettings("own"))
    parts = Assembly.of(plan, stub.records, model=stub.model)
    others, scores = [[SILENT]] * (audited.population - 1), {}
    for present in (False, True):
        with Ledger(folder / f"one-round-{'in' if present else 'out'}.jsonl") as ledger:
            ledger.start({"audit": "one round"})
            outbox = Outbox(ledger, folder / f"messages-{present:d}" if audited.noise == "os" else None)
            # Trials with and without the canary are independent.
            seed = 2 * trials.seed + present
            holders = [
                Node(
                    parts.mechanism(node.name, seed, ledger),
                    items_of([[CANARY if present and place % nodes == 0 else SILENT], *others], CLASSES),
                )
                for place, node in enumerate(plan.nodes)
            ]
            scores[present] = _scores(stub, parts.phase, holders, outbox, trials.count, nodes, view)
    # Half way between the expected scores with the canary drawn and without it.
    errors = count_errors(scores[False], scores[True], 0.5, confidence=trials.confidence)
    # The claim is that of one release in the ledger. A second round, at weights where the canary's gradient is zero,
    # reveals nothing about the canary.
    mechanisms = accounting.compose(read_ledger(folder / "one-round-in.jsonl")[-1].events[:1])
    delta = trials.delta if accounting.exact_mu(mechanisms) is None else None
    result = AuditResult.of(_description(view, direction, nodes, audited), errors, mechanisms, delta)
    logger.info("%s: claimed %.3f, measured at least %.3f", result.name, result.claimed, result.measured)
    return result


def one_round_rates(probability: float, noise_multiplier: float) -> tuple[float, float]:
    """Return the error rates (alpha, beta) of the projection with threshold one half at the given noise."""
    alpha = float(ndtr(-0.5 / noise_multiplier))
    return alpha, (1 - probability) * (1 - alpha) + probability * alpha


def _scores(
    stub: Stub, phase: Phase, holders: Sequence[Node], outbox: Outbox, trials: int, nodes: int, view: str
) -> np.ndarray:
    """Return one score per trial, shape (trial,), of trials that all have the canary or all lack it."""
    event, numbers = holders[0].mechanism.event, count()
    phase = replace(phase, chunk=512)

    def seen(asked: Sequence[Node]) -> np.ndarray:
        """Return the projections of a round's messages, shape (trial, node), in units of the clipping norm."""
        messages, _ = do_round(phase, asked, stub.records, outbox, next(numbers))
        sums = messages.double().cpu().numpy() * (event.expected / event.clip)
        projections: np.ndarray = (sums @ stub.direction).reshape(-1, nodes)
        return projections

    parts: list[np.ndarray] = []
    for done in range(0, trials, len(holders) // nodes):
        asked = holders[: (trials - done) * nodes]
        found = seen(asked)
        if view == "nodes":
            found = found[:, :1] - found[:, 1:].mean(axis=1, keepdims=True)
        elif view == "rounds":
            with stub.saturated():
                found = found - seen(asked)
        parts.append(found[:, 0])
    return np.concatenate(parts)


def _description(view: str, direction: str, nodes: int, audited: Audited) -> str:
    looked = {"nodes": f"difference of {nodes} nodes, ", "rounds": "difference of rounds, "}
    parts = [
        f"one round, {looked.get(view, '')}{direction} canary",
        f"B = {audited.clip:g}",
        *([f"p = {audited.probability:g}"] if audited.probability < 1 else []),
        f"{audited.noise} noise",
    ]
    return ", ".join(parts)
