"""Tabulate the runs of paper_small.yaml that have finished, beside what the paper prints.

    make paper

trains the models, which takes 15 to 40 minutes of one core each, and runs this, which writes paper/table.csv, table.md
and accuracy.svg. Interrupted, it goes on where it stopped. Until all models are there,

    python benchmarks/paper.py

tabulates those that are. A cell of the kept table stays as it is where this machine has fewer of its seeds: the runs
of a table may come from several machines.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pandas as pd
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


def earlier(path: Path) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """Return the cells of a kept table, without an index, and where and with which code they were trained."""
    if not path.is_file():
        return pd.DataFrame(columns=[*tables.CELL, "seeds"]), []
    header = dict(re.findall(r"^# (\w+): (.*)$", path.read_text(), flags=re.MULTILINE))
    commits = header["commit"].rsplit("trainings by ", 1)[-1].split(", ")
    places = [place.removesuffix(" cores").rsplit(", ", 1) for place in header["hardware"].split("; ")]
    trained = [{"commit": commit, "device": device, "cores": cores} for commit in commits for device, cores in places]
    return pd.read_csv(path, dtype={"epsilon": str}, comment="#"), trained


def with_earlier(table: pd.DataFrame, runs: pd.DataFrame, kept: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return table and runs with those cells of a kept table that have more seeds there.

    The runs of such cells have only what notes below a table need.
    """
    both = pd.concat([kept.assign(place="kept"), table.assign(place="here")])
    both = both.sort_values("seeds", kind="stable").drop_duplicates(tables.CELL, keep="last")
    stay = both[both.pop("place") == "kept"]
    mine = ~runs.set_index(tables.CELL).index.isin(stay.set_index(tables.CELL).index)
    others = stay.loc[stay.index.repeat(stay["seeds"])].rename(columns={"noise": "noise_source"})
    others = others.assign(per_patient=[runs["per_patient"].iloc[0]] * len(others))  # all have the same test patients
    return tables.ordered(both), pd.concat([runs[mine], others], ignore_index=True)


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
    kept, elsewhere = earlier(given.output / "table.csv")
    table, runs = with_earlier(tables.table1(runs, label), runs, kept)
    below = notes(runs, label, planned=len(names))
    trained = [read_json(folder / "metrics.json")["environment"] for folder in folders]
    made = origin(*declared(), runs=trained + elsewhere)
    sheet = rendering.accuracy_sheet(table, (*below, *made))
    write_text(given.output / "table.csv", rendering.to_csv(table, (*made, *below)))
    write_text(given.output / "table.md", rendering.to_markdown(sheet))
    save_svg(accuracy_against_epsilon(table, label, chance=tables.chance_of(runs)), given.output / "accuracy.svg")
    print(rendering.to_text(sheet))


if __name__ == "__main__":
    ended(main)
