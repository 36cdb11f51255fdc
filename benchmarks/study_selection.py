"""Choose and measure the training and the answers of heads of domain study, on simulated hospitals.

    python -m benchmarks.study_selection taper
    python -m benchmarks.study_selection keen
    python -m benchmarks.study_selection both_ways

The first two commands use public consortia, on whose patients no network was trained, with no patient of a private
cohort. Their brains are random shapes, which differ from most patients that the public head has learnt from. In one of
them every hospital has a separate scanner. In each of the others all hospitals share one protocol, so that all their
patients differ from the public ones in the same way.

*taper* tries the constants by which the taper follows from the noise: the signal of the first component, and how fast
it falls; the images of a slice are classified together. It writes taper.csv. *keen* tries how much a patient
prefers the better of a trained head and the public head (`BrainSequences.combine_scores`), for patients of
the consortium itself and of others. It writes keen.csv. *both_ways* measures what was chosen on cohorts that the choice
never saw: on other patients of the private cohort, and on patients of cohorts that took no part. It writes
both_ways.csv.

All patients take part in every round, every hospital adds its own noise, and the composition is exact and Gaussian. The
gradient of a head needs no network, so the descent is written with matrices; `zetadp` trains heads with the same
descent.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.shares import SHOWN, patient_accuracy
from zetadp.accounting import gaussian
from zetadp.base.storage import write_text
from zetadp.base.tensors import tensors_digest
from zetadp.brain import BrainSequences
from zetadp.brain.backbone import Backbone, load_backbone, shipped_backbone
from zetadp.brain.task import IMAGE, KEEN, SLICE
from zetadp.mri.kspace import to_kspace
from zetadp.mri.slicing import centre_slices, resize_area
from zetadp.nn.heads import to_real_weights
from zetadp.nn.models import SIGNAL_POWER, taper_factors
from zetadp.nn.settings import STUDY, NetworkSettings
from zetadp.phantom.cohort import simulate_patient
from zetadp.phantom.public import simulate_public_patient
from zetadp.phantom.public_brains import draw_anatomy, draw_shapes
from zetadp.phantom.settings import Simulated
from zetadp.report.provenance import origin, seeds_shown
from zetadp.report.rendering import to_csv

ROOT = Path(__file__).parents[1]
HOSPITALS, TRAINED, ALL = 11, 484, 750
SHAPES = 502
"""Seed of the consortium whose brains are random shapes."""
ONE_PROTOCOL = (503, 504, 505)
"""Seeds of consortia with such brains whose hospitals all have the same scanner and protocol."""
SEEDS = (SHAPES, *ONE_PROTOCOL)
RULES = ((0.009, 3, 30), (0.0045, 3, 30), (0.018, 3, 30), (0.009, 2, 30), (0.009, 4, 30), (0.009, 3, 10))
"""Signal of the first component relative to one clipped contribution, power of its variance's fall, and rate."""
EPSILONS = (math.inf, 8.0, 3.0, 1.0, 0.3)
DELTA = 1e-3
REPETITIONS = {"taper": 3, "keen": 10, "both_ways": 10}
"""Draws of the noise, from seeds 0, 1, ..."""
CHOSEN_ON, BESIDE = (503,), (71,)
"""Seeds of the public consortia on which heads are trained, and of those that only measure them."""
# The seed of the drawn cohort is the hash of the commit that brought the shipped backbone, e9687733.
COHORTS = {
    name: Simulated(seed, population=population)
    for name, population, seed in (
        ("no atlas (the default)", "procedural", 2026),
        ("drawn", "drawn", 3915937587),
        ("standard", "standard", 2026),
        ("another vendor's scanners", "vendor", 3001),
        ("heavy lesions", "heavy", 3004),
        ("healthy brains", "healthy", 3002),
    )
}
PRIVATE, OTHERS = 2, 150
"""Number of these cohorts on which heads are trained, and of patients of each other cohort."""
KEENNESS = (1.0, 3.0, 10.0, 30.0, 1e6)
"""Values of `KEEN` that are tried; the last one takes one of the two heads."""
COMPONENTS, TRIED, DRAWS = 64, (1.0, 8.0), 2000
SETTINGS = {"rounds": 20, "rate": 30.0, "clip": 0.1, "averaged": 0.5, "signal": BrainSequences.signal}
"""Training of the default's head."""
KEYS = ["trained on", "measured on", "classified", "epsilon"]
TASK = BrainSequences(decision="image")


def consortium(seed: int, backbone: Backbone, cache: Path, patients: int = ALL) -> np.ndarray:
    """Return the features of a consortium's first patients as real numbers, shape (patient, image, 2 * component)."""
    computed = cache / f"features-{seed}-{patients}-{tensors_digest(backbone.tensors())[:12]}.npy"
    if not computed.exists():
        anatomy = draw_shapes if seed in (SHAPES, *ONE_PROTOCOL) else draw_anatomy
        features = []
        for number in range(patients):
            hospital = 0 if seed in ONE_PROTOCOL else number % HOSPITALS
            scanner = np.random.Generator(np.random.PCG64([seed, hospital, 1]))
            images = simulate_public_patient(seed, number, anatomy=anatomy, scanner=scanner)
            features.append(backbone.features(to_kspace(images)))
        cache.mkdir(parents=True, exist_ok=True)
        np.save(computed, np.stack(features).reshape(patients, 80, -1).view(np.float32))
    return np.load(computed)


def public_head(backbone: Backbone, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the public head as a real matrix, shape (2 * component, class), and its bias."""
    weight, bias = backbone.heads[components]
    return to_real_weights(weight).T.numpy().copy(), bias.real.numpy().copy()


def train_head(
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
    hospitals: int = HOSPITALS,
    shares: float = 1.0,
    labels: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the last heads of a noisy descent, in which each hospital adds noise.

    Parameters
    ----------
    features
        Shape (patient, image, 2 * component). Patient i is at hospital i modulo ``hospitals``.
    start
        The first head: weight and bias.
    rounds, rate, clip, epsilon, averaged
        Same as in the training settings of `zetadp`.
    random
        Generator of the noise.
    signal, power
        Same as in the rule for tapers of `zetadp`; without a signal the taper is omitted.
    hospitals
        Number of hospitals.
    shares
        Number of hospitals whose noise in a masked sum protects; 1 where each message is protected by its own noise.
    labels
        Class of each image of a patient; by default the images have equally many of each class, in order.
    """
    people = len(features)
    sigma = 0.0 if math.isinf(epsilon) else math.sqrt(rounds) / gaussian.mu(epsilon, DELTA) / math.sqrt(shares)
    noise = sigma * math.sqrt(hospitals) / (people * math.sqrt(rounds))
    factors = taper_factors(len(start[0]) // 2, noise / signal, power).repeat_interleave(2).numpy()
    of_bias = factors[0]
    features, weight, bias = features * factors, start[0] / factors[:, None], start[1] / of_bias
    labels = np.arange(4).repeat(features.shape[1] // 4) if labels is None else labels
    one_hot = np.eye(4, dtype=np.float32)[labels]
    hospital = np.arange(people) % hospitals
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
        shrinkage = np.minimum(1, clip / np.maximum(norms, 1e-12))
        for value, gradients in (
            (weight, of_weight * shrinkage[:, None, None]),
            (bias, of_biases * shrinkage[:, None]),
        ):
            messages = np.stack([gradients[hospital == index].sum(axis=0) for index in range(hospitals)])
            messages = messages + sigma * clip * random.standard_normal(messages.shape)
            value -= (rate * messages.sum(axis=0) / people).astype(np.float32)
        if number >= rounds - last:
            sums = [total + value for total, value in zip(sums, (weight, bias), strict=True)]
    return sums[0] / last * factors[:, None], sums[1] / last * of_bias


def score(features: np.ndarray, head: tuple[np.ndarray, np.ndarray]) -> torch.Tensor:
    """Return the scores of a head, shape (patient, image, class)."""
    return torch.from_numpy(features @ head[0] + head[1])


def accuracy(features: np.ndarray, head: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the share of correctly classified images in %, with the images of a slice together."""
    return float(
        patient_accuracy(score(features, head), [str(number) for number in range(len(features))], SLICE).mean()
    )


def search_taper(backbone: Backbone, cache: Path, repetitions: int) -> pd.DataFrame:
    """Try the public heads, and every rule for the taper at each epsilon, on all consortia."""
    settings = [
        {"components": 64, "signal": signal, "power": power, "rounds": 20, "rate": rate, "clip": 0.1}
        for signal, power, rate in RULES
    ]
    cohorts = [consortium(seed, backbone, cache) for seed in SEEDS]
    splits = [np.random.default_rng(seed).permutation(ALL) for seed in SEEDS]
    rows = []

    def measure(components: int, epsilon: float, **options: float) -> list[float]:
        start, accuracies = public_head(backbone, components), []
        for features, order in zip(cohorts, splits, strict=True):
            part = features[..., : 2 * components]
            for repetition in range(1 if math.isinf(epsilon) else repetitions):
                random = np.random.default_rng(repetition)
                head = train_head(part[order[:TRAINED]], start, epsilon=epsilon, random=random, **options)
                accuracies.append(accuracy(part[order[TRAINED:]], head))
        return accuracies

    for components in sorted(backbone.heads):
        start = public_head(backbone, components)
        tested = [f[o[TRAINED:], :, : 2 * components] for f, o in zip(cohorts, splits, strict=True)]
        accuracies = [accuracy(test, start) for test in tested]
        rows.append({"components": components, "rounds": 0, "epsilon": "public head", "mean": np.mean(accuracies)})
    for setting in settings:
        row = {**setting, "averaged": 0.5}
        for epsilon in EPSILONS:
            rows.append({**row, "epsilon": f"{epsilon:g}", "mean": np.mean(measure(epsilon=epsilon, **row))})
    return pd.DataFrame(rows)


def cohort(settings: Simulated, backbone: Backbone, folder: Path, *, whole: bool) -> np.ndarray:
    """Return features as `consortium`, of a cohort or its first test patients, before their mean is subtracted."""
    first, count = (1, ALL) if whole else (TRAINED + 1, OTHERS)
    name = f"features-{settings.population}-{settings.seed}-{count}-{tensors_digest(backbone.tensors())[:12]}.npy"
    if not (folder / name).exists():
        features, read = [], replace(backbone, centred=False).features
        for number in range(first, first + count):
            volume = simulate_patient(settings, number)
            slices = volume[::-1, :, centre_slices(volume.shape[2], TASK.slices)].astype(np.float32)
            images = np.stack([resize_area(image, TASK.size) for image in np.transpose(slices, (3, 2, 1, 0))])
            features.append(read(to_kspace(images)).reshape(-1, backbone.components))
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / name, np.stack(features).view(np.float32))
    return np.load(folder / name)


def measure_heads(
    name: str,
    fitted: np.ndarray,
    tested: dict[str, np.ndarray],
    backbone: Backbone,
    draws: int,
    keen: tuple[float, ...],
) -> pd.DataFrame:
    """Train heads on some patients; return the accuracy of every answer for every patient of ``tested``."""
    start, rows = public_head(backbone, COMPONENTS), []
    for epsilon, draw in product(TRIED, range(draws)):
        head = train_head(fitted, start, epsilon=epsilon, random=np.random.default_rng(draw), **SETTINGS)
        for other, features in tested.items():
            trained_scores, public = score(features, head), score(features, start)
            answers = {"public": public, "alone": trained_scores}
            for factor in keen:
                both = TASK.combine_scores(trained_scores.flatten(0, 1), public.flatten(0, 1), factor)
                answers[f"both, {factor:g}"] = both.reshape(trained_scores.shape)
            for (answer, scores), decision in product(answers.items(), (SLICE, IMAGE)):
                shares = patient_accuracy(scores, [f"{number:03d}" for number in range(len(scores))], decision)
                keys = dict(zip(KEYS, (name, other, SHOWN[decision], f"{epsilon:g}"), strict=True))
                rows.append(
                    shares.rename("right").rename_axis("patient").reset_index().assign(**keys, answer=answer, draw=draw)
                )
    return pd.concat(rows, ignore_index=True)


def choose(table: pd.DataFrame) -> pd.DataFrame:
    """Return the gain of every answer over the public head, in points: on the training consortium, and on others."""
    means = table.groupby([*KEYS, "answer"], sort=False)["right"].mean().unstack("answer")
    gains = means.sub(means["public"], axis=0).drop(columns="public").reset_index()
    gains["where"] = np.where(gains["trained on"] == gains["measured on"], "own", "others")
    names = [name for name in means.columns if name != "public"]
    return gains.groupby(["where", "classified", "epsilon"], sort=False)[names].mean().reset_index()


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies, their spread over draws, and gains over the public head with intervals over patients."""
    rows = []
    for names, cells in table.groupby(KEYS, sort=False):
        spread = cells.groupby(["answer", "draw"])["right"].mean().unstack("draw").std(axis=1)
        people = cells.groupby(["answer", "patient"])["right"].mean().unstack("answer")
        resamples = np.random.default_rng(0).integers(len(people), size=(DRAWS, len(people)))
        row = dict(zip(KEYS, names, strict=True)) | {"patients": len(people), "public": people["public"].mean()}
        for answer, label in (("alone", "alone"), (f"both, {KEEN:g}", "both")):
            gain = (people[answer] - people["public"]).to_numpy()
            row |= {label: people[answer].mean(), f"{label} spread": spread[answer], f"{label} gain": gain.mean()}
            row |= dict(
                zip(
                    (f"{label} low", f"{label} high"), np.quantile(gain[resamples].mean(1), (0.025, 0.975)), strict=True
                )
            )
        rows.append(row)
    return pd.DataFrame(rows)


def both_ways(
    parts: dict[str, np.ndarray], private: int, backbone: Backbone, draws: int, keen: tuple[float, ...]
) -> pd.DataFrame:
    """Train heads on the first patients of the first cohorts, and measure them on the last patients of all."""
    tested = {name: features[-(ALL - TRAINED) :] for name, features in parts.items()}
    first = list(parts.items())[:private]
    return pd.concat([measure_heads(name, part[:TRAINED], tested, backbone, draws, keen) for name, part in first])


def main() -> None:
    """Choose constants, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=REPETITIONS)
    parser.add_argument("--backbone", type=Path, default=shipped_backbone(NetworkSettings("head", STUDY)))
    parser.add_argument("--cache", type=Path, default=Path("resources/study_selection"))
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    backbone, draws, parts = load_backbone(arguments.backbone), REPETITIONS[arguments.what], {}
    if arguments.what == "taper":
        table = search_taper(backbone, arguments.cache, draws)
        cohorts = f"public consortia of random shapes, {TRAINED} + {ALL - TRAINED} patients, seeds {SEEDS}"
    elif arguments.what == "keen":
        for seed in (*CHOSEN_ON, *BESIDE):
            whole = seed in CHOSEN_ON
            features = consortium(seed, backbone, arguments.cache, ALL if whole else OTHERS)
            parts[str(seed)] = features[np.random.default_rng(seed).permutation(ALL)] if whole else features
        table = choose(both_ways(parts, len(CHOSEN_ON), backbone, draws, KEENNESS))
        cohorts = f"public consortia, {TRAINED} + {ALL - TRAINED} patients, seeds {', '.join(parts)}"
    else:
        for index, (name, settings) in enumerate(COHORTS.items()):
            features = cohort(settings, backbone, arguments.cache, whole=index < PRIVATE)
            parts[name] = features - features.mean(1, keepdims=True)
        table = summary(both_ways(parts, PRIVATE, backbone, draws, (KEEN,)))
        cohorts = "; ".join(
            f"{name}: {simulation.population}, seed {simulation.seed}" for name, simulation in COHORTS.items()
        )
    write_text(
        arguments.output / f"{arguments.what}.csv",
        to_csv(table, origin(cohorts, seeds_shown(range(draws))), float_format="%.4g"),
    )
    print(table.to_string())


if __name__ == "__main__":
    main()
