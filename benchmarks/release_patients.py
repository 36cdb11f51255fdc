"""Compare released rows with class means and gradients on k-space features, for several numbers of patients.

    make release-patients

runs release_few.yaml and release_many.yaml, and this, which joins their tables. The scenario release.yaml lies between
them, with 484 patients, and has its own table. Writes patients.csv and patients.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from phantom_full import public_head, with_spread
from scenarios import Experiment, declared_by, ended, write_joined

from zetadp.report.rendering import MISSING, Sheet

SCENARIOS = {121: "release_few", 1936: "release_many"}
"""The scenario with so many patients."""
EPSILONS = ("1", "8")
ARMS = {"central": "one holder", "federated": "11 nodes"}
METHODS = {"pretrained": "gradients", "rows": "released rows", "class_means": "noisy class means"}


def declared() -> tuple[str, str]:
    """Return cohorts and seeds."""
    return declared_by(*SCENARIOS.values())


def collect(experiments: dict[str, Experiment]) -> pd.DataFrame:
    """Return one row per number of patients, arm, epsilon and method; epsilon 0 is the public head alone."""
    rows = []
    for patients, experiment in experiments.items():
        table = experiment.table()
        start = public_head(table)["mean"]
        for _, row in table[table["epsilon"].isin(EPSILONS) & table["network"].isin(METHODS)].iterrows():
            cells = dict(row[["network", "arm", "epsilon", "seeds", "mean", "std"]])
            rows.append({"patients": int(patients), **cells, "public_head": start})
    return pd.DataFrame(rows)


def sheet(found: pd.DataFrame, made: tuple[str, ...]) -> Sheet:
    """Lay the table out with one line per number of patients, arm and epsilon."""
    lines = []
    for (patients, arm, epsilon), own in found.groupby(["patients", "arm", "epsilon"]):
        cells = own.set_index("network")
        shown = (with_spread(*cells.loc[m, ["mean", "std"]]) if m in cells.index else MISSING for m in METHODS)
        lines.append((str(patients), ARMS[str(arm)], str(epsilon), *shown))
    notes = (
        f"Accuracy in % over the images of held-out patients, mean ± standard deviation over {found['seeds'].min()} "
        f"seeds. The public head alone: {found['public_head'].iloc[0]:.1f}. ε is per patient, at δ = 0.001; seeded "
        "(simulated) noise. As many rows as patients.",
        "Patients are simulated, from implicit shapes, unlike those that the public backbone was trained on. All heads "
        "have four components. Eleven nodes of 121 patients would mix less than one patient a row, so one holder has "
        "them.",
        *made,
    )
    return Sheet(
        "Released rows by number of patients", ("patients", "held by", "ε", *METHODS.values()), tuple(lines), notes,
        names=2,
    )  # fmt: skip


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results/release"))
    given = parser.parse_args()
    experiments = {str(patients): Experiment.of(scenario) for patients, scenario in SCENARIOS.items()}
    write_joined(given.output / "patients", experiments, collect, sheet)


if __name__ == "__main__":
    ended(main)
