r"""The audit of one round at fixed weights: whether its message can be told from one without the canary.

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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.special import ndtr
from torch import Tensor

from zetadp.audit.canary import Audited, Stub, canary_node, canary_stub
from zetadp.audit.detection import AuditResult, Trials, count_errors, result_of_epsilon, result_of_mu
from zetadp.base.validation import in_range, one_of
from zetadp.core.outbox import Outbox
from zetadp.core.records import Node
from zetadp.core.round import Phase, do_round
from zetadp.privacy import accounting
from zetadp.privacy.ledger import Ledger, read_ledger

logger = logging.getLogger(__name__)

VIEWS = ("projection", "nodes", "rounds")
SIDE_BY_SIDE = 192
"""Nodes in one simulated round."""
USUAL = Audited()
"""sigma and B are one, one patient is always drawn, and the noise is seeded."""


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
    trade-off curve, and the figures are epsilons.

    Parameters
    ----------
    folder
        An empty folder for ledgers and stored messages, preferably a temporary one.
    trials
        Number of trials, and settings of their interpretation.
    audited
        The mechanism.
    direction
        As in `canary_stub`.
    view
        Statistic of the attacker: ``projection``, ``nodes`` or ``rounds``.
    nodes
        Number of nodes of each trial. The first may hold the canary. The view ``nodes`` needs at least two.
    """
    in_range(1 if view != "nodes" else 2, SIDE_BY_SIDE, nodes=nodes)
    one_of(VIEWS, view=view)
    stub = canary_stub(clip=audited.clip, direction=direction)
    scores = {}
    for present in (False, True):
        with Ledger(folder / f"one-round-{'in' if present else 'out'}.jsonl") as ledger:
            ledger.start({"audit": "one round"})
            outbox = Outbox(ledger, folder / f"messages-{present:d}" if audited.noise == "os" else None)
            together = max(1, SIDE_BY_SIDE // nodes) * nodes
            holders = [
                # Trials with and without the canary are independent.
                canary_node(
                    stub, ledger, place, audited, present=present and place % nodes == 0, seed=2 * trials.seed + present
                )
                for place in range(together)
            ]
            scores[present] = _Side(stub, holders, outbox, nodes, view).scores(trials.count)
    # Half way between the expected scores with the canary drawn and without it.
    errors = count_errors(scores[False], scores[True], 0.5, confidence=trials.confidence)
    name = _description(view, direction, nodes, audited)
    # The claim is that of one release in the ledger. A second round, at weights where the canary's gradient is zero,
    # reveals nothing about the canary.
    mechanisms = accounting.compose(read_ledger(folder / "one-round-in.jsonl")[-1].events[:1])
    mu = accounting.exact_mu(mechanisms)
    if mu is not None:
        result = result_of_mu(name, errors, mu, mechanisms)
    else:
        result = result_of_epsilon(name, errors, mechanisms, trials.delta)
    logger.info("%s: claimed %.3f, measured at least %.3f", name, result.claimed, result.measured)
    return result


def one_round_rates(probability: float, noise_multiplier: float) -> tuple[float, float]:
    """Return the error rates (alpha, beta) of the projection with threshold one half at the given noise."""
    alpha = float(ndtr(-0.5 / noise_multiplier))
    return alpha, (1 - probability) * (1 - alpha) + probability * alpha


class _Side:
    """Trials with the canary, or without."""

    def __init__(self, stub: Stub, holders: Sequence[Node], outbox: Outbox, nodes: int, view: str) -> None:
        self.stub, self.holders, self.outbox, self.nodes, self.view = stub, holders, outbox, nodes, view
        mechanism = holders[0].mechanism
        self.scale = mechanism.event.expected / mechanism.event.clip
        self.rounds = 0

    def scores(self, trials: int) -> np.ndarray:
        """Return one score per trial, shape (trial,)."""
        parts: list[np.ndarray] = []
        while sum(map(len, parts)) < trials:
            holders = self.holders[: (trials - sum(map(len, parts))) * self.nodes]
            seen = self._seen(self._round(holders))
            if self.view == "nodes":
                seen = seen[:, :1] - seen[:, 1:].mean(axis=1, keepdims=True)
            elif self.view == "rounds":
                self.stub.saturate()
                seen = seen - self._seen(self._round(holders))
                self.stub.reset()
            parts.append(seen[:, 0])
        return np.concatenate(parts)

    def _round(self, holders: Sequence[Node]) -> Tensor:
        phase = replace(Phase.of(self.stub.model, self.stub.images_per_patient), chunk=512)
        messages, _ = do_round(phase, holders, self.stub.records, self.outbox, self.rounds)
        self.rounds += 1
        return messages

    def _seen(self, messages: Tensor) -> np.ndarray:
        """Return the attacker's statistic of each message, shape (trial, node), in units of the clipping norm."""
        sums = messages.double().cpu().numpy() * self.scale
        seen: np.ndarray = (sums @ self.stub.direction).reshape(-1, self.nodes)
        return seen


def _description(view: str, direction: str, nodes: int, audited: Audited) -> str:
    looked = {"nodes": f"difference of {nodes} nodes, ", "rounds": "difference of rounds, "}
    parts = [
        f"one round, {looked.get(view, '')}{direction} canary",
        f"B = {audited.clip:g}",
        *([f"p = {audited.probability:g}"] if audited.probability < 1 else []),
        f"{audited.noise} noise",
    ]
    return ", ".join(parts)
