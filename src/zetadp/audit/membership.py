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

import logging
import math
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.audit.quiet import quiet_trainings
from zetadp.audit.roc import Claim, against, roc_band
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.settings import OptimiserSettings, Performance, TrainingSettings
from zetadp.core.training import Holding, TrainingData, TrainingFiles, train
from zetadp.epsilon import UNCLIPPED, rounded_up
from zetadp.evaluation import class_scores
from zetadp.federation.node import Records
from zetadp.federation.partition import node_name
from zetadp.privacy.calibration import noise_for_epsilon
from zetadp.privacy.exposure import recorded_runs, seen_by
from zetadp.randomness import Purpose, stream
from zetadp.validation import UserError, in_range, one_of, positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from torch import nn

    from zetadp.nn.models import NetworkSettings
    from zetadp.privacy.exposure import Run

logger = logging.getLogger(__name__)

AUDIENCES = ("reader", "server")
_IMAGES_AT_ONCE = 1024


@dataclass(frozen=True)
class MembershipSettings:
    """What is trained, and how often, to attack it.

    Attributes
    ----------
    epsilon
        Target of the private arm, against the server.
    patients, nodes
        Candidates, each in a training with probability one half, and the nodes that hold them in equal numbers.
    slices, size
        Images of each sequence, and their side; of use to whoever makes the patients.
    sampling_probability
        Chance of a patient to be drawn in a round.
    rounds
        Rounds of a training.
    overfitted
        The unclipped arm trains this many times as long.
    learning_rate, clip
        Learning rate of the server's optimiser, and clipping norm.
    shadows
        Shadow models of each arm.
    trainings
        Attacked models of each arm: as many trials.
    seed
        Seed of everything that is not noise from the operating system.
    noise
        As in `TrainingSettings`.
    """

    epsilon: float = 8.0
    patients: int = 8
    nodes: int = 2
    slices: int = 4
    size: int = 16
    sampling_probability: float = 0.5
    rounds: int = 10
    overfitted: int = 3
    learning_rate: float = 0.05
    clip: float = 1.0
    shadows: int = 100
    trainings: int = 400
    seed: int = 0
    noise: str = "seeded"

    def __post_init__(self) -> None:
        """Check every setting."""
        positive(epsilon=self.epsilon, nodes=self.nodes, rounds=self.rounds, overfitted=self.overfitted)
        positive(sampling_probability=self.sampling_probability, learning_rate=self.learning_rate, clip=self.clip)
        positive(slices=self.slices, size=self.size)
        in_range(0, 1, sampling_probability=self.sampling_probability)
        in_range(16, math.inf, shadows=self.shadows, trainings=self.trainings)
        one_of(("seeded", "os"), noise=self.noise)
        if self.patients < self.nodes or self.patients % self.nodes:
            msg = f"Expected the same number of patients at each of {self.nodes} nodes, found {self.patients} patients."
            raise ValueError(msg)

    @property
    def population(self) -> int:
        """Patients of one node, N."""
        return self.patients // self.nodes


@dataclass(frozen=True)
class Arm:
    """One kind of training that is attacked.

    Attributes
    ----------
    name
        What the arm is called in tables.
    epsilon
        As in `RunName`: a number, ``inf`` or ``unclipped``.
    rounds
        Rounds of a training.
    noise_multiplier
        sigma; zero adds no noise.
    """

    name: str
    epsilon: str
    rounds: int
    noise_multiplier: float = 0.0

    @property
    def private(self) -> bool:
        """Whether anything is claimed of its models."""
        return self.noise_multiplier > 0


@dataclass(frozen=True)
class Models:
    """What a set of finished models shows, and who was in them.

    Attributes
    ----------
    members
        Whether each patient was in each training, shape (training, patient).
    confidence
        Mean log odds of the true class over a patient's images, shape (training, patient).
    accuracy
        Share of a patient's images that the model tells right, shape (training, patient).
    exposure
        What the ledgers of the trainings recorded, which was the same for all.
    """

    members: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    exposure: Run

    def split(self, first: int) -> tuple[Models, Models]:
        """Return the first trainings, and the rest."""
        return self._part(slice(first)), self._part(slice(first, None))

    def _part(self, part: slice) -> Models:
        return Models(self.members[part], self.confidence[part], self.accuracy[part], self.exposure)


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


def arms(settings: MembershipSettings, delta: float) -> list[Arm]:
    """Return what is attacked: a private arm, the same without noise, and one neither clipped nor stopped in time."""
    sigma = noise_for_epsilon(settings.epsilon, delta, settings.sampling_probability, settings.rounds)
    return [
        Arm(f"private, epsilon {settings.epsilon:g}", f"{settings.epsilon:g}", settings.rounds, sigma),
        Arm("clipped, no noise", "inf", settings.rounds),
        Arm("unclipped, overfitted", UNCLIPPED, settings.rounds * settings.overfitted),
    ]


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


def train_models(
    arm: Arm, settings: MembershipSettings, network: NetworkSettings, records: Records, members: np.ndarray
) -> Models:
    """Train one model for each row of ``members``, shape (training, patient), and record what each of them shows."""
    if members.shape[1] != settings.patients or len(records.images) != settings.patients:
        found = f"{len(records.images)} records and memberships of {members.shape[1]}"
        msg = f"Expected records and memberships of {settings.patients} patients, found {found}."
        raise ValueError(msg)
    # What stands in for a patient that is out: its gradient is not finite, so it contributes zero.
    nobody = torch.full_like(records.images[:1], math.nan)
    with_nobody = Records(torch.cat([records.images, nobody]), records.labels)
    training = TrainingSettings(
        rounds=arm.rounds,
        images_per_patient=len(records.labels),
        optimiser=OptimiserSettings(learning_rate=settings.learning_rate),
        clip=settings.clip,
        noise=settings.noise,
    )
    shown: list[tuple[np.ndarray, np.ndarray]] = []
    exposures: list[Run] = []
    reported = time.monotonic()
    with quiet_trainings():
        for number, row in enumerate(members):
            model, run = _train_one(arm, settings, network, training, with_nobody, row, number)
            shown.append(_shown(model, records))
            exposures.append(run)
            if time.monotonic() - reported > 10:
                reported = time.monotonic()
                logger.info("%s: %d of %d trainings", arm.name, number + 1, len(members))
    if len({_mechanisms(run) for run in exposures}) != 1:
        msg = f"Expected every training of the arm {arm.name!r} to record the same releases."
        raise RuntimeError(msg)
    confidence, accuracy = (np.stack(part) for part in zip(*shown, strict=True))
    if not np.isfinite(confidence).all():
        msg = f"Models of the arm {arm.name!r} diverged. Lower audit.membership.learning_rate or overfitted."
        raise UserError(msg)
    return Models(members, confidence, accuracy, exposures[0])


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
        msg = (
            f"Expected two shadow models with and two without each patient, found {inside.sum()} with and "
            f"{(~inside).sum()} without one. Raise audit.membership.shadows."
        )
        raise UserError(msg)

    def fit(part: np.ndarray) -> tuple[float, float]:
        return float(part.mean()), max(float(part.std(ddof=1)), 1e-9)

    return fit(values[inside]), fit(values[~inside])


def _train_one(
    arm: Arm,
    settings: MembershipSettings,
    network: NetworkSettings,
    training: TrainingSettings,
    records: Records,
    members: np.ndarray,
    number: int,
) -> tuple[nn.Module, Run]:
    """Train one model in a folder of its own, and return it with what its ledger recorded."""
    nobody, size = len(members), settings.population
    expected = settings.sampling_probability * size
    plan = Plan(
        run=RunName(network.family, "federated", arm.epsilon, settings.seed),
        network=network,
        training=training,
        nodes=tuple(
            NodeConstants(node_name(node), size, expected, arm.noise_multiplier) for node in range(settings.nodes)
        ),
        # Trainings of other numbers draw independently; the seed alone would only set the starting weights.
        cohort=f"attacked for membership, training {number}",
    )
    holdings = [
        Holding([(i if members[i] else nobody,) for i in range(node * size, (node + 1) * size)])
        for node in range(settings.nodes)
    ]
    with TemporaryDirectory(prefix="zetadp-membership-", dir=_scratch()) as folder:
        ledger = Path(folder) / "ledger.jsonl"
        trained = train(
            plan,
            TrainingData(records, holdings),
            TrainingFiles(ledger, Path(folder) / "checkpoint.safetensors"),
            performance=Performance(evaluate_every=arm.rounds, checkpoint_seconds=1e9, chunk=_IMAGES_AT_ONCE),
        )
        (run,) = recorded_runs(ledger)
    return trained.model, run


def _scratch() -> Path | None:
    """Return a folder in memory for ledgers that are thrown away: on a disk, syncing them takes most of the time."""
    memory = Path("/dev/shm")  # noqa: S108  (the folder made in it has a name of its own and is the user's alone)
    return memory if os.access(memory, os.W_OK) else None


def _shown(model: nn.Module, records: Records) -> tuple[np.ndarray, np.ndarray]:
    """Return a model's confidence and accuracy on each patient."""
    patients = len(records.images)
    scores = class_scores(model, records.images.flatten(0, 1)).double()
    labels = records.labels.repeat(patients)[:, None]
    true = scores.gather(1, labels)[:, 0]
    # From the scores, not from the probabilities, which round to one where a model is sure.
    odds = true - scores.scatter(1, labels, -math.inf).logsumexp(dim=1)
    right = (scores.argmax(dim=1) == labels[:, 0]).double()
    return odds.view(patients, -1).mean(dim=1).cpu().numpy(), right.view(patients, -1).mean(dim=1).cpu().numpy()


def _mechanisms(run: Run) -> tuple[object, ...]:
    """Return all that the claims depend on, to compare."""
    nodes = {name: (tuple(sorted(Counter(h.mechanisms).items())), h.releases) for name, h in run.nodes.items()}
    return run.declared_rounds, tuple(sorted(nodes.items()))
