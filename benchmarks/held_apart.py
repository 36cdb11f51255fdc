"""Measure the pretrained head on private cohorts from other distributions, in the runs of held_apart_*.yaml.

    make held-apart

runs the four scenarios and this, which writes held_apart.csv and held_apart.md. For each cohort the tables have the
accuracy of the public head, before any private training, and of the privately trained head at every epsilon.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from phantom_full import public_head, with_spread
from scenarios import Experiment, declared_by, ended, write_joined

from zetadp.report.rendering import MISSING, Sheet

SCENARIOS = {
    "another vendor's scanners": "held_apart_vendor",
    "healthy brains": "held_apart_healthy",
    "heavy lesions": "held_apart_heavy",
    "brains from implicit shapes, no atlas": "held_apart_procedural",
}
"""Name of each cohort in the table, and the scenario that declares it."""
EPSILONS = ("1", "8", "inf")


def declared() -> tuple[str, str]:
    """Return cohorts and seeds."""
    return declared_by(*SCENARIOS.values())


def collect(experiments: dict[str, Experiment]) -> pd.DataFrame:
    """Return one row per cohort and epsilon. Epsilon 0 is the public head alone."""
    rows = []
    for label, experiment in experiments.items():
        table = experiment.table()
        own = table[(table["network"] == "pretrained") & (table["arm"] == "federated")]
        start = public_head(own)
        rows.append({"cohort": label, "epsilon": "0", "seeds": 1, "mean": start["mean"], "std": float("nan")})
        rows += [{"cohort": label} | dict(row[["epsilon", "seeds", "mean", "std"]]) for _, row in own.iterrows()]
    return pd.DataFrame(rows)


def sheet(found: pd.DataFrame, made: tuple[str, ...]) -> Sheet:
    """Lay the table out with one line per cohort, and with a note on how it was made."""

    def cell(cohort: str, epsilon: str) -> str:
        row = found[(found["cohort"] == cohort) & (found["epsilon"] == epsilon)]
        if row.empty:
            return MISSING
        return with_spread(row["mean"].iloc[0], row["std"].iloc[0])

    rows = tuple((label, *(cell(label, epsilon) for epsilon in ("0", *EPSILONS))) for label in SCENARIOS)
    notes = (
        "Accuracy in % over the images of held-out patients, mean and standard deviation over seeds. Backbone, public "
        "head and settings are those of the default; the scenarios change the cohort.",
        *made,
    )
    headings = ("private cohort", "public head alone", "ε = 1", "ε = 8", "ε = ∞")
    return Sheet("Cohorts held apart", headings, rows, notes)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    experiments = {label: Experiment.of(scenario) for label, scenario in SCENARIOS.items()}
    write_joined(given.output / "held_apart", experiments, collect, sheet)


if __name__ == "__main__":
    ended(main)
