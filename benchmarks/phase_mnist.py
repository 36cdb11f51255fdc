"""Write the table of PhaseMNIST and MNIST, from the runs of phase_mnist.yaml, phase_mnist_once.yaml and mnist.yaml.

    make phase-mnist

runs the three scenarios and this, which writes table.csv and table.md. All epsilons are true. The accuracies that
Ziller et al. print appear at the true epsilon of their noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from scenarios import Experiment, declared_by, ended, write_joined

from zetadp.base.epsilon import epsilon_order, epsilon_shown
from zetadp.report.rendering import MISSING, Sheet, interval_cell, spread_cell

SCENARIOS = {
    "phase_mnist": "composites, each image in several",
    "phase_mnist_once": "composites, each image in one",
    "mnist": "plain digits",
}
"""The scenarios, and the name of their examples in the table."""
METHODS = {
    ("head", "central"): "head on public features, one holder",
    ("head", "federated"): "head on public features, 11 nodes",
    ("mlp", "central"): "the paper's network and settings, one holder",
}
PRINTED = {
    ("phase_mnist", "3.4"): (99.0, "0.53"),
    ("phase_mnist", "inf"): (99.3, "inf"),
    ("mnist", "1.52"): (95.67, "0.53"),
    ("mnist", "inf"): (97.43, "inf"),
}
"""Accuracy in % and epsilon as Ziller et al. print them (Table 1), by scenario and true epsilon."""
COLUMNS = ["examples", "method", "epsilon", "seeds", "mean", "std", "ci_low", "ci_high", "printed", "printed_epsilon"]


def declared() -> tuple[str, str]:
    """Return cohorts and seeds."""
    return declared_by(*SCENARIOS)


def collect(experiments: dict[str, Experiment]) -> pd.DataFrame:
    """Return one row for each scenario, method and epsilon."""
    rows = []
    for scenario, experiment in experiments.items():
        found = experiment.table()
        found["examples"] = SCENARIOS[scenario]
        found["method"] = [METHODS[cell] for cell in zip(found["network"], found["arm"], strict=True)]
        printed = [PRINTED.get((scenario, e)) if n == "mlp" else None for n, e in found[["network", "epsilon"]].values]
        found["printed"] = [each[0] if each else None for each in printed]
        found["printed_epsilon"] = [each[1] if each else None for each in printed]
        rows.append(found[COLUMNS])
    return pd.concat(rows, ignore_index=True)


def sheet(found: pd.DataFrame, made: tuple[str, ...]) -> Sheet:
    """Lay the table out, one line per method and one column per epsilon, with a note on how it was made."""
    epsilons = sorted(set(found["epsilon"]), key=epsilon_order)
    lines = []
    for (examples, method), rows in found.groupby(["examples", "method"], sort=False):
        cells = {row["epsilon"]: row for _, row in rows.iterrows()}
        lines.append((examples, method, *(spread_cell(cells.get(epsilon)) for epsilon in epsilons)))
        lines.append(("", "95% interval", *(interval_cell(cells.get(epsilon)) for epsilon in epsilons)))
        if rows["printed"].notna().any():
            lines.append(("", "the paper, printed", *(printed_cell(cells.get(epsilon)) for epsilon in epsilons)))
    notes = (
        "Test accuracy in %, mean and standard deviation over seeds. Intervals: 95%, bootstrap over examples, "
        "resampled jointly over seeds.",
        "ε is per example, at δ = 0.00001. Per writer it is unknown: MNIST does not name them. Where each image is in "
        "one example, ε is per image as well. Eleven nodes: each adds noise for its own examples, against the server.",
        "ε = ∞: gradients are clipped but get no noise. Noise is seeded, so it simulates and protects nobody.",
        "The paper prints 99.0 % and 95.67 % as ε = 0.53. The sampling rate, noise multiplier and epochs it prints "
        "give 1.52. The noise that its code adds to a complex network is too small by √2 and gives 3.4. Its figures "
        "stand where they belong, below its network under the same noise.",
        *made,
    )
    headings = ("examples", "method", *(f"ε = {epsilon_shown(epsilon)}" for epsilon in epsilons))
    return Sheet("PhaseMNIST and MNIST at true ε", headings, tuple(lines), notes)


def printed_cell(row: pd.Series | None) -> str:
    """Return the accuracy and the epsilon that the paper prints for noise of this true epsilon."""
    if row is None or pd.isna(row["printed"]):
        return MISSING
    return f"{row['printed']:g} (as ε = {epsilon_shown(row['printed_epsilon'])})"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results/phase_mnist"))
    given = parser.parse_args()
    experiments = {scenario: Experiment.of(scenario) for scenario in SCENARIOS}
    write_joined(given.output / "table", experiments, collect, sheet)


if __name__ == "__main__":
    ended(main)
