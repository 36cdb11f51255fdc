"""Measure how much accuracy each idea adds, and the differences between methods, in the runs of phantom_full.yaml.

    make full

runs this after the workflow. Two methods are compared seed by seed, on the same test patients. Each difference has two
intervals of 95 %. The interval over seeds (Student's t) shows the effect of chance in training. The interval over
patients (bootstrap) shows whether the difference holds for other patients of this cohort. The scenario declares the
runs: a missing run is an error, and other runs in the folder are ignored. Writes phantom_full_ablation.csv and .md and
phantom_full_differences.csv and .md.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from phantom_full import SCENARIO, declared, with_spread
from scenarios import Experiment, ended
from scipy.stats import t

from zetadp.base.storage import write_text
from zetadp.base.validation import UserError
from zetadp.report.provenance import origin
from zetadp.report.rendering import MISSING, Sheet, to_csv, to_markdown

EPSILONS = ("1", "8", "inf")
STEPS = {
    "complex": "from scratch: one convolution a block, sampled patients, 4 images each, NAdam",
    "shaped": "the backbone's shape: back to the image by a Fourier layer, two convolutions a block",
    "tuned": "the backbone's public weights to start from, 100 rounds",
    "tuned_norms": "only scales, shifts and the head are trained",
    "head_sampled": "only a head of all components is trained, from random weights",
    "head_public": "the head starts from the public one",
    "head_everybody": "every patient in every round, 20 rounds",
    "head_every_image": "all 80 images of a patient in its gradient",
    "all_components": "plain steps, averaged weights, clipping norm 0.3",
    "pretrained": "four components in place of all",
}
"""Networks of the scenario, each with what it has beyond the one before."""


@dataclass(frozen=True)
class Cell:
    """Runs of one network, arm and epsilon."""

    network: str
    epsilon: str
    arm: str = "federated"

    def __str__(self) -> str:
        epsilon = "∞" if self.epsilon == "inf" else self.epsilon
        return f"{self.network}, {self.arm}, ε = {epsilon}"


DIFFERENCES = (
    ("goal: at most 2 points lost at ε = 1", Cell("pretrained", "1"), Cell("pretrained", "inf")),
    ("goal: at most 0.5 points lost at ε = 8", Cell("pretrained", "8"), Cell("pretrained", "inf")),
    ("goal: at most 3 points below a non-private network", Cell("pretrained", "1"), Cell("tuned", "inf")),
    ("the same, trained for longer", Cell("pretrained", "1"), Cell("tuned_long", "inf")),
    ("one holder of all patients", Cell("pretrained", "1", "central"), Cell("pretrained", "1")),
    ("the public head as a start", Cell("pretrained", "1"), Cell("from_nothing", "1")),
)


def accuracies(experiment: Experiment, cell: Cell) -> pd.DataFrame:
    """Return the accuracy of every test patient (row) in every seed (column) of a cell, in %."""
    found = experiment.metrics(cell.network, cell.arm, cell.epsilon)
    return 100 * pd.DataFrame({seed: metrics["per_patient"] for seed, metrics in found.items()})


def difference(experiment: Experiment, first: Cell, second: Cell) -> dict[str, float | int]:
    """Return the difference of two cells over the seeds that both have, with both intervals.

    Every patient has equally many images, so the mean over patients is the accuracy over images.
    """
    one, other = accuracies(experiment, first), accuracies(experiment, second)
    seeds = sorted(set(one) & set(other))
    if not seeds:
        msg = f"Expected a seed that {first} and {second} share, found none. Declare one in the scenario."
        raise UserError(msg)
    apart = one[seeds] - other[seeds]
    by_seed, by_patient = apart.mean(axis=0), apart.mean(axis=1).to_numpy()
    reach = math.nan
    if len(seeds) > 1:
        reach = float(t.ppf(0.975, len(seeds) - 1) * by_seed.std() / math.sqrt(len(seeds)))
    drawn = np.random.default_rng(0).choice(by_patient, (4000, len(by_patient))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    middle = float(by_seed.mean())
    return {
        "seeds": len(seeds),
        "difference": middle,
        "seeds_low": middle - reach,
        "seeds_high": middle + reach,
        "patients_low": float(low),
        "patients_high": float(high),
    }


def differences(experiment: Experiment) -> pd.DataFrame:
    """Return one row for each pair that is worth comparing."""
    return pd.DataFrame(
        {"what": what, "first": str(first), "second": str(second)} | difference(experiment, first, second)
        for what, first, second in DIFFERENCES
    )


def ablation(experiment: Experiment) -> pd.DataFrame:
    """Return one row per step: its accuracy at every epsilon, and what it adds to the step before."""
    rows = []
    before: str | None = None
    for network, idea in STEPS.items():
        row: dict[str, str | float | int] = {"idea": idea, "network": network}
        for epsilon in EPSILONS:
            found = accuracies(experiment, Cell(network, epsilon)).mean(axis=0)
            row |= {f"seeds_{epsilon}": len(found), f"mean_{epsilon}": found.mean(), f"std_{epsilon}": found.std()}
            gained = difference(experiment, Cell(network, epsilon), Cell(before, epsilon)) if before else {}
            row[f"gained_{epsilon}"] = gained.get("difference", math.nan)
        rows.append(row)
        before = network
    return pd.DataFrame(rows)


def ablation_sheet(found: pd.DataFrame, made: tuple[str, ...]) -> Sheet:
    """Lay the steps out, with a note on how the table was made."""

    def cell(row: pd.Series, epsilon: str) -> str:
        gained = row[f"gained_{epsilon}"]
        shown = with_spread(row[f"mean_{epsilon}"], row[f"std_{epsilon}"])
        return shown + ("" if math.isnan(gained) else f" ({gained:+.1f})")

    rows = tuple(
        (row["idea"], row["network"], *(cell(row, epsilon) for epsilon in EPSILONS)) for _, row in found.iterrows()
    )
    notes = (
        "Accuracy in % over the images of held-out patients, mean and standard deviation over seeds; in brackets what "
        "a step adds to the one above, over the seeds that both have. The order of steps is a choice: another one "
        "would share the points out differently.",
        *made,
    )
    return Sheet("One idea after the other", ("idea", "network", "ε = 1", "ε = 8", "ε = ∞"), rows, notes, names=2)


def differences_sheet(found: pd.DataFrame, made: tuple[str, ...]) -> Sheet:
    """Lay the differences out, with a note on how the table was made."""

    def interval(row: pd.Series, of: str) -> str:
        low, high = row[f"{of}_low"], row[f"{of}_high"]
        return MISSING if math.isnan(low) else f"{low:+.2f} to {high:+.2f}"

    rows = tuple(
        (
            row["what"],
            row["first"],
            row["second"],
            str(row["seeds"]),
            f"{row['difference']:+.2f}",
            interval(row, "seeds"),
            interval(row, "patients"),
        )
        for _, row in found.iterrows()
    )
    headings = ("what", "first", "second", "seeds", "first less second", "over seeds", "over patients")
    notes = ("Points of accuracy, paired by seed and test patient, with intervals of 95 %.", *made)
    return Sheet("Differences", headings, rows, notes, names=3)


def main() -> None:
    """Write both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="folder of the experiment (default: where the workflow puts it)")
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    experiment = Experiment.of(SCENARIO, given.results)
    made = origin(*declared(), runs=experiment.environments())
    for name, found, laid_out in (
        ("ablation", steps := ablation(experiment), ablation_sheet(steps, made)),
        ("differences", apart := differences(experiment), differences_sheet(apart, made)),
    ):
        write_text(given.output / f"phantom_full_{name}.csv", to_csv(found, made, float_format="%.6g"))
        write_text(given.output / f"phantom_full_{name}.md", to_markdown(laid_out))
        print(to_markdown(laid_out))


if __name__ == "__main__":
    ended(main)
