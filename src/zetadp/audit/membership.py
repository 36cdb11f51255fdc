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

A claim bounds the power (true-positive rate) of every attack by a function of its false-positive rate; an attack whose
power is above that function, beyond chance, refutes the claim. The false-positive rates are fixed before the trials.
For a rate :math:`r` the threshold is the score of that trial without the patient which :math:`\lfloor r n \rfloor`
others exceed. Its true false-positive rate is then an order statistic of uniform numbers, Beta-distributed whatever the
distribution of the scores (ties only lower it), and its upper limit is that of Clopper and Pearson (1934,
doi:10.1093/biomet/26.4.404) for the alarms seen. Given the threshold, the alarms among the independent trials with the
patient are Binomial, and their limits are Clopper and Pearson's too. Every limit is taken at the false alarm divided by
the number of all limits (Bonferroni): points, arms and the two axes.
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
from zetadp.audit.membership_models import Arm, MembershipSettings, Models, arms, train_models
from zetadp.core.records import Records
from zetadp.epsilon import UNCLIPPED, rounded_up
from zetadp.federation.partition import node_name
from zetadp.nn.models import NetworkSettings
from zetadp.privacy import accounting
from zetadp.privacy.accounting import Mechanisms
from zetadp.privacy.exposure import Run, seen_by
from zetadp.randomness import Purpose, stream
from zetadp.validation import UserError, in_range

RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""False-positive rates at which every attack is judged; fixed before any trial."""


@dataclass(frozen=True)
class Claim:
    """Guarantee for one patient against one audience.

    Attributes
    ----------
    mechanisms
        All that the audience has seen of the patient's node, as the accountant takes it.
    delta
        The delta of the quoted epsilon.
    """

    mechanisms: Mechanisms
    delta: float

    @cached_property
    def epsilon(self) -> float:
        """The quoted epsilon."""
        return accounting.epsilon(self.mechanisms, self.delta)

    def power(self, rates: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return the largest power at each false-positive rate, by the trade-off curve: all that is claimed."""
        return 1 - np.array(accounting.trade_off(self.mechanisms, list(map(float, rates))))

    def power_by_epsilon(self, rates: Sequence[float] | np.ndarray) -> np.ndarray:
        r"""Return the looser bound of epsilon and delta alone: two lines that touch the trade-off curve.

        :math:`\min(1,\; e^\epsilon r + \delta,\; 1 - e^{-\epsilon} (1 - \delta - r))` (Kairouz, Oh and Viswanath 2015,
        arXiv:1311.0776).
        """
        rate = np.asarray(rates, dtype=float)
        if math.isinf(self.epsilon):
            return np.ones_like(rate)
        steep = math.exp(self.epsilon) * rate + self.delta
        flat = 1 - math.exp(-self.epsilon) * (1 - self.delta - rate)
        return np.minimum(1, np.minimum(steep, flat))


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
        Scores of independent trials without and with the patient; an alarm is a high score.
    arms
        Attacks that are judged together, this one included.
    rates
        False-positive rates, fixed before the trials.
    false_alarm
        Chance that any limit of any of the ``arms`` is wrong.

    Returns
    -------
    Table with one row a rate: ``fpr`` and ``tpr`` as measured; ``fpr_upper``, below which the true false-positive rate
    lies; ``lower``, above which the true power lies: the ROC passes above every point (``fpr_upper``, ``lower``); and
    ``upper``, below which the true power at this threshold lies.
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
        # A rate given in decimals must not lose an alarm to rounding: 0.29 * 100 is below 29.
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
    """Return the band with the claim's bound at each point of its lower edge, and whether the edge exceeds it."""
    allowed = claim.power(band["fpr_upper"].to_numpy())
    return band.assign(
        **{
            f"allowed_{audience}": allowed,
            f"allowed_{audience}_epsilon": claim.power_by_epsilon(band["fpr_upper"].to_numpy()),
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
        """Return whether the lower edge of the band is anywhere above what the audience's claim allows."""
        return bool(self.band[f"leaves_{audience}"].any())


def audit_membership(
    settings: MembershipSettings, network: NetworkSettings, records: Records, delta: float
) -> tuple[list[Attack], dict[str, Claim]]:
    """Train models in every arm, and attack them.

    Parameters
    ----------
    settings
        Training settings and number of models.
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
    """Return a run's claims about a patient of a node, against readers of its models and against the server."""
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
    """Return a message if attacks contradict the claims or fail themselves, else None."""
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
