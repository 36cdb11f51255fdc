r"""The audit in one run: many canaries at once, each in or out by a coin of its own.

A cohort made of canaries, whose gradients are orthogonal, half of them real and half imaginary, takes part in a round.
The attacker projects the message on each canary's gradient and guesses "in" above half the clipping norm, for the half
of the real canaries that are farthest from there, and apart from that of the imaginary ones. Were every patient's
trade-off curve f as claimed, it could not be right too often: with c guesses about m canaries let :math:`p_i` be the
probability of exactly i right ones,

.. math:: R_i = \frac{1}{m} \sum_{l \ge i} l\, p_l, \qquad H_i = \frac{1}{m} \sum_{l \ge i} (c - l)\, p_l .

For each canary the event "a wrong guess, and at least i right ones in all" becomes "a right guess, and at least i + 1"
where its coin falls the other way. Hence, by concavity, :math:`H_i \ge f(1 - R_{i+1})`, and going down from the number
that was right, with :math:`R_0 + H_0 = c / m`, decides whether it can have the probability of a false alarm or more
(Mahloujifar, Melis and Chaudhuri 2024, arXiv:2410.22235; the idea of one run is that of Steinke, Nasr and Jagielski
2023, arXiv:2305.08846, whose :math:`(\epsilon, \delta)` form carries :math:`2 m \delta` in its p-value and cannot reach
a claim at delta 1e-3).

The bound is valid and loose: where mu is 1, it reads about 0.3. The audit is for gross faults, such as noise that is
missing from the imaginary part.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from zetadp.audit.canary import CLASSES, EXCESS, ComplexScores, patient_gradient
from zetadp.audit.detection import FALSE_ALARM, AuditResult
from zetadp.core.contribution import Contribution
from zetadp.core.round import Site, do_round
from zetadp.federation.messages import MessageStore
from zetadp.federation.node import Node, Records
from zetadp.nn.parameters import Layout
from zetadp.privacy.exact_mechanism import ExactSampledGaussian
from zetadp.privacy.grid import Grid
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.mechanism import SampledGaussian
from zetadp.validation import in_range, one_of, positive

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

GUESSED = 0.5
"""Share of the canaries of each half that the attacker makes a guess about."""

_LARGEST_MU = 60.0


def audit_one_run(
    folder: Path,
    *,
    size: int = 32,
    noise_multiplier: float = 1.0,
    clip: float = 1.0,
    noise: str = "seeded",
    seed: int = 0,
    confidence: float = 1 - FALSE_ALARM,
    name: str | None = None,
) -> AuditResult:
    """Audit one round of a cohort that is made of canaries, everybody drawn.

    The result is that of the half, real or imaginary, that shows more.

    Parameters
    ----------
    folder
        An empty folder for the ledger and kept messages, best a temporary one.
    size
        Side of the images; there are ``2 size**2`` canaries.
    noise_multiplier, clip
        sigma and B; the claim is ``mu = 1 / sigma``.
    noise
        ``seeded`` or ``os``.
    seed
        Seed of the coins and of seeded noise.
    confidence
        Probability with which the measured figure is a lower bound.
    name
        Name of the result; by default a description.
    """
    positive(size=size, noise_multiplier=noise_multiplier)
    in_range(0.5, 1, confidence=confidence)
    one_of(("seeded", "os"), noise=noise)
    records = _records(size, clip)
    canaries = len(records.images) - 1
    model = ComplexScores(size)
    layout = Layout.of(model)
    member = np.random.default_rng([seed, 1]).random(canaries) < 0.5
    constants = {
        "population": canaries,
        "expected": canaries,
        "noise_multiplier": noise_multiplier,
        "clip": clip,
    }
    with Ledger(folder / "one-run.jsonl") as ledger:
        ledger.start({"audit": "one run"})
        if noise == "os":
            bounds = {"population": canaries, "dimension": layout.dimension}
            grid = Grid.choose(clip, noise_multiplier=noise_multiplier, **bounds)
            mechanism: SampledGaussian = ExactSampledGaussian("node-1", 0, grid=grid, ledger=ledger, **constants)  # type: ignore[arg-type]
        else:
            mechanism = SampledGaussian("node-1", 0, seed=seed, ledger=ledger, **constants)  # type: ignore[arg-type]
        # The last record contributes zero: it stands in for every canary that is out.
        node = Node(mechanism, [[place if there else canaries] for place, there in enumerate(member)])
        store = MessageStore(folder / "messages", ledger.identity) if noise == "os" else None
        messages, _ = do_round(Contribution(model, layout, CLASSES), Site([node], records, ledger, store, chunk=256), 0)
    total = messages[0].double().cpu().numpy() * (canaries / clip)
    seen = np.array([total @ _direction(model, layout, records, place) for place in range(canaries)])
    results = [
        _judged(name or _description(canaries, clip, noise), seen[half], member[half], mechanism, confidence)
        for half in (slice(None, canaries // 2), slice(canaries // 2, None))
    ]
    result = max(results, key=lambda one: one.measured)
    logger.info("%s: claimed %.3f, measured at least %.3f", result.name, result.claimed, result.measured)
    return result


def _judged(
    name: str, seen: np.ndarray, member: np.ndarray, mechanism: SampledGaussian, confidence: float
) -> AuditResult:
    """Make the guesses about one of two halves of the canaries, and judge them."""
    canaries = len(seen)
    guesses = round(GUESSED * canaries)
    chosen = np.argsort(-np.abs(seen - 0.5), kind="stable")[:guesses]
    right = int(((seen > 0.5) == member)[chosen].sum())
    every = int(((seen > 0.5) == member).sum())
    return AuditResult(
        name,
        1 / mechanism.noise_multiplier,
        mu_of_guesses(canaries, guesses, right, (1 - confidence) / 2),
        # What the rate of right guesses about all of them says, without a margin.
        float(max(0.0, 2 * ndtri((every + 0.5) / (canaries + 1)))),
        confidence,
        int(member.sum()),
        int((~member).sum()),
        mechanisms={(1.0, mechanism.noise_multiplier): 1},
    )


def mu_of_guesses(canaries: int, guesses: int, right: int, error: float) -> float:
    """Return the largest mu that so many right guesses refute, zero if they refute none.

    Parameters
    ----------
    canaries
        Canaries in the run, m.
    guesses
        How many of them the attacker made a guess about, fixed beforehand, c.
    right
        How many guesses were right.
    error
        Chance to refute the truth.
    """

    def slack(mu: float) -> float:
        return _needed(canaries, guesses, right, error, mu) - guesses / canaries

    if not 2 * right > guesses or slack(0.0) < 0:
        return 0.0
    if slack(_LARGEST_MU) >= 0:
        return _LARGEST_MU
    return float(brentq(slack, 0.0, _LARGEST_MU, xtol=1e-6))


def _needed(canaries: int, guesses: int, right: int, error: float, mu: float) -> float:
    """Return the least ``R_0 + H_0`` that a probability ``error`` of at least ``right`` right guesses would need.

    More than ``guesses / canaries`` is impossible: mu is refuted.
    """
    r = error * right / canaries
    h = error * (guesses - right) / canaries
    for count in range(right - 1, -1, -1):
        if r >= 1:
            return np.inf
        # f(1 - r) of the Gaussian trade-off curve.
        least = max(h, float(ndtr(ndtri(r) - mu)))
        r += count / (guesses - count) * (least - h)
        h = least
    return r + h


def _description(canaries: int, clip: float, noise: str) -> str:
    return f"one run, {canaries} canaries, B = {clip:g}, {noise} noise"


def _records(size: int, clip: float) -> Records:
    """Return canaries of one coefficient each, first real, then imaginary ones, and a record that contributes zero."""
    pixels = size * size
    images = torch.zeros(2 * pixels + 1, CLASSES, pixels, dtype=torch.complex64)
    place = torch.arange(pixels)
    length = EXCESS * clip * 2**0.5
    for image, sign in enumerate((1, -1)):
        images[place, image, place] = torch.tensor(sign * length, dtype=images.dtype)
        images[pixels + place, image, place] = torch.tensor(1j * sign * length, dtype=images.dtype)
    images[-1] = torch.nan
    return Records(images.view(-1, CLASSES, size, size), torch.arange(CLASSES))


def _direction(model: torch.nn.Module, layout: Layout, records: Records, record: int) -> np.ndarray:
    gradient = patient_gradient(model, layout, records, record)
    return gradient / float(np.linalg.norm(gradient))
