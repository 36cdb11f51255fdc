r"""Membership inference against finished models: the likelihood-ratio attack, patient by patient.

The attacker has a finished model and all data of every patient, and wants to know whether a given patient took part in
the training. The attacker trains shadow models with and without the patient, and fits a normal distribution to the
models' confidence in the patient's images for each case. The score is the ratio of the two likelihoods at the attacked
model's confidence (Carlini et al. 2022, arXiv:2112.03570, online attack with both variances). The confidence is
:math:`\log p_y - \log(1 - p_y)` for the true class y, averaged over all images of the patient: one patient, one score.

Trials. In every run, a fair coin decides for each candidate whether it takes part. A candidate that does not take part
contributes zero, because its gradient is not finite. The number of patients, the sampling probability, the divisor and
the nodes are therefore those of the neighbouring cohort of the claim. Runs share the settings and the starting weights,
which are public. They draw memberships, sampling and noise independently. Several patients of one run share its draws,
so they are not independent trials. Each attacked run is therefore *one* trial of *one* patient, the one that is most
exposed according to the shadow models alone. Given the shadow models, the trials are independent. Those without the
patient have one score distribution, those with the patient another. For any memberships of the others, the two differ
by one patient's contribution. The others' coins do not depend on the patient's, so a trade-off curve that bounds each
case also bounds the mixture. Shadow and attacked models are disjoint.

Test. A claim bounds the power (true-positive rate) of every attack by a function of its false-positive rate. An attack
refutes the claim if its power is significantly above that function. The false-positive rates are fixed before the
trials. For a rate :math:`r`, the threshold is the score of the trial without the patient that
:math:`\lfloor r n \rfloor` others exceed. The true false-positive rate at this threshold is an order statistic of
uniform numbers. It has a Beta distribution for every distribution of the scores (ties only lower it), and its upper
limit is that of Clopper and Pearson (1934, doi:10.1093/biomet/26.4.404) for the observed alarms. Given the threshold,
the alarms among the independent trials with the patient are Binomial, with limits of the same kind. Each limit has the
allowed error divided by the number of all limits (Bonferroni): points, arms and the two axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from zetadp.audit.detection import FALSE_ALARM, upper_limit
from zetadp.audit.membership_models import AttackedRuns, Models, arms, train_models
from zetadp.audit.settings import MembershipSettings
from zetadp.base.epsilon import UNCLIPPED, rounded_up
from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import UserError, in_range
from zetadp.core.records import LabelledItems
from zetadp.federation.partition import node_name
from zetadp.nn.models import NetworkSettings
from zetadp.privacy import accounting
from zetadp.privacy.accounting import Exposure
from zetadp.privacy.exposure import Run, seen_by

RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""False-positive rates at which every attack is judged. They are fixed before any trial."""


@dataclass(frozen=True)
class Claim:
    """Guarantee for one patient against one audience.

    Attributes
    ----------
    mechanisms
        Everything that the audience has seen of the patient's node, in the accountant's form.
    delta
        The delta of the quoted epsilon.
    """

    mechanisms: Exposure
    delta: float

    @cached_property
    def epsilon(self) -> float:
        """The quoted epsilon."""
        return accounting.epsilon(self.mechanisms, self.delta)

    def power(self, rates: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return the largest power at each false-positive rate by the trade-off curve, which is the full claim."""
        return 1 - np.array(accounting.trade_off(self.mechanisms, list(map(float, rates))))


def roc_band(
    scores_out: np.ndarray,
    scores_in: np.ndarray,
    *,
    arms: int,
    rates: Sequence[float] = RATES,
    false_alarm: float = FALSE_ALARM,
) -> pd.DataFrame:
    """Return an attack's ROC at fixed false-positive rates, with its confidence band.

    Parameters
    ----------
    scores_out, scores_in
        Scores of independent trials without and with the patient. A high score is an alarm.
    arms
        Number of attacks that are judged together, including this one.
    rates
        False-positive rates, fixed before the trials.
    false_alarm
        Chance that any limit of any of the ``arms`` is wrong.

    Returns
    -------
    Table with one row per rate: the measured ``fpr`` and ``tpr``; ``fpr_upper``, the upper limit of the false-positive
    rate; and ``lower`` and ``upper``, the limits of the power at this threshold. The ROC passes above every point
    (``fpr_upper``, ``lower``).
    """
    outs, ins = np.sort(np.asarray(scores_out, dtype=float))[::-1], np.asarray(scores_in, dtype=float)
    if not (len(outs) and len(ins) and np.isfinite(outs).all() and np.isfinite(ins).all()):
        raise ValueError(
            f"Expected finite scores of both kinds, found {len(outs)} without and {len(ins)} with the patient."
        )
    in_range(0, 1, false_alarm=false_alarm, least_rate=min(rates), largest_rate=max(rates))
    level = false_alarm / (2 * len(rates) * arms)
    rows = []
    for rate in rates:
        # Rounding must not lose an alarm: in floating point, 0.29 * 100 is below 29.
        alarms = min(math.floor(rate * len(outs) + 1e-9), len(outs) - 1)
        hits = int((ins > outs[alarms]).sum())
        rows.append(
            {
                "fpr": alarms / len(outs),
                "fpr_upper": upper_limit(alarms, len(outs), level),
                "tpr": hits / len(ins),
                "lower": 1 - upper_limit(len(ins) - hits, len(ins), level),
                "upper": upper_limit(hits, len(ins), level),
            }
        )
    return pd.DataFrame(rows)


def against(band: pd.DataFrame, audience: str, claim: Claim) -> pd.DataFrame:
    """Add to the band the claim's bound at each point of the lower edge, and whether the edge exceeds it."""
    allowed = claim.power(band["fpr_upper"].to_numpy())
    return band.assign(
        **{
            f"allowed_{audience}": allowed,
            f"leaves_{audience}": band["lower"].to_numpy() > allowed,
        }
    )


AUDIENCES = ("reader", "server")


@dataclass(frozen=True)
class Attack:
    """The result of attacking one arm.

    Attributes
    ----------
    arm
        Attacked model.
    patient
        Position of the attacked patient.
    scores_out, scores_in
        Scores of the trials without and with the patient.
    accuracy_members, accuracy_others
        Mean accuracy of the attacked models on patients that took part in the training, and on the other patients.
    band
        Result of `roc_band`, with the bounds of the private arm's claim against each audience.
    """

    arm: AttackedRuns
    patient: int
    scores_out: np.ndarray
    scores_in: np.ndarray
    accuracy_members: float
    accuracy_others: float
    band: pd.DataFrame

    def leaves(self, audience: str) -> bool:
        """Return whether the lower edge of the band exceeds the bound of the audience's claim anywhere."""
        return bool(self.band[f"leaves_{audience}"].any())


def audit_membership(
    settings: MembershipSettings, network: NetworkSettings, records: LabelledItems, delta: float
) -> tuple[list[Attack], dict[str, Claim]]:
    """Train models in every arm, and attack them.

    Parameters
    ----------
    settings
        Training settings and number of models.
    network
        The network. Every run starts from the same weights.
    records
        One record for each candidate.
    delta
        The delta of the claim.

    Returns
    -------
    attacks, claims
        One attack for each arm, and the claims of the private arm by audience, from the releases of the attacked
        patient's node in its ledgers.
    """
    kinds = arms(settings, delta)
    results: list[Attack] = []
    claims: dict[str, Claim] = {}
    for place, arm in enumerate(kinds):
        coins = stream(settings.seed, Purpose.SAMPLING, place)
        members = coins.random((settings.shadows + settings.trainings, settings.patients)) < 0.5
        models = train_models(arm, settings, network, records, members)
        shadow, attacked = models.part(slice(settings.shadows)), models.part(slice(settings.shadows, None))
        patient = most_exposed(shadow)
        if arm.private:
            claims = claims_of(attacked.exposure, node_name(patient // settings.population), delta)
        results.append(_attack(arm, shadow, attacked, patient, claims, len(kinds)))
    return results, claims


def claims_of(run: Run, node: str, delta: float) -> dict[str, Claim]:
    """Return a run's claims for a patient of a node, against readers of its models and against the server."""
    claims = {}
    for audience in ("reader", "server"):
        seen = seen_by(run, audience)
        assert seen is not None, "only `another node` may be missing"
        claims[audience] = Claim(seen[node], delta)
    return claims


def most_exposed(shadow: Models) -> int:
    """Return the patient for whom the confidence of shadow models with and without the patient differs most."""
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
        Shadow models. None of them is attacked.
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
    """Return a message if an attack refutes a claim, or if the attack on the unclipped arm fails; else None."""
    private = next(attack for attack in attacks if attack.arm.private)
    for audience in AUDIENCES:
        if private.leaves(audience):
            epsilon = f"epsilon {rounded_up(claims[audience].epsilon, 3)} at delta {claims[audience].delta:g}"
            return (
                f"Membership inference refutes the privacy claim: expected the arm {private.arm.name!r} within its "
                f"claim against the {audience} ({epsilon}), found more in {path}. Do not release models of this code: "
                "look for the fault in sampling, clipping, noise or accounting."
            )
    open_book = next(attack for attack in attacks if attack.arm.epsilon == UNCLIPPED)
    if not open_book.leaves("server"):
        return (
            f"Membership inference proves nothing here: expected the arm {open_book.arm.name!r} to leave the region of "
            f"the claim, found it inside in {path}. Raise audit.membership.trainings, shadows or overfitted."
        )
    return None


def _attack(
    arm: AttackedRuns, shadow: Models, attacked: Models, patient: int, claims: dict[str, Claim], kinds: int
) -> Attack:
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
    """Return mean and standard deviation of the confidence in a patient, for models with and without the patient."""
    values, inside = shadow.confidence[:, patient], shadow.members[:, patient]
    if min(inside.sum(), (~inside).sum()) < 2:
        raise UserError(
            f"Expected two shadow models with and two without each patient, found {inside.sum()} with and "
            f"{(~inside).sum()} without one. Raise audit.membership.shadows."
        )

    def fit(part: np.ndarray) -> tuple[float, float]:
        return float(part.mean()), max(float(part.std(ddof=1)), 1e-9)

    return fit(values[inside]), fit(values[~inside])
