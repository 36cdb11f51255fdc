"""Share of the gap between the public head and the best network without noise that private training closes.

    python -m benchmarks.shares

writes shares.csv and shares.md from the finished runs of the default and of held_apart_*.yaml: for every head and
epsilon the accuracy of the public head alone, after private training, after the same training without noise, and of
the best network without noise, on the same test patients. Each is given for every decision: the volumes of a patient
classified together, the images of a slice together, and each image by itself. Means are over seeds; intervals are over
test patients, paired.

The best network is the whole backbone, trained on by all hospitals without clipping: as it is, or with a head on the
statistics of its layers less the patient's mean, as in the private heads, which is fitted to all training patients
without noise. The better of the two on the test patients counts, so a share is rather too small than too large.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from papers.experiments import Experiment, declared_by, ended, write_joined
from zetadp.base.tables import MISSING, Sheet
from zetadp.brain import BrainSequences
from zetadp.brain.backbone import load_backbone, shipped_backbone
from zetadp.brain.images import load_role, to_records
from zetadp.brain.task import IMAGE, SLICE, VOLUME
from zetadp.nn.heads import head_scores
from zetadp.nn.models import ConvolutionalClassifier
from zetadp.nn.settings import FEATURES
from zetadp.phantom.settings import CHANNELS
from zetadp.training.partition import read_partition
from zetadp.training.pretrained import load_model

SCENARIOS = {
    "no atlas (the default)": None,
    "drawn from a commit's hash": "held_apart_drawn",
    "another vendor's scanners": "held_apart_vendor",
    "healthy brains": "held_apart_healthy",
    "heavy lesions": "held_apart_heavy",
}
"""Scenario of each cohort, by the cohort's name in the table."""
BEST = ("backbone", "federated", "unclipped")
PENALTIES = (0.2, 0.02, 0.002)
"""Penalties of the best head, of which the validation patients choose one."""
SHOWN = {VOLUME: "volumes together", SLICE: "a slice together", IMAGE: "each image"}
"""Names of the decisions in the table."""
EPSILONS = ("1", "8")
DRAWS = 2000


def declared() -> tuple[str, str]:
    """Return cohorts and seeds."""
    return declared_by(*SCENARIOS.values())


def load_inputs(experiment: Experiment, domain: str, role: str) -> tuple[Tensor, list[str]]:
    """Return a network's inputs for all images of patients of a role, and the patient of each record."""
    cohort = Path("resources") / experiment.config.cohort.name
    files = sorted((cohort / domain).glob("shard-*.h5"))
    images, rows = load_role(files, read_partition(cohort / f"partitions/{experiment.config.name}.csv"), role)
    return to_records(images, torch.device("cpu")).inputs, rows["patient"].tolist()


def patient_accuracy(scores: Tensor, patients: list[str], decision: str) -> pd.Series:
    """Return the share in % of each patient's images classified correctly, from scores (record, image, class)."""
    records, images, classes = scores.shape
    probabilities = BrainSequences(slices=images // classes, decision=decision).probabilities(
        scores.reshape(-1, classes)
    )
    labels = torch.arange(classes).repeat_interleave(images // classes)
    share = 100 * (probabilities.argmax(-1).reshape(records, images) == labels).double().mean(1)
    return pd.Series(share.numpy(), patients).groupby(level=0).mean()


def public_scores(experiment: Experiment, network: str) -> tuple[Tensor, list[str]]:
    """Return the scores of the public head alone for the images of test patients."""
    settings = experiment.config.networks[network].settings
    inputs, patients = load_inputs(experiment, settings.domain, "test")
    head = load_backbone(shipped_backbone(settings)).heads[settings.components]
    return head_scores(inputs.flatten(1), head).reshape(len(patients), -1, 4), patients


def trained_scores(experiment: Experiment, cell: tuple[str, str, str]) -> tuple[Tensor, list[str]]:
    """Return the scores of the trained networks of a cell for the images of test patients, one record after the other.

    Seeds follow each other, so every record appears once per seed.
    """
    domain = experiment.config.networks[cell[0]].domain
    inputs, patients = load_inputs(experiment, domain if domain in FEATURES else "whitened", "test")
    folders = [experiment.folder(run) for run in experiment.cells[cell]]
    outputs = [load_model(folder.model).outputs(inputs) for folder in folders]
    return torch.cat(outputs).reshape(len(patients) * len(outputs), -1, 4), patients * len(outputs)


def best_scores(experiment: Experiment) -> tuple[Tensor, list[str]]:
    """Return the scores of a head without noise on the layers of the best network, less each patient's mean."""
    (run,) = experiment.cells[BEST]
    network = cast("ConvolutionalClassifier", load_model(experiment.folder(run).model).network)
    parts, patients = {}, []
    for role in ("train", "validation", "test"):
        inputs, patients = load_inputs(experiment, "whitened", role)
        print(f"{experiment.results}: layers of {len(patients)} records, {role}", flush=True)
        with torch.no_grad():
            statistics = torch.cat([network.layer_statistics(part) for part in inputs.split(80)])
        statistics = statistics.reshape(len(patients), -1, statistics.shape[1])
        parts[role] = statistics - statistics.mean(1, keepdim=True)
    scale = parts["train"].flatten(0, 1).std(0) + 1e-6
    features = {role: part / scale for role, part in parts.items()}
    records, images, _ = features["train"].shape
    labels = torch.arange(4).repeat_interleave(images // 4).repeat(records)
    heads = [fit(features["train"].flatten(0, 1), labels, penalty) for penalty in PENALTIES]

    def scores(weights: Tensor, role: str) -> Tensor:
        return features[role] @ weights[:-1] + weights[-1]

    everybody = [""] * len(features["validation"])
    watched = [patient_accuracy(scores(weights, "validation"), everybody, IMAGE).mean() for weights in heads]
    return scores(heads[int(np.argmax(watched))], "test"), patients


def fit(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    """Fit softmax regression by full-batch L-BFGS; return weights (feature + 1, class), the bias in the last row."""
    weights = torch.zeros(x.shape[1] + 1, len(CHANNELS), requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=80, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(x @ weights[:-1] + weights[-1], y)
        value = value + penalty / 2 * weights[:-1].square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return weights.detach()


def interval(public: pd.Series, private: pd.Series, best: pd.Series) -> tuple[float, float, float]:
    """Return the share of the gap from public to best that is closed, in %, with a 95 % interval over test patients.

    Not a number if the gap vanishes for a resample of patients.
    """
    accuracies = np.stack([values.loc[best.index].to_numpy() for values in (public, private, best)])
    resamples = np.random.default_rng(0).integers(accuracies.shape[1], size=(DRAWS, accuracies.shape[1]))
    resamples[0] = np.arange(accuracies.shape[1])
    low, middle, high = accuracies[:, resamples].mean(-1)
    if (high - low).min() <= 0:
        return math.nan, math.nan, math.nan
    shares = 100 * (middle - low) / (high - low)
    return float(shares[0]), *(float(values) for values in np.quantile(shares, (0.025, 0.975)))


def collect(experiments: dict[str, Experiment]) -> pd.DataFrame:
    """Return one row per cohort, decision, head and epsilon."""
    rows = []
    for label, experiment in experiments.items():
        strongest = trained_scores(experiment, BEST), best_scores(experiment)
        heads = dict.fromkeys(name for name, _, epsilon in experiment.cells if epsilon == "1")
        started = {network: public_scores(experiment, network) for network in heads}
        ended_at = {
            (network, epsilon): trained_scores(experiment, (network, "federated", epsilon))
            for network in heads
            for epsilon in (*EPSILONS, "inf")
        }
        for decision, wording in SHOWN.items():
            best = max((patient_accuracy(*scores, decision) for scores in strongest), key=pd.Series.mean)
            for network in heads:
                public = patient_accuracy(*started[network], decision)
                free = patient_accuracy(*ended_at[network, "inf"], decision)
                for epsilon in EPSILONS:
                    private = patient_accuracy(*ended_at[network, epsilon], decision)
                    share, low, high = interval(public, private, best)
                    name = {"cohort": label, "decision": wording, "network": network, "epsilon": epsilon}
                    rows.append(
                        {**name, "seeds": len(experiment.cells[network, "federated", epsilon])}
                        | {"public alone": public.mean(), "private": private.mean()}
                        | {"same without noise": free.mean(), "best without noise": best.mean()}
                        | {"share": share, "low": low, "high": high}
                    )
    return pd.DataFrame(rows)


def sheet(table: pd.DataFrame) -> Sheet:
    """Lay the table out with one line per cohort, decision and head."""
    lines = []
    for names, cells in table.groupby(["cohort", "decision", "network"], sort=False):
        at = {row["epsilon"]: row for _, row in cells.iterrows()}
        first = cells.iloc[0]
        values = (
            first["public alone"],
            *(at[epsilon]["private"] for epsilon in EPSILONS),
            first["same without noise"],
            first["best without noise"],
        )
        shares = (share_cell(at[epsilon]) for epsilon in EPSILONS)
        lines.append((*cast("tuple[str, ...]", names), *(f"{value:.1f}" for value in values), *shares))
    cohorts_of = table.groupby("seeds", sort=False)["cohort"].unique()
    seeds = "; ".join(f"{number} seeds: {', '.join(cohorts)}" for number, cohorts in cohorts_of.items())
    notes = (
        "Accuracy in % over the images of held-out test patients, with the volumes of a patient or the images of a "
        "slice classified together, one of each sequence, or each image by itself; noise is seeded, ε is per patient "
        "at δ = 0.001. The best without noise is the whole backbone, trained on by all hospitals without clipping, "
        "or a head without noise on its layers less the patient's mean, whichever is better. The last columns are "
        "the share of the way to it, with an interval of 95 % over test patients. They are empty where a resample of "
        f"patients leaves no way to go. {seeds}.",
    )
    headings = (
        *("private cohort", "classified", "network", "public alone", "ε = 1", "ε = 8", "same without noise"),
        *("best without noise", "share at ε = 1", "share at ε = 8"),
    )
    return Sheet("Private training that is worth its noise", headings, tuple(lines), notes, names=3)


def share_cell(row: pd.Series) -> str:
    """Return a share with its interval."""
    if not math.isfinite(row["share"]):
        return MISSING
    return f"{row['share']:.0f} % ({row['low']:.0f} to {row['high']:.0f})"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    experiments = {label: Experiment.of(scenario) for label, scenario in SCENARIOS.items()}
    write_joined(arguments.output / "shares", experiments, collect, sheet)


if __name__ == "__main__":
    ended(main)
