"""Join the tables of several scenarios into one, as ``joins`` of a paper's paper.yaml declares it.

    python -m papers.join PAPER TABLE

writes results/papers/PAPER/TABLE.csv with one row for each scenario, network, arm and epsilon, and TABLE.md with one
line for each of them and one column for each epsilon. What the paper prints stands at the true epsilon of its noise.
The keys of a join:

``title``, ``notes``
    What the table is called, and what its reader must know.
``labels``
    Columns that identify the scenarios: a value for each scenario.
``methods``
    What a network of an arm is called. Others are left out.
``epsilons``
    The epsilons in the table; all, if this key is missing.
``columns``
    Columns of the CSV file.
``largest``
    Further columns from tables of a scenario: the largest value of all rows of a network, arm and epsilon.
``printed``
    What the paper prints, by scenario, network, arm and epsilon.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from papers import sizes
from papers.experiments import ROOT, Experiment, ended, write_joined
from zetadp.base.epsilon import Target
from zetadp.base.tables import MISSING, Sheet
from zetadp.base.validation import UserError
from zetadp.report.rendering import interval_cell, spread_cell

CELL = ["network", "arm", "epsilon"]
PRINTED = ["printed", "printed_epsilon"]


def declared_joins(paper: str) -> dict[str, dict[str, Any]]:
    """Return the joins that a paper declares, by the names of their tables."""
    content = yaml.safe_load((ROOT / "papers" / paper / "paper.yaml").read_text(encoding="utf-8"))
    return dict(content.get("joins", {}))


def scenarios_of(join: dict[str, Any]) -> list[str]:
    """Return the scenarios of a join, which its first column of labels names."""
    return list(next(iter(join["labels"].values())))


def collect(join: dict[str, Any], experiments: dict[str, Experiment]) -> pd.DataFrame:
    """Return one row for each scenario, network, arm and epsilon."""
    parts = []
    for scenario, experiment in experiments.items():
        table = experiment.table()
        table["method"] = [join["methods"].get(f"{n}/{a}") for n, a in zip(table["network"], table["arm"], strict=True)]
        table = table[table["method"].notna()]
        if "epsilons" in join:
            table = table[table["epsilon"].isin(join["epsilons"])]
        for label, values in join["labels"].items():
            table[label] = values[scenario]
        for column, file in join.get("largest", {}).items():
            table[column] = largest_in(experiment.results / file, column, table)
        for column in PRINTED:
            table[column] = [printed_of(join, scenario, row).get(column) for _, row in table.iterrows()]
        parts.append(table)
    return pd.concat(parts, ignore_index=True)[join["columns"]]


def largest_in(path: Path, column: str, table: pd.DataFrame) -> list[float]:
    """Return the largest value of a column of another table for each row of a table."""
    if not path.is_file():
        raise UserError(f"Expected {path} of the finished scenario, found none.")
    largest = pd.read_csv(path, dtype={"epsilon": str}, comment="#").groupby(CELL)[column].max()
    return [float(largest[cell]) for cell in table[CELL].itertuples(index=False, name=None)]


def printed_of(join: dict[str, Any], scenario: str, row: pd.Series) -> dict[str, Any]:
    """Return what the paper prints for a row; nothing for others."""
    key = {"scenario": scenario, "network": row["network"], "arm": row["arm"], "epsilon": row["epsilon"]}
    return next((printed for printed in join.get("printed", []) if key.items() <= printed.items()), {})


def sheet(join: dict[str, Any], table: pd.DataFrame) -> Sheet:
    """Lay the table out, one line for each method."""
    names = [*join["labels"], "method" if "method" in table else "network"]
    names += ["arm"] if "arm" in table else []
    epsilons = sorted(set(table["epsilon"]), key=Target.named)
    lines = []
    for key, rows in table.groupby(names, sort=False):
        cells = {row["epsilon"]: row for _, row in rows.iterrows()}
        first, blank = tuple(str(part) for part in key), ("",) * (len(names) - 1)
        lines.append((*first, *(spread_cell(cells.get(epsilon)) for epsilon in epsilons)))
        if "ci_low" in rows:
            lines.append((*blank, "95% interval", *(interval_cell(cells.get(epsilon)) for epsilon in epsilons)))
        if "printed" in rows and rows["printed"].notna().any():
            lines.append((*blank, "the paper, printed", *(printed_cell(cells.get(epsilon)) for epsilon in epsilons)))
    headings = (*names, *(f"ε = {Target.named(epsilon).short}" for epsilon in epsilons))
    return Sheet(join["title"], headings, tuple(lines), tuple(join["notes"]), names=len(names))


def printed_cell(row: pd.Series | None) -> str:
    """Return the value and the epsilon that the paper prints for noise of this true epsilon."""
    if row is None or pd.isna(row["printed"]):
        return MISSING
    return f"{row['printed']:g} (as ε = {Target.read(row['printed_epsilon']).short})"


def main() -> None:
    """Write a joined table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper")
    parser.add_argument("table")
    arguments = parser.parse_args()
    joins = declared_joins(arguments.paper)
    if arguments.table not in joins:
        raise UserError(
            f"Expected one of {', '.join(joins)} of papers/{arguments.paper}/paper.yaml, found {arguments.table}."
        )
    join = joins[arguments.table]
    experiments = {scenario: Experiment.of(scenario) for scenario in scenarios_of(join)}
    stem = sizes.tables() / arguments.paper / arguments.table
    write_joined(stem, experiments, partial(collect, join), partial(sheet, join))


if __name__ == "__main__":
    ended(main)
