r"""Membership inference against finished models: the likelihood-ratio attack, patient by patient.

The adversary holds a finished model and everything about every patient, and asks whether one given patient was in its
training. It trains shadow models with and without the patient, fits a normal distribution to the models' confidence in
the patient's images for each case, and takes the ratio of the two likelihoods at the attacked model's confidence as its
score (Carlini et al. 2022, arXiv:2112.03570, online attack with both variances). The confidence is
:math:`\log p_y - \log(1 - p_y)` for the true class y, averaged over all images of the patient: one patient, one score.

What counts as a trial, and why. Every training draws each candidate's membership by its own fair coin; one that is out
contributes zero, through the rule for gradients that are not finite, so that the number of patients, the sampling
probability, the divisor and the nodes are those of the neighbouring cohort of the claim. Trainings share the settings
and the starting weights, which are public, and draw memberships, sampling and noise independently. Several patients of
one training share its draws and are no independent trials; so each attacked training is *one* trial, of *one* patient:
the one that the shadow models, and they alone, show to be most exposed. Given the shadow models its trials are
independent: those without it have one score distribution, those with it another. For any memberships of the others the
two differ by one patient's contribution, and the others' coins do not depend on the patient's; a trade-off curve that
bounds each case bounds the mixture. Shadow and attacked models are disjoint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from zetadp.audit.membership_models import Arm, MembershipSettings, Models, arms, train_models
from zetadp.audit.roc import Claim, against, roc_band
from zetadp.core.records import Records
from zetadp.epsilon import UNCLIPPED, rounded_up
from zetadp.federation.partition import node_name
from zetadp.nn.models import NetworkSettings
from zetadp.privacy.exposure import Run, seen_by
from zetadp.randomness import Purpose, stream
from zetadp.validation import UserError

AUDIENCES = ("reader", "server")


@dataclass(frozen=True)
class Attack:
    """The result of attacking one arm.

    Attributes
    ----------
    arm
        What was attacked.
    patient
        Position of the patient that was looked for.
    scores_out, scores_in
        Scores of the trials without and with the patient.
    accuracy_members, accuracy_others
        Mean accuracy of the attacked models on patients that were in their training, and on those that were not.
    band
        What `roc_band` returned, against each audience of the private arm's claims.
    """

    arm: Arm
    patient: int
    scores_out: np.ndarray
    scores_in: np.ndarray
    accuracy_members: float
    accuracy_others: float
    band: pd.DataFrame

    def leaves(self, audience: str) -> bool:
        """Tell whether the lower edge of the band is anywhere above what the audience's claim allows."""
        return bool(self.band[f"leaves_{audience}"].any())


def audit_membership(
    settings: MembershipSettings, network: NetworkSettings, records: Records, delta: float
) -> tuple[list[Attack], dict[str, Claim]]:
    """Train, and attack what was trained, in every arm.

    Parameters
    ----------
    settings
        What is trained, and how often.
    network
        The network; every training starts from the same weights.
    records
        One record for each candidate.
    delta
        The delta of the claim.

    Returns
    -------
    attacks, claims
        One attack for each arm; and the claims of the private arm by audience, from what its ledgers recorded of the
        attacked patient's node.
    """
    kinds = arms(settings, delta)
    results: list[Attack] = []
    claims: dict[str, Claim] = {}
    for place, arm in enumerate(kinds):
        coins = stream(settings.seed, Purpose.SAMPLING, place)
        members = coins.random((settings.shadows + settings.trainings, settings.patients)) < 0.5
        shadow, attacked = train_models(arm, settings, network, records, members).split(settings.shadows)
        patient = most_exposed(shadow)
        if arm.private:
            claims = claims_of(attacked.exposure, node_name(patient // settings.population), delta)
        results.append(_attack(arm, shadow, attacked, patient, claims, len(kinds)))
    return results, claims


def claims_of(run: Run, node: str, delta: float) -> dict[str, Claim]:
    """Return what a run claims of a patient of a node, to readers of its models and to the server."""
    claims = {}
    for audience in ("reader", "server"):
        seen = seen_by(run, dict.fromkeys(run.nodes, 1.0), audience)
        assert seen is not None, "only `another node` may be missing"
        claims[audience] = Claim(seen[node], delta)
    return claims


def most_exposed(shadow: Models) -> int:
    """Return the patient whose confidence differs most between shadow models with and without it, in deviations."""
    separation = []
    for patient in range(shadow.members.shape[1]):
        inside, outside = _fits(shadow, patient)
        separation.append(abs(inside[0] - outside[0]) / math.hypot(inside[1], outside[1]))
    return int(np.argmax(separation))


def likelihood_ratios(shadow: Models, confidence: np.ndarray, patient: int) -> np.ndarray:
    """Return the log-likelihood ratio, in against out, of attacked models' confidence in one patient.

    Parameters
    ----------
    shadow
        Shadow models, none of which is attacked.
    confidence
        Confidence of the attacked models, shape (training,).
    patient
        Position of the patient.
    """
    inside, outside = _fits(shadow, patient)

    def log_density(fit: tuple[float, float]) -> np.ndarray:
        return np.asarray(-(((confidence - fit[0]) / fit[1]) ** 2) / 2 - math.log(fit[1]))

    return np.asarray(log_density(inside) - log_density(outside))


def refutation(attacks: Sequence[Attack], claims: dict[str, Claim], path: Path) -> str | None:
    """Return what the attacks say against the claims, or against themselves; None where all is as it should be."""
    private = next(attack for attack in attacks if attack.arm.private)
    for audience in AUDIENCES:
        if private.leaves(audience):
            epsilon = f"epsilon {rounded_up(claims[audience].epsilon, 3)} at delta {claims[audience].delta:g}"
            return (
                f"Membership inference refutes the privacy claim: expected the arm {private.arm.name!r} within what "
                f"its {audience} is promised ({epsilon}), found more in {path}. Do not release models of this code: "
                "look for the fault in sampling, clipping, noise or accounting."
            )
    open_book = next(attack for attack in attacks if attack.arm.epsilon == UNCLIPPED)
    if not open_book.leaves("server"):
        return (
            f"Membership inference proves nothing here: expected the arm {open_book.arm.name!r} to leave the region of "
            f"the claim, found it inside in {path}. Raise audit.membership.trainings, shadows or overfitted."
        )
    return None


def _attack(arm: Arm, shadow: Models, attacked: Models, patient: int, claims: dict[str, Claim], kinds: int) -> Attack:
    """Score every attacked model for one patient and judge the scores."""
    scores = likelihood_ratios(shadow, attacked.confidence[:, patient], patient)
    inside = attacked.members[:, patient]
    band = roc_band(scores[~inside], scores[inside], arms=kinds)
    for audience, claim in claims.items():
        band = against(band, audience, claim)
    return Attack(
        arm=arm,
        patient=patient,
        scores_out=scores[~inside],
        scores_in=scores[inside],
        accuracy_members=float(attacked.accuracy[attacked.members].mean()),
        accuracy_others=float(attacked.accuracy[~attacked.members].mean()),
        band=band,
    )


def _fits(shadow: Models, patient: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return mean and standard deviation of the confidence in a patient, in models with it and without it."""
    values, inside = shadow.confidence[:, patient], shadow.members[:, patient]
    if min(inside.sum(), (~inside).sum()) < 2:
        raise UserError(
            f"Expected two shadow models with and two without each patient, found {inside.sum()} with and "
            f"{(~inside).sum()} without one. Raise audit.membership.shadows."
        )

    def fit(part: np.ndarray) -> tuple[float, float]:
        return float(part.mean()), max(float(part.std(ddof=1)), 1e-9)

    return fit(values[inside]), fit(values[~inside])
