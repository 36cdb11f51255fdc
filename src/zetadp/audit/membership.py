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
so they are not independent trials. Each attacked run is therefore *one* trial of *one* patient: the patient who is most
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

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import torch
from torch import nn

from zetadp.account.book import recorded_runs
from zetadp.account.exposure import Run, seen_by
from zetadp.accounting.calibration import noise_for_epsilon
from zetadp.accounting.threat import Audience, NoiseSource
from zetadp.audit.detection import FALSE_ALARM, Claim, Errors
from zetadp.audit.settings import NODES, MembershipSettings
from zetadp.audit.trainings import attacked_run, scratch_folder
from zetadp.base.epsilon import Target, rounded_up
from zetadp.base.logs import PROGRESS
from zetadp.base.randomness import Purpose, stream
from zetadp.base.runfolder import RunFolder, RunName
from zetadp.base.validation import UserError, in_range
from zetadp.nn.models import NetworkSettings
from zetadp.training.evaluation import outputs_of
from zetadp.training.partition import node_name
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.records import LabelledItems
from zetadp.training.settings import OptimiserSettings, TrainingSettings

progress = logging.getLogger(PROGRESS)

RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""False-positive rates at which every attack is evaluated. They are fixed before any trial."""
AUDIENCES: tuple[Audience, ...] = ("reader", "server")


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
        Releases in the ledger of the first model; all follow from the same plan.
    """

    members: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    exposure: Run

    def part(self, runs: slice) -> Models:
        """Return the models of a range of runs."""
        return Models(self.members[runs], self.confidence[runs], self.accuracy[runs], self.exposure)


def arms(
    settings: MembershipSettings, network: NetworkSettings, records: LabelledItems, delta: float
) -> dict[str, Plan]:
    """Return plans by arm: private training, the same without noise, and overfitted training without clipping."""
    sigma = noise_for_epsilon(settings.epsilon, delta, settings.sampling_probability, settings.rounds)
    size = settings.population

    def plan(target: Target, rounds: int, noise_multiplier: float = 0.0) -> Plan:
        constants = (size, settings.sampling_probability * size, noise_multiplier)
        return Plan(
            run=RunName(network.family, "federated", target, settings.seed),
            network=network,
            training=TrainingSettings(
                rounds=rounds,
                images_per_patient=len(records.inputs) // settings.patients,
                optimiser=OptimiserSettings(learning_rate=settings.learning_rate),
                noise=NoiseSource(settings.noise),
            ),
            nodes=tuple(NodeConstants(node_name(node), *constants) for node in range(NODES)),
            task={"name": "classification", "classes": int(records.targets.max()) + 1},
        )

    return {
        f"private, epsilon {settings.epsilon:g}": plan(Target(settings.epsilon), settings.rounds, sigma),
        "clipped, no noise": plan(Target(math.inf), settings.rounds),
        "unclipped, overfitted": plan(Target(math.inf, clipped=False), settings.rounds * settings.overfitted),
    }


def train_models(arm: str, plan: Plan, records: LabelledItems, members: np.ndarray) -> Models:
    """Train one model for each row of ``members``, shape (run, patient), and return the models' outputs."""
    n_images = plan.training.images_per_patient
    measurements: list[tuple[np.ndarray, np.ndarray]] = []
    for number, row in enumerate(members):
        # The gradient of a patient that does not take part is not finite, so the patient contributes zero.
        inputs = records.inputs.clone()
        inputs[torch.from_numpy(np.repeat(~row, n_images)).to(inputs.device)] = math.nan
        # Runs with different numbers draw independently; the equal seed gives equal starting weights.
        numbered, attacked_records = replace(plan, cohort=f"attacked-{number}"), replace(records, inputs=inputs)
        with scratch_folder() as folder:
            model = attacked_run(numbered, attacked_records, folder).model
            if number == 0:
                (exposure,) = recorded_runs(RunFolder(folder).ledger)
        measurements.append(_measure(model, records, n_images))
        if (number + 1) % 100 == 0:
            progress.info("%s: %d of %d trainings", arm, number + 1, len(members))
    confidence, accuracy = (np.stack(part) for part in zip(*measurements, strict=True))
    if not np.isfinite(confidence).all():
        raise UserError(f"Models of the arm {arm!r} diverged. Lower audit.membership.learning_rate or overfitted.")
    return Models(members, confidence, accuracy, exposure)


def roc_band(
    scores_out: np.ndarray,
    scores_in: np.ndarray,
    *,
    arms: int,
    claims: Mapping[str, Claim] = MappingProxyType({}),
    rates: Sequence[float] = RATES,
    false_alarm: float = FALSE_ALARM,
) -> pd.DataFrame:
    """Return an attack's ROC at fixed false-positive rates, with its confidence band.

    Parameters
    ----------
    scores_out, scores_in
        Scores of independent trials without and with the patient. A high score is an alarm.
    arms
        Number of attacks that are evaluated together, including this one.
    claims
        Claims to compare with the lower edge of the band, by audience.
    rates
        False-positive rates, fixed before the trials.
    false_alarm
        Chance that any limit of any of the ``arms`` is wrong.

    Returns
    -------
    Table with one row per rate: the measured ``fpr`` and ``tpr``; ``fpr_upper``, the upper limit of the false-positive
    rate; and ``lower`` and ``upper``, the limits of the power at this threshold. The ROC passes above every point
    (``fpr_upper``, ``lower``). For each audience ``allowed_NAME`` is the power that its claim allows at this point, and
    ``leaves_NAME`` whether ``lower`` exceeds it.
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
        errors = Errors(alarms, len(ins) - hits, len(outs), len(ins), 1 - 2 * level)
        power = {"tpr": hits / len(ins), "lower": 1 - errors.beta.upper, "upper": 1 - errors.beta.lower}
        rows.append({"fpr": alarms / len(outs), "fpr_upper": errors.alpha.upper, **power})
    band = pd.DataFrame(rows)
    for audience, claim in claims.items():
        band[f"allowed_{audience}"] = claim.power(band["fpr_upper"].to_numpy())
        band[f"leaves_{audience}"] = band["lower"] > band[f"allowed_{audience}"]
    return band


@dataclass(frozen=True)
class Attack:
    """The result of attacking one arm.

    Attributes
    ----------
    arm, target
        Name of the arm, and the target of its runs.
    patient
        Position of the attacked patient.
    scores_out, scores_in
        Scores of the trials without and with the patient.
    accuracy_members, accuracy_others
        Mean accuracy of the attacked models on patients that took part in the training, and on the other patients.
    band
        Result of `roc_band`, against the private arm's claim for each audience.
    """

    arm: str
    target: Target
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
    plans = arms(settings, network, records, delta)
    results: list[Attack] = []
    claims: dict[str, Claim] = {}
    for index, (arm, plan) in enumerate(plans.items()):
        coins = stream(settings.seed, Purpose.SAMPLING, index)
        members = coins.random((settings.shadows + settings.trainings, settings.patients)) < 0.5
        models = train_models(arm, plan, records, members)
        shadow, attacked = models.part(slice(settings.shadows)), models.part(slice(settings.shadows, None))
        patient = most_exposed(shadow)
        for audience in AUDIENCES if not claims else ():  # the private arm comes first
            exposures = seen_by(attacked.exposure, audience)
            assert exposures is not None, "only `another node` may be missing"
            claims[audience] = Claim(exposures[node_name(patient // settings.population)], delta)
        scores = likelihood_ratios(shadow, attacked.confidence[:, patient], patient)
        inside = attacked.members[:, patient]
        band = roc_band(scores[~inside], scores[inside], arms=len(plans), claims=claims)
        of_members, of_others = (
            float(attacked.accuracy[mask].mean()) for mask in (attacked.members, ~attacked.members)
        )
        both = scores[~inside], scores[inside]
        results.append(Attack(arm, plan.target, patient, *both, of_members, of_others, band))
    return results, claims


def most_exposed(shadow: Models) -> int:
    """Return the patient for whom the confidence of shadow models with and without the patient differs most."""
    fits = [_fits(shadow, patient) for patient in range(shadow.members.shape[1])]
    separation = [abs(inside[0] - outside[0]) / math.hypot(inside[1], outside[1]) for inside, outside in fits]
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
    private = next(attack for attack in attacks if attack.target.private)
    for audience in AUDIENCES:
        if private.leaves(audience):
            epsilon = f"epsilon {rounded_up(claims[audience].epsilon, 3)} at delta {claims[audience].delta:g}"
            return (
                f"Membership inference refutes the privacy claim: expected the arm {private.arm!r} within its "
                f"claim against the {audience} ({epsilon}), found more in {path}. Do not release models of this code: "
                "look for the fault in sampling, clipping, noise or accounting."
            )
    open_book = next(attack for attack in attacks if not attack.target.clipped)
    if not open_book.leaves("server"):
        return (
            f"Membership inference proves nothing here: expected the arm {open_book.arm!r} to leave the region of "
            f"the claim, found it inside in {path}. Raise audit.membership.trainings, shadows or overfitted."
        )
    return None


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


def _measure(model: nn.Module, records: LabelledItems, n_images: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a model's confidence and accuracy on each patient."""
    scores = outputs_of(model, records.inputs).double()
    labels = records.targets[:, None]
    true = scores.gather(1, labels)[:, 0]
    # From the scores, not from the probabilities, which round to one if a model is certain.
    odds = true - scores.scatter(1, labels, -math.inf).logsumexp(dim=1)
    right = (scores.argmax(dim=1) == labels[:, 0]).double()
    return odds.view(-1, n_images).mean(dim=1).cpu().numpy(), right.view(-1, n_images).mean(dim=1).cpu().numpy()
