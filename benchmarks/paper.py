"""Tabulate the runs of paper_small.yaml that have finished, beside what the paper prints.

    make paper

trains the models, which takes about an hour of one core each, and runs this, which writes paper/table.csv, table.md
and accuracy.svg. Interrupted, it goes on where it stopped. Until all models are there,

    python benchmarks/paper.py

tabulates those that are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scenarios import Experiment, declared_by, ended

from zetadp.config.configured import run_names
from zetadp.report import rendering, tables
from zetadp.report.accuracyfigure import accuracy_against_epsilon
from zetadp.report.figurestyle import save_svg
from zetadp.report.notes import notes
from zetadp.report.provenance import origin
from zetadp.storage import read_json, write_text
from zetadp.validation import UserError

SCENARIO = "paper_small"


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return declared_by(SCENARIO)


def main() -> None:
    """Write table and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results/paper"))
    given = parser.parse_args()
    experiment = Experiment.of(SCENARIO)
    names = run_names(experiment.config)
    folders = [folder for folder in map(experiment.folder, names) if (folder / "metrics.json").is_file()]
    if not folders:
        raise UserError(f"Expected finished runs in {experiment.results}/runs, found none. Run: make paper")
    cohort = experiment.config["cohort"]
    label = f"simulated cohort {cohort['name']}, {cohort['train_patients']} + {cohort['test_patients']} patients"
    runs = tables.collect(folders)
    table = tables.table1(runs, label)
    below = notes(runs, label, planned=len(names))
    trained = [read_json(folder / "metrics.json")["environment"] for folder in folders]
    made = origin(*declared(), runs=trained)
    sheet = rendering.accuracy_sheet(table, (*below, *made))
    write_text(given.output / "table.csv", rendering.to_csv(table, (*made, *below)))
    write_text(given.output / "table.md", rendering.to_markdown(sheet))
    save_svg(accuracy_against_epsilon(table, label, chance=tables.chance_of(runs)), given.output / "accuracy.svg")
    print(rendering.to_text(sheet))


if __name__ == "__main__":
    ended(main)
