r"""Rate at which an informed attacker identifies one of several candidates from all messages of a run.

The attacker knows the data of all other persons. For the attacked person, the attacker has the data of K candidates,
one of whom took part. The attacker sees every message of every round, knows the weights, and names the candidate for
whom all messages together are most likely. With equal prior probabilities no attack is better. Everybody takes part in
every round. With gradients :math:`g_{c,r}` of candidate c in round r, clipped to norm B, and noise :math:`\sigma B`,
the log-likelihoods are jointly normal with covariance
:math:`G_{cd} = \sum_r g_{c,r} \cdot g_{d,r} / (\sigma B)^2`. The attack is therefore simulated from G alone, with any
number of trials. The gradients come from a run of the library without noise, in which every patient is a node.

The result is compared with the bound for every attack and all data (`zetadp.account.risk`), and with the worst
candidates, whose gradients are orthogonal and reach the clipping norm. For these, the attacker is right with
probability :math:`\int \phi(x - \mu) \Phi(x)^{K-1} dx`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np
import pandas as pd
import torch
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm
from torch import Tensor

from zetadp.accounting import gaussian
from zetadp.accounting.threat import NoiseSource
from zetadp.audit.inversion import whitened_kspace
from zetadp.audit.trainings import attacked_run, scratch_folder
from zetadp.base.epsilon import Target
from zetadp.base.randomness import Purpose, stream
from zetadp.base.runfolder import RunName
from zetadp.base.tables import Sheet, numbers_of
from zetadp.brain.backbone import Backbone
from zetadp.mri.kspace import to_kspace
from zetadp.phantom.public import simulate_public_patient
from zetadp.phantom.settings import CHANNELS
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.pretrained import starting_weights
from zetadp.training.records import LabelledItems

SEED = 43
"""Seed of patients, weights and trials."""
TRIALS = 20_000


def of_candidates(plan: Plan, patients: int) -> Plan:
    """Return a run's plan for this number of patients, without noise. Each patient is a node.

    Parameters
    ----------
    plan
        A plan in which all patients take part in every round.
    patients
        Number of patients.
    """
    return replace(
        plan,
        run=RunName(plan.run.network, "candidates", Target(math.inf), SEED),
        training=replace(plan.training, noise=NoiseSource.SEEDED),
        nodes=tuple(NodeConstants(f"patient-{number:03d}", 1, 1) for number in range(patients)),
        cohort="candidates",
        task={"name": "classification", "classes": len(CHANNELS)},
        partition={},
        threat="local",
        sums=None,
    )


def gradients(plan: Plan, backbone: Backbone | None, size: int) -> Tensor:
    """Return each patient's clipped gradient in each round, shape (round, patient, number), in units of the clip.

    Parameters
    ----------
    plan
        Result of `of_candidates`. All images of a patient are in every gradient.
    backbone
        The public backbone, for networks that take its features or start from it.
    size
        Side of the images.
    """
    n_images, clip, n_patients = plan.training.images_per_patient, plan.training.clip, len(plan.nodes)
    slices = n_images // len(CHANNELS)
    flat = torch.from_numpy(_patients(n_patients, slices, size)).double().flatten(0, 2)
    inputs = whitened_kspace(flat).to(torch.complex64).reshape(n_patients, n_images, 1, size, size)
    if backbone is not None and plan.network.domain == "features":
        kspace = to_kspace(_patients(n_patients, slices, size)).astype(np.complex64)
        inputs = torch.from_numpy(backbone.record_features(kspace.reshape(n_patients, n_images, size, size)))
    labels = torch.arange(len(CHANNELS)).repeat_interleave(slices).repeat(n_patients)
    messages: list[Tensor] = []
    records, start = LabelledItems(inputs.flatten(0, 1), labels), starting_weights(plan.network, backbone)
    with scratch_folder() as folder:
        attacked_run(
            plan, records, folder, start=start, after_round=lambda _, sent: messages.append(sent.clone() / clip)
        )
    return torch.stack(messages)


@lru_cache(maxsize=1)
def _patients(count: int, slices: int, size: int) -> np.ndarray:
    """Return the images of patients, shape (patient, sequence, slice, row, column)."""
    return np.stack([simulate_public_patient(SEED, number, slices, size) for number in range(count)])


def inner_products(values: Tensor) -> np.ndarray:
    """Return inner products of patients' gradients, mean over rounds, shape (patient, patient)."""
    values = values.double()
    return np.asarray(torch.einsum("rad,rbd->ab", values, values).numpy() / len(values))


def identification_rate(inner: np.ndarray, mu: float, candidates: int, random: np.random.Generator) -> float:
    """Return the share in % of `TRIALS` independent trials in which the attacker names the right candidate.

    Parameters
    ----------
    inner
        Result of `inner_products`, in units of the clipping norm.
    mu
        The privacy parameter mu of all rounds together.
    candidates
        Number of candidates, drawn from the patients. Each of them is equally likely to be the participant.
    random
        Generator of all draws.
    """
    values, axes = np.linalg.eigh(mu**2 * inner)
    root = axes * np.sqrt(values.clip(min=0))
    noise = random.standard_normal((TRIALS, len(inner))) @ root.T
    chosen = random.permuted(np.tile(np.arange(len(inner)), (TRIALS, 1)), axis=1)[:, :candidates]
    # The right candidate has every position equally often, so that ties count as guesses.
    trial, right = np.arange(TRIALS)[:, None], np.arange(TRIALS) % candidates
    member = chosen[trial, right[:, None]]
    likelihoods = mu**2 * (inner[member, chosen] - np.diag(inner)[chosen] / 2) + noise[trial, chosen]
    return 100 * float((likelihoods.argmax(axis=1) == right).mean())


def worst_identification_rate(mu: float, candidates: int) -> float:
    """Return the share in % of right answers if gradients are orthogonal and reach the clipping norm."""
    value, _ = quad(lambda x: norm.pdf(x - mu) * ndtr(x) ** (candidates - 1), -10, 10 + mu, epsabs=1e-9, limit=200)
    return 100 * float(value)


def attack_candidates(
    network: str, inner: np.ndarray, epsilons: Sequence[float], candidates: Sequence[int], delta: float
) -> pd.DataFrame:
    """Attack one run, and return one row for each number of candidates and epsilon.

    Parameters
    ----------
    network
        Name of the network that was trained.
    inner
        Result of `inner_products`.
    epsilons, delta
        Guarantee of the whole run.
    candidates
        Numbers of candidates.
    """
    rows = []
    for number, epsilon in product(candidates, epsilons):
        mu = gaussian.mu(epsilon, delta)
        random = stream(SEED, Purpose.SAMPLING, number, round(1000 * epsilon))
        rows.append(
            {
                "network": network,
                "candidates": number,
                "epsilon": epsilon,
                "delta": delta,
                "named": identification_rate(inner, mu, number, random),
                "worst": worst_identification_rate(mu, number),
                "bound": 100 * (1 - gaussian.beta(1 / number, mu)),
                "norm": math.sqrt(np.diag(inner).mean()),
            }
        )
    return pd.DataFrame(rows)


def sheet(table: pd.DataFrame) -> Sheet:
    """Return the result of `attack_candidates` as a table for readers."""
    lines = [
        (row["network"], str(row["candidates"]), f"{row['epsilon']:g}", f"{100 / row['candidates']:g}",
         f"{row['named']:.1f}", f"{row['worst']:.1f}", f"{row['bound']:.1f}")
        for row in table.to_dict("records")
    ]  # fmt: skip
    notes = (
        "How often the right candidate is named, in %. Measured: the best attack, on patients simulated for this "
        "alone. Worst candidates: gradients at right angles that reach the clip. At most: for every attack and all "
        "data.",
        "All rounds of a training in which everybody takes part. ε: of the whole training, per patient, "
        f"at δ = {numbers_of(table, 'delta')}, against somebody who sees a node's messages and knows everybody "
        f"else. {TRIALS} trials: the standard error is at most {50 / math.sqrt(TRIALS):.1f}.",
    )
    columns = ("network", "candidates", "ε", "guessing", "measured", "worst candidates", "at most")
    return Sheet("The right one of several candidates", columns, tuple(lines), notes, names=1)
