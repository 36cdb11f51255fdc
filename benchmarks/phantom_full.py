"""The extended table of accuracy against epsilon, from the finished runs of workflow/scenarios/phantom_full.yaml.

    make full

runs the scenario and this, which writes phantom_full.csv, phantom_full.md, phantom_full.svg (accuracy against epsilon)
and phantom_full_weights.svg (accuracy against the number of privately trained weights).
"""

from __future__ import annotations

import argparse
import platform
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from scenarios import ROOT, Experiment, declared_by, ended

from zetadp.config import network_of
from zetadp.dataset import load_role
from zetadp.epsilon import epsilon_order
from zetadp.federation.partition import read_partition
from zetadp.figures import figure_style, save_svg
from zetadp.nn.backbone import Backbone, load_backbone
from zetadp.nn.models import NetworkSettings, build
from zetadp.nn.parameters import Layout
from zetadp.nn.projection import head_scores
from zetadp.privacy.threat import SECURE_AGGREGATION
from zetadp.provenance import origin
from zetadp.rendering import MISSING, Sheet, or_none, to_csv, to_markdown
from zetadp.storage import write_text
from zetadp.tables import PAPER_TABLE_1

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCENARIO = "phantom_full"
METHODS = {
    "pretrained": "head of 4 components, from the public head",
    "from_nothing": "head of 4 components, from random weights",
    "all_components": "head of all components, from the public head",
    "class_means": "nearest class means, 4 components, drawn to the public ones",
    "least_squares": "private least squares, 4 components, drawn to the public classes",
    "tuned": "whole backbone, from public weights",
    "tuned_norms": "norms and head of the backbone, from public weights",
    "tuned_long": "whole backbone, from public weights, 400 rounds",
    "shaped": "the backbone's shape, from scratch",
    "head_sampled": "head of all components, random weights, sampled patients",
    "head_public": "head of all components, public head, sampled patients",
    "head_everybody": "head of all components, public head, all patients",
    "head_every_image": "head of all components, public head, all patients and images",
    "tuned_low_rank": "low-rank updates and head of the backbone, from public weights",
    "complex": "from scratch",
    "scratch_full": "from scratch, every patient in every round",
    "scratch_small": "from scratch, half the filters",
    "scratch_smaller": "from scratch, a quarter of the filters",
    "scratch_tiny": "from scratch, two blocks of 4 and 8 filters",
    "per_image": "from scratch, per image (weaker guarantee)",
}
PUBLIC_HEAD = "public head, no private training"
DRAWN = (
    "pretrained",
    "all_components",
    "from_nothing",
    "tuned",
    "tuned_norms",
    "tuned_low_rank",
    "shaped",
    "complex",
    "scratch_tiny",
    "per_image",
)
"""Networks with a line of their own in the figure; all are in the table."""
WEIGHED = {
    "pretrained": "head, 4",
    "all_components": "head, all",
    "tuned_norms": "norms",
    "tuned_low_rank": "low rank",
    "tuned": "all weights",
    "scratch_tiny": "4, 8 filters",
    "scratch_smaller": "4, 8, 16",
    "scratch_small": "8, 16, 32",
    "complex": "16, 32, 64",
    "shaped": "backbone",
}
"""Networks in the figure against trained weights, and what they are called there."""


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return declared_by(SCENARIO)


def with_spread(mean: float, std: float) -> str:
    """Return a mean with its standard deviation, if there is one, as tables show it."""
    return f"{mean:.1f}" if pd.isna(std) else f"{mean:.1f} ± {std:.1f}"


def method_of(network: str, threat: str) -> str:
    """Return what a row is called; a simulated protocol is part of the name."""
    method = METHODS.get(network, network)
    return f"{method}, secure aggregation, simulated" if threat == SECURE_AGGREGATION else method


def trained_weights(settings: dict[str, Any], features: int) -> int:
    """Return how many real numbers are trained privately."""
    network = NetworkSettings(**settings)
    size = features if network.family == "head" else 32
    return Layout.of(build(network, 4, size, np.random.default_rng(0))).dimension


def hardware(experiment: Experiment, row: pd.Series) -> str:
    """Return what a row's runs ran on."""
    places = {
        (found["environment"]["device"], found["environment"]["cores"])
        for found in experiment.metrics(row["network"], row["arm"], row["epsilon"]).values()
    }
    return ", ".join(f"{device}, {cores} cores" for device, cores in sorted(places))


def public_head(config: dict[str, Any], backbone: Backbone) -> dict[str, Any]:
    """Return the row of the backbone as it comes, which no private patient has touched: any epsilon holds for it."""
    folder = Path("resources") / config["cohort"]["name"]
    partition = read_partition(folder / f"partitions/{config['name']}.csv")
    shards = [folder / f"features/shard-{number:02d}.h5" for number in range(config["shards"])]
    stack, _ = load_role(shards, partition, "test")
    head = backbone.heads[config["networks"]["pretrained"]["components"]]
    records, sequences, slices = stack.values.shape[:3]
    told = head_scores(torch.from_numpy(stack.values).reshape(records, sequences, slices, -1), head).argmax(dim=-1)
    right = (told == torch.arange(sequences)[:, None]).float().mean()
    return {"method": PUBLIC_HEAD, "network": "public_head", "trained_weights": 0, "arm": "none", "epsilon": "0"} | {
        "true_epsilon_per_patient": 0.0,
        "seeds": 1,
        "mean": 100 * float(right),
        "unit": config["cohort"]["unit"],
        "hardware": "",
    }


def collect(experiment: Experiment, backbone: Backbone) -> pd.DataFrame:
    """Return one row a method, arm and epsilon, the paper's printed figures among them."""
    features, config = backbone.components, experiment.config
    rows = [
        {
            "method": method_of(row["network"], row["threat"]),
            "network": row["network"],
            "trained_weights": trained_weights(network_of(config, row["network"]), features),
            "arm": row["arm"],
            "epsilon": row["epsilon"],
            "seeds": row["seeds"],
            "mean": row["mean"],
            "std": row["std"],
            "unit": row["unit"],
            "threat": row["threat"],
            "true_epsilon_per_patient": row["epsilon_per_patient"],
            "hardware": hardware(experiment, row),
        }
        for _, row in experiment.table().iterrows()
    ]
    printed = [
        {"method": "the paper, as printed", "network": "paper", "arm": arm, "epsilon": epsilon, "seeds": 10}
        | {"mean": mean, "std": std, "unit": "per image, as the figures suggest", "hardware": "as printed"}
        for arm, cells in PAPER_TABLE_1.items()
        for epsilon, (mean, std) in cells.items()
    ]
    return pd.DataFrame([*rows, public_head(config, backbone), *printed])


def sheet(found: pd.DataFrame, made: tuple[str, ...]) -> Sheet:
    """Lay the table out with one column an epsilon, and how it was made below."""
    labels = ["0", *sorted(set(found["epsilon"]) - {"0"}, key=epsilon_order)]
    rows = []
    for (method, arm), group in found.groupby(["method", "arm"], sort=False):
        cells = []
        for label in labels:
            cell = group[group["epsilon"] == label]
            if cell.empty:
                cells.append(MISSING)
                continue
            cells.append(with_spread(cell["mean"].iloc[0], cell["std"].iloc[0]))
        seeds = f"{group['seeds'].min()}" if group["seeds"].nunique() == 1 else "several"
        rows.append((method, arm, seeds, *cells))
    by_image = found[(found["unit"] == "image") & (found["epsilon"] != "inf")]
    whole = [
        f"“{row['method']}”, ε = {row['epsilon']} per image: the true ε per patient is "
        f"{or_none(row['true_epsilon_per_patient'])}."
        for _, row in by_image.iterrows()
    ]
    notes = (
        "Accuracy in % over the images of the held-out patients of the simulated cohort, mean and standard deviation "
        "over seeds; the paper's row was measured on other patients, and its figures fit a guarantee per image.",
        *whole,
        *made,
    )
    return Sheet("Accuracy against epsilon", ("method", "arm", "seeds", *labels), tuple(rows), notes, names=2)


def accuracy_figure(found: pd.DataFrame) -> Figure:
    """Draw accuracy against epsilon, federated, one line a method."""
    import matplotlib.pyplot as plt

    labels = sorted(set(found["epsilon"]) - {"0"}, key=epsilon_order)
    with figure_style():
        figure, panels = plt.subplots(2, 1, figsize=(7, 7.5), sharex=True, height_ratios=(1, 1.2), layout="constrained")
        for axes in panels:
            _draw_lines(axes, found, labels)
        panels[0].axhline(25, color="0.6", linewidth=1)
        panels[0].text(0, 26, "chance", color="0.4", fontsize=8)
        best = found[found["network"].isin(DRAWN) & (found["mean"] > 85)]["mean"]
        panels[1].set_ylim(best.min() - 1.2, best.max() + 0.8)
        panels[1].set_xticks(range(len(labels)), ["∞" if label == "inf" else label for label in labels])
        panels[1].set_xlabel("ε for each patient, against the server (δ = 0.001), unless named otherwise below")
        figure.supylabel("accuracy on held-out patients (%)", fontsize=10)
        figure.suptitle(
            "Simulated cohort, 484 + 266 patients, 11 hospitals; below: the upper part enlarged", fontsize=10
        )
        figure.legend(*panels[0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=1)
    return figure


def _draw_lines(axes: Axes, found: pd.DataFrame, labels: list[str]) -> None:
    """Draw one line a method and arm, and the public head as a level."""
    import matplotlib.pyplot as plt

    start = found[found["method"] == PUBLIC_HEAD]["mean"].iloc[0]
    axes.axhline(start, color="0.3", linewidth=1, linestyle=":", label=PUBLIC_HEAD)
    drawn = found[found["network"].isin(DRAWN) & found["arm"].isin(["federated", "central"])]
    drawn = drawn[(drawn["arm"] == "federated") | (drawn["network"] == "pretrained")]
    lines = drawn.groupby(["method", "arm"], sort=False)
    looks = product("os^", plt.rcParams["axes.prop_cycle"].by_key()["color"][:6])
    for ((method, arm), group), (marker, colour) in zip(
        sorted(lines, key=lambda line: -line[1]["mean"].max()), looks, strict=False
    ):
        group = group.assign(place=[labels.index(label) for label in group["epsilon"]]).sort_values("place")
        style = "-" if arm == "federated" else "--"
        axes.errorbar(
            group["place"],
            group["mean"],
            yerr=group["std"].fillna(0),
            fmt=f"{marker}{style}",
            color=colour,
            capsize=3,
            markersize=4,
            label=f"{method}, {arm}",
        )


def weights_figure(found: pd.DataFrame) -> Figure:
    """Draw accuracy against the number of privately trained weights."""
    import matplotlib.pyplot as plt

    federated = found[(found["arm"] == "federated") & found["network"].isin(WEIGHED)]
    with figure_style():
        figure, axes = plt.subplots(figsize=(6.5, 4.2))
        for label in ("1", "8", "inf"):
            group = federated[federated["epsilon"] == label].sort_values("trained_weights")
            shown = "∞" if label == "inf" else label
            axes.plot(group["trained_weights"], group["mean"], "o", label=f"ε = {shown}", alpha=0.8)
        for network, group in federated[federated["epsilon"] == "1"].groupby("network"):
            axes.annotate(
                WEIGHED[network],
                (group["trained_weights"].iloc[0], group["mean"].iloc[0]),
                fontsize=7,
                xytext=(0, -12),
                textcoords="offset points",
                ha="center",
            )
        axes.text(40, 82, "from public weights", fontsize=8, color="0.3", style="italic")
        axes.text(3000, 34, "from scratch, by filters of the blocks", fontsize=8, color="0.3", style="italic")
        axes.set_ylim(18, 100)
        axes.set_xscale("log")
        axes.set_xlabel("real numbers trained privately")
        axes.set_ylabel("accuracy on held-out patients (%)")
        axes.legend(fontsize=8)
    return figure


def main() -> None:
    """Write table and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="folder of the experiment (default: where the workflow puts it)")
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    experiment = Experiment.of(SCENARIO, given.results)
    backbone = load_backbone(ROOT / "src/zetadp/data/backbone.safetensors")
    found = collect(experiment, backbone)
    made = origin(*declared(), runs=experiment.environments())
    laid_out = sheet(found, made)
    write_text(given.output / "phantom_full.csv", to_csv(found, made, float_format="%.6g"))
    write_text(given.output / "phantom_full.md", to_markdown(laid_out))
    save_svg(accuracy_figure(found), given.output / "phantom_full.svg")
    save_svg(weights_figure(found), given.output / "phantom_full_weights.svg")
    print(to_markdown(laid_out), f"\nwritten to {given.output} on {platform.machine()}")


if __name__ == "__main__":
    ended(main)
