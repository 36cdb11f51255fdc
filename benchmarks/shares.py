"""How much of the way from the public head to the best network without noise private training goes.

    make shares

runs the default and held_apart_drawn.yaml, and this, which writes shares.csv and shares.md: for every head and epsilon
the accuracy of the public head alone, after private training, after the same training without noise, and of the best
network without noise, on the same test patients. Means are over seeds; intervals are over test patients, paired.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scenarios import Experiment, declared_by, ended, write_joined

from zetadp.backbone.start import shipped_backbone
from zetadp.config.configured import network_of
from zetadp.dataset import load_role, to_records
from zetadp.federation.partition import read_partition
from zetadp.nn.backbone import load_backbone
from zetadp.nn.models import NetworkSettings
from zetadp.nn.projection import head_scores
from zetadp.report.rendering import Sheet

SCENARIOS = {
    "no atlas (the default)": None,
    "drawn from a commit's hash": "held_apart_drawn",
}
"""What the table calls each cohort, and the scenario that declares it."""
BEST = ("backbone", "federated", "unclipped")
DRAWS = 2000


def declared() -> tuple[str, str]:
    """Return cohorts and seeds."""
    return declared_by(*SCENARIOS.values())


def patients_right(experiment: Experiment, network: str, arm: str, epsilon: str) -> pd.Series:
    """Return the share of right images of every test patient in %, its mean over seeds."""
    found = []
    for run in experiment.cells[network, arm, epsilon]:
        path = experiment.results / f"runs/{network}/{arm}/eps-{epsilon}/seed-{run.seed}/predictions.csv"
        table = pd.read_csv(path)
        found.append(100 * (table["sequence"] == table["predicted"]).groupby(table["patient"]).mean())
    return pd.concat(found, axis=1).mean(axis=1)


def public_right(experiment: Experiment, network: str) -> pd.Series:
    """Return the same for the public head alone."""
    settings = NetworkSettings(**network_of(experiment.config, network))
    cohort = Path("resources") / experiment.config["cohort"]["name"]
    files = sorted((cohort / settings.domain).glob("shard-*.h5"))
    stack, rows = load_role(files, read_partition(cohort / f"partitions/{experiment.config['name']}.csv"), "test")
    held = to_records(stack, torch.device("cpu"))
    head = load_backbone(shipped_backbone(settings)).heads[settings.components]
    told = head_scores(held.inputs.flatten(1), head).argmax(-1)
    right = 100 * (told == held.targets).double().reshape(len(rows), -1).mean(1)
    return pd.Series(right.numpy(), rows["patient"]).groupby(level=0).mean()


def interval(public: pd.Series, private: pd.Series, best: pd.Series) -> tuple[float, float, float]:
    """Return the share of the way from public to best, and its interval of 95 % over test patients, in %."""
    joined = np.stack([each.loc[best.index].to_numpy() for each in (public, private, best)])
    drawn = np.random.default_rng(0).integers(joined.shape[1], size=(DRAWS, joined.shape[1]))
    drawn[0] = np.arange(joined.shape[1])
    low, middle, high = joined[:, drawn].mean(-1)
    shares = 100 * (middle - low) / (high - low)
    return float(shares[0]), *(float(each) for each in np.quantile(shares, (0.025, 0.975)))


def collect(experiments: dict[str, Experiment]) -> pd.DataFrame:
    """Return one row a cohort, head and epsilon."""
    rows = []
    for label, experiment in experiments.items():
        best = patients_right(experiment, *BEST)
        heads = dict.fromkeys(name for name, _, epsilon in experiment.cells if epsilon == "1")
        for network in heads:
            public = public_right(experiment, network)
            free = patients_right(experiment, network, "federated", "inf")
            for epsilon in ("1", "8"):
                private = patients_right(experiment, network, "federated", epsilon)
                share, low, high = interval(public, private, best)
                rows.append(
                    {"cohort": label, "network": network, "epsilon": epsilon, "public alone": public.mean()}
                    | {"private": private.mean(), "same without noise": free.mean(), "best without noise": best.mean()}
                    | {"share": share, "low": low, "high": high}
                )
    return pd.DataFrame(rows)


def sheet(found: pd.DataFrame, made: tuple[str, ...]) -> Sheet:
    """Lay the table out with one line a cohort, head and epsilon."""
    values = ("public alone", "private", "same without noise", "best without noise")
    lines = []
    for _, row in found.iterrows():
        share = f"{row['share']:.0f} % ({row['low']:.0f} to {row['high']:.0f})"
        lines.append((row["cohort"], row["network"], row["epsilon"], *(f"{row[name]:.1f}" for name in values), share))
    notes = (
        "Accuracy in % over the images of held-out test patients; noise is seeded, ε is per patient at δ = 0.001. The "
        "best without noise is the whole backbone, trained on by all hospitals without clipping. The last column is "
        "the share of the way to it, with an interval of 95 % over test patients.",
        *made,
    )
    headings = ("private cohort", "network", "ε", *values, "share recovered")
    return Sheet("Private training that is worth its noise", headings, tuple(lines), notes, names=2)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    experiments = {label: Experiment.of(scenario) for label, scenario in SCENARIOS.items()}
    write_joined(given.output / "shares", experiments, collect, sheet)


if __name__ == "__main__":
    ended(main)
