"""Choose the settings for training the head on public features, on simulated hospitals.

    python -m benchmarks.head_selection

There are two simulated consortia of 11 hospitals, each with 484 + 266 patients. Every hospital has a scanner from the
public distribution. No network was trained on these patients, and no patient of a private cohort is used. All patients
take part in every round, every hospital adds its own noise, and the composition is exact and Gaussian. The gradient of
a head needs no network, so the descent is written with matrices; `zetadp` trains heads with the same descent. Writes
head_selection.csv.
"""

from __future__ import annotations

import argparse
import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from zetadp.base.storage import write_text
from zetadp.base.tensors import tensors_digest
from zetadp.mri.kspace import to_kspace, whiten
from zetadp.nn.backbone import Backbone, load_backbone
from zetadp.nn.models import SIGNAL_POWER, taper_factors
from zetadp.nn.settings import IMAGE
from zetadp.phantom.public import PublicSettings, simulate_public_patient
from zetadp.phantom.shapes import draw_shapes
from zetadp.privacy import gaussian
from zetadp.report.provenance import origin, seeds_shown
from zetadp.report.rendering import to_csv
from zetadp.tasks.brain_sequences import BrainSequences

ROOT = Path(__file__).parents[1]
SEEDS, HOSPITALS, TRAINED, ALL = (71, 72), 11, 484, 750
SHAPES = 502
"""Seed of the consortium whose brains are random shapes."""
ONE_PROTOCOL = (503, 504, 505)
"""Seeds of consortia with such brains whose hospitals all have the same scanner and protocol."""
GRID = ((2, 4, 8, 16, 64), (5, 20), (1.0, 3.0, 10.0), (0.3, 1.0))
"""Components, rounds, rates and clipping norms that are tried."""
DELTA = 1e-3
REPETITIONS = 3
"""Draws of the noise, from seeds 0, 1, ..."""
LABELS = np.repeat(np.arange(4), 20)


def declared(repetitions: int = REPETITIONS) -> tuple[str, str]:
    """Return cohorts and seeds of every comparison on these consortia."""
    cohorts = "; ".join(f"public consortium, {TRAINED} + {ALL - TRAINED} patients, seed {seed}" for seed in SEEDS)
    return cohorts, seeds_shown(range(repetitions))


def consortium(seed: int, backbone: Backbone, cache: Path, patients: int = ALL) -> np.ndarray:
    """Return the features of a consortium's first patients as real numbers, shape (patient, image, 2 * component)."""
    computed = cache / f"features-{seed}-{tensors_digest(backbone.tensors())[:12]}.npy"
    if computed.exists():
        return np.load(computed)[:patients]
    path = cache / f"consortium-{seed}.npy"
    if not path.exists():
        settings = PublicSettings(seed=seed, patients=ALL, hospitals=1 if seed in ONE_PROTOCOL else HOSPITALS)
        anatomy = draw_shapes if seed in (SHAPES, *ONE_PROTOCOL) else None
        images = np.stack([simulate_public_patient(settings, number, anatomy=anatomy) for number in range(ALL)])
        cache.mkdir(parents=True, exist_ok=True)
        np.save(path, images)
    images = np.load(path, mmap_mode="r")[:patients]
    found = np.stack([backbone.features(whiten(to_kspace(np.asarray(patient)))) for patient in images])
    features = found.reshape(patients, 80, -1).view(np.float32)
    if patients == ALL:
        np.save(computed, features)
    return features


def public_head(backbone: Backbone, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the public head as a real matrix, shape (2 * component, class), and its bias."""
    weight, bias = backbone.heads[components]
    pairs = torch.view_as_real(weight.conj().resolve_conj()).reshape(len(weight), -1)
    return pairs.T.numpy().copy(), bias.real.numpy().copy()


def accuracy(weight: np.ndarray, bias: np.ndarray, features: np.ndarray, decision: str = IMAGE) -> float:
    """Return the share of correctly classified images, in %."""
    scores = torch.from_numpy(features @ weight + bias)
    told = BrainSequences(slices=len(LABELS) // 4, decision=decision).probabilities(scores.flatten(0, 1))
    return 100 * float((told.argmax(dim=-1).numpy().reshape(-1, len(LABELS)) == LABELS).mean())


def trained(
    features: np.ndarray,
    start: tuple[np.ndarray, np.ndarray],
    *,
    rounds: int,
    rate: float,
    clip: float,
    epsilon: float,
    averaged: float,
    random: np.random.Generator,
    signal: float = math.inf,
    power: float = SIGNAL_POWER,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the last heads of a noisy descent, in which each hospital adds its own noise.

    Parameters
    ----------
    features
        Shape (patient, image, 2 * component), with equally many images of every class. Patient i is at hospital
        i modulo `HOSPITALS`.
    start
        The first head: weight and bias.
    rounds, rate, clip, epsilon, averaged
        Same as in the training settings of `zetadp`.
    random
        Generator of the noise.
    signal, power
        Same as in the rule for tapers of `zetadp`; without a signal there is no taper.
    """
    own = len(features) // HOSPITALS
    sigma = 0.0 if math.isinf(epsilon) else math.sqrt(rounds) / gaussian.mu(epsilon, DELTA)
    noise = sigma * math.sqrt(HOSPITALS) / (own * HOSPITALS * math.sqrt(rounds))
    factors = taper_factors(len(start[0]) // 2, noise / signal, power).repeat_interleave(2).numpy()
    of_bias = factors[0]
    features, weight, bias = features * factors, start[0] / factors[:, None], start[1] / of_bias
    one_hot = np.eye(4, dtype=np.float32).repeat(features.shape[1] // 4, axis=0)
    hospital = np.arange(len(features)) % HOSPITALS
    last = max(1, round(averaged * rounds))
    sums = [np.zeros_like(weight), np.zeros_like(bias)]
    for number in range(rounds):
        scores = features @ weight + bias * of_bias
        scores -= scores.max(axis=-1, keepdims=True)
        share = np.exp(scores)
        share /= share.sum(axis=-1, keepdims=True)
        error = share - one_hot
        of_weight = np.matmul(features.transpose(0, 2, 1), error) / features.shape[1]
        of_biases = error.mean(axis=1) * of_bias
        norms = np.sqrt((of_weight**2).sum(axis=(1, 2)) + (of_biases**2).sum(axis=1))
        kept = np.minimum(1, clip / np.maximum(norms, 1e-12))
        for value, gradients in ((weight, of_weight * kept[:, None, None]), (bias, of_biases * kept[:, None])):
            messages = np.stack([gradients[hospital == place].sum(axis=0) for place in range(HOSPITALS)])
            messages = messages + sigma * clip * random.standard_normal(messages.shape)
            value -= (rate * messages.mean(axis=0) / own).astype(np.float32)
        if number >= rounds - last:
            sums = [total + value for total, value in zip(sums, (weight, bias), strict=True)]
    return sums[0] / last * factors[:, None], sums[1] / last * of_bias


def arguments(description: str | None, table: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all comparisons on these consortia share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", type=Path, default=ROOT / "src/zetadp/data/backbone.safetensors")
    parser.add_argument("--cache", type=Path, default=Path("resources/head_selection"))
    parser.add_argument("--output", type=Path, default=Path(f"docs/results/{table}.csv"))
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="draws of the noise")
    return parser


def searched(
    backbone: Backbone,
    seeds: Sequence[int],
    settings: Sequence[Mapping[str, float]],
    given: Namespace,
    decision: str,
    epsilons: Sequence[float] = (math.inf, 8.0, 1.0),
) -> pd.DataFrame:
    """Try the public heads, and every setting at each epsilon, on consortia of these seeds.

    Parameters
    ----------
    backbone, seeds
        The features, and the consortia.
    settings
        Components and parameters of `trained`; all are averaged over the last half of the rounds.
    given
        Options as in `arguments`.
    decision
        Images that are classified together (`BrainSequences`).
    epsilons
        Targets of the guarantee.
    """
    cohorts = [consortium(seed, backbone, given.cache) for seed in seeds]
    splits = [np.random.default_rng(seed).permutation(ALL) for seed in seeds]
    rows = []

    def measure(components: int, epsilon: float, **how: float) -> list[float]:
        start = public_head(backbone, components)
        found = []
        for features, order in zip(cohorts, splits, strict=True):
            part = features[..., : 2 * components]
            for repetition in range(1 if math.isinf(epsilon) else given.repetitions):
                random = np.random.default_rng(repetition)
                head = trained(part[order[:TRAINED]], start, epsilon=epsilon, random=random, **how)
                found.append(accuracy(*head, part[order[TRAINED:]], decision))
        return found

    for components in sorted(backbone.heads):
        start = public_head(backbone, components)
        tested = [f[o[TRAINED:], :, : 2 * components] for f, o in zip(cohorts, splits, strict=True)]
        found = [accuracy(*start, test, decision) for test in tested]
        rows.append({"components": components, "rounds": 0, "epsilon": "public head", "mean": np.mean(found)})
        print(rows[-1], flush=True)
    for setting in settings:
        row = {**setting, "averaged": 0.5}
        for epsilon in epsilons:
            rows.append({**row, "epsilon": f"{epsilon:g}", "mean": np.mean(measure(epsilon=epsilon, **row))})
        print(row, [round(r["mean"], 2) for r in rows[-len(epsilons) :]], flush=True)
    return pd.DataFrame(rows)


def main() -> None:
    """Try every setting on both consortia and write the table."""
    given = arguments(__doc__, "head_selection").parse_args()
    torch.set_num_threads(2)
    settings = [dict(zip(("components", "rounds", "rate", "clip"), each, strict=True)) for each in product(*GRID)]
    table = searched(load_backbone(given.backbone), SEEDS, settings, given, IMAGE)
    write_text(given.output, to_csv(table, origin(*declared(given.repetitions)), float_format="%.4g"))
    best = table[table["epsilon"] == "1"].nlargest(5, "mean")
    print("\nbest at epsilon 1:\n", best.to_string(index=False))


if __name__ == "__main__":
    main()
