"""Write the extended table of accuracy against epsilon, from the runs of workflow/scenarios/phantom_full.yaml.

    make full

runs the scenario and this, which writes phantom_full.csv, phantom_full.md, phantom_full.svg (accuracy against epsilon)
and phantom_full_weights.svg (accuracy against the number of privately trained weights). This command draws the figures
only, from the existing table:

    python benchmarks/phantom_full.py --redraw
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scenarios import ROOT, Experiment, declared_by, ended

from zetadp.base.epsilon import epsilon_order, judged
from zetadp.base.storage import write_text
from zetadp.config.configured import network_of
from zetadp.nn.backbone import load_backbone
from zetadp.nn.models import NetworkSettings, build
from zetadp.nn.parameters import Layout
from zetadp.privacy.threat import SECURE_AGGREGATION
from zetadp.report.figurestyle import (
    SMALL,
    WIDTH,
    epsilon_axis,
    figure_style,
    line_look,
    save_svg,
    set_legend,
    set_title,
    spread_shown,
    wrapped,
)
from zetadp.report.provenance import origin
from zetadp.report.rendering import MISSING, Sheet, to_csv, to_markdown
from zetadp.report.tables import PAPER_TABLE_1

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
COHORT = "simulated cohort, 484 + 266 patients, 11 hospitals"
_EPSILONS: dict[str, dict[str, Any]] = {
    "1": {"label": "ε = 1"},
    "8": {"label": "ε = 8", "markerfacecolor": "white"},
    "inf": {"label": "ε = ∞: clipped, no noise, no guarantee"},
}
GUARANTEE = "ε per patient, δ = 0.001, simulated noise"
DRAWN = {
    "on the public backbone": (
        "pretrained",
        "all_components",
        "from_nothing",
        "tuned",
        "tuned_norms",
        "tuned_low_rank",
    ),
    "from scratch": ("shaped", "complex", "scratch_tiny"),
}
"""Networks with a line of their own in the figure, by panel; all are in the table."""
WEIGHED = {
    "from public weights: what of the backbone is trained": {
        "pretrained": "head, 4",
        "all_components": "head, all",
        "tuned_norms": "norms",
        "tuned_low_rank": "low rank",
        "tuned": "all weights",
    },
    "from scratch: filters of the blocks": {
        "scratch_tiny": "4, 8",
        "scratch_smaller": "4, 8, 16",
        "scratch_small": "8, 16, 32",
        "complex": "16, 32, 64",
        "shaped": "backbone",
    },
}
"""Networks in the figure against trained weights by panel, and what they are called there."""


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
    """Return the hardware of a row's runs."""
    places = {
        (found["environment"]["device"], found["environment"]["cores"])
        for found in experiment.metrics(row["network"], row["arm"], row["epsilon"]).values()
    }
    return ", ".join(f"{device}, {cores} cores" for device, cores in sorted(places))


def public_head(table: pd.DataFrame) -> dict[str, Any]:
    """Return the row of the public backbone alone. It uses no private patient, so every epsilon holds for it."""
    start = table[table["network"] == "pretrained"].iloc[0]
    return {"method": PUBLIC_HEAD, "network": "public_head", "trained_weights": 0, "arm": "none", "epsilon": "0"} | {
        "true_epsilon_per_patient": 0.0,
        "seeds": 1,
        "mean": start["public_start"],
        "unit": start["unit"],
        "hardware": "",
    }


def collect(experiment: Experiment, features: int) -> pd.DataFrame:
    """Return one row per method, arm and epsilon, the paper's printed figures among them."""
    table, config = experiment.table(), experiment.config
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
        for _, row in table.iterrows()
    ]
    printed = [
        {"method": "the paper, as printed", "network": "paper", "arm": arm, "epsilon": epsilon, "seeds": 10}
        | {"mean": mean, "std": std, "unit": "per image, as the figures suggest", "hardware": "as printed"}
        for arm, cells in PAPER_TABLE_1.items()
        for epsilon, (mean, std) in cells.items()
    ]
    return pd.DataFrame([*rows, public_head(table), *printed])


def sheet(found: pd.DataFrame, made: tuple[str, ...]) -> Sheet:
    """Lay the table out with one column per epsilon, and with a note on how it was made."""
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
        f"{judged(row['true_epsilon_per_patient'])}."
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
    """Draw accuracy against epsilon per patient, one line per method: above on the public backbone, below from scratch.

    A guarantee per image does not belong on this axis. A note below the panels gives its epsilon per image and patient.
    """
    import matplotlib.pyplot as plt

    drawn = {
        title: found[found["network"].isin(networks) & found["arm"].isin(["federated", "central"])]
        for title, networks in DRAWN.items()
    }
    shown = pd.concat(drawn.values())
    shown = shown[(shown["arm"] == "federated") | (shown["network"] == "pretrained")]
    labels = sorted(set(shown["epsilon"]), key=epsilon_order)
    with figure_style():
        figure, panels = plt.subplots(2, 1, figsize=(WIDTH, 8.4), layout="constrained")
        for panel, (title, rows) in zip(panels, drawn.items(), strict=True):
            _draw_lines(panel, rows[rows.index.isin(shown.index)], labels)
            panel.set_title(title, loc="left")
            epsilon_axis(panel, labels)
            panel.set_ylabel("test accuracy in %")
            panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)
        panels[0].axhline(_public(found), color="black", linewidth=1, linestyle=":", label=PUBLIC_HEAD)
        panels[1].axhline(25, color="black", linewidth=0.8, linestyle=":", label="chance (25 %)")
        panels[1].set_ylim(bottom=20)
        panels[1].set_xlabel(GUARANTEE)
        for panel in panels:
            panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, labelspacing=0.8)
        set_title(figure, f"Accuracy against ε, {COHORT}")
        notes = (
            f"Held-out test patients; federated unless named central; {spread_shown(shown['seeds'], 'bars')}. "
            "The panels have scales of their own. ∞: clipped, no noise, no guarantee.",
            *_not_placed(found),
        )
        text = wrapped("\n".join(notes), SMALL, 0.97 * WIDTH)
        figure.supxlabel(text, x=0.01, ha="left", fontsize=SMALL)
    return figure


def _public(found: pd.DataFrame) -> float:
    """Return the accuracy of the public head alone."""
    return float(found.loc[found["method"] == PUBLIC_HEAD, "mean"].iloc[0])


def _not_placed(found: pd.DataFrame) -> list[str]:
    """Return a note for each guarantee per image, with its accuracy and its epsilon per patient."""
    by_image = found[(found["unit"] == "image") & (found["epsilon"] != "inf")]
    return [
        f"Not shown, because it is no ε per patient: “{METHODS[row['network']]}” reaches {row['mean']:.1f} % at "
        f"ε = {row['epsilon']} per image, which is ε = {judged(row['true_epsilon_per_patient'])} per patient."
        for _, row in by_image.iterrows()
    ]


def _draw_lines(panel: Axes, rows: pd.DataFrame, labels: list[str]) -> None:
    """Draw one line per method and arm, the best without noise first in the legend."""
    lines = sorted(rows.groupby(["method", "arm"], sort=False), key=lambda line: -line[1]["mean"].iloc[-1])
    for index, ((method, arm), group) in enumerate(lines):
        # Side by side, so that none hides another.
        shift = 0.09 * (index - (len(lines) - 1) / 2)
        bars = None if group["std"].isna().all() else group["std"]
        label = wrapped(f"{method}, central" if arm == "central" else method, SMALL, 0.28 * WIDTH)
        places = [labels.index(epsilon) + shift for epsilon in group["epsilon"]]
        panel.errorbar(places, group["mean"], bars, label=label, capsize=3, **line_look(index))


def weights_figure(found: pd.DataFrame) -> Figure:
    """Draw accuracy against the number of privately trained weights: above from public weights, below from scratch."""
    import matplotlib.pyplot as plt

    federated = found[found["arm"] == "federated"]
    with figure_style():
        figure, panels = plt.subplots(2, 1, figsize=(WIDTH, 7), sharex=True, layout="constrained")
        for panel, (title, names) in zip(panels, WEIGHED.items(), strict=True):
            rows = federated[federated["network"].isin(names)]
            for index, (label, look) in enumerate(_EPSILONS.items()):
                group = rows[rows["epsilon"] == label]
                # Side by side, so that none hides another.
                places = group["trained_weights"] * 1.14 ** (index - 1)
                panel.plot(places, group["mean"], **{**line_look(index), **look, "linestyle": ""})
            for network, group in rows[rows["epsilon"].isin(_EPSILONS)].groupby("network"):
                place = (group["trained_weights"].iloc[0], group["mean"].min())
                panel.annotate(names[network], place, (0, -14), textcoords="offset points", ha="center", fontsize=SMALL)
            panel.set_title(title, loc="left")
            panel.set_ylabel("test accuracy in %")
            panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)
            panel.margins(x=0.12, y=0.2)
        panels[1].set(xscale="log", xlabel="real numbers trained privately")
        set_title(figure, f"Accuracy against the number of trained weights, {COHORT}")
        seeds = federated[federated["network"].isin([name for names in WEIGHED.values() for name in names])]["seeds"]
        heading = f"Held-out test patients, federated; means of {seeds.min()} to {seeds.max()} seeds. {GUARANTEE}."
        set_legend(
            figure,
            panels,
            f"{heading}\nThe panels have scales of their own; the points of a network are set side by side.",
        )
    return figure


def main() -> None:
    """Write table and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="folder of the experiment (default: where the workflow puts it)")
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    parser.add_argument("--redraw", action="store_true", help="draw the figures only, from the table in --output")
    given = parser.parse_args()
    table = given.output / "phantom_full.csv"
    if not given.redraw:
        experiment = Experiment.of(SCENARIO, given.results)
        backbone = load_backbone(ROOT / "src/zetadp/data/backbone.safetensors")
        found = collect(experiment, backbone.components)
        made = origin(*declared(), runs=experiment.environments())
        laid_out = to_markdown(sheet(found, made))
        write_text(table, to_csv(found, made, float_format="%.6g"))
        write_text(given.output / "phantom_full.md", laid_out)
        print(laid_out)
    found = pd.read_csv(table, dtype={"epsilon": str}, comment="#")
    save_svg(accuracy_figure(found), given.output / "phantom_full.svg")
    save_svg(weights_figure(found), given.output / "phantom_full_weights.svg")
    print(f"written to {given.output} on {platform.machine()}")


if __name__ == "__main__":
    ended(main)
