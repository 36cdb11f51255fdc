"""Tabulate the runs of paper_small.yaml that have finished, beside what the paper prints.

    python -m papers.complex_mri.tabulate_grid

writes table.csv, table.md and accuracy.svg, also before all models are there. Training one takes 15 to 40 minutes of
one core. The runs of a table may come from several machines: a kept cell of n seeds has the first n,
and other seeds from this machine join it.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd

from papers.experiments import ROOT, Experiment, declared_by, ended, parser_of
from zetadp.base.epsilon import epsilon_order
from zetadp.base.storage import read_json, write_text
from zetadp.base.tables import MISSING
from zetadp.base.validation import UserError
from zetadp.report import rendering, tables
from zetadp.report.figures import accuracy_against_epsilon
from zetadp.report.figurestyle import save_svg
from zetadp.report.notes import notes
from zetadp.report.provenance import origin

SCENARIO = "paper_small"
KEPT = ROOT / "papers/complex_mri/results/table.csv"
PRINTED = Path(__file__).with_name("printed.csv")
NOTE = (
    "The paper prints its own cohort, network and reading of the guarantee, over 10 seeds: no result of these runs. "
    "It states ε per patient; we infer from its batch and epochs that images were counted. Do not compare at equal ε."
)


def earlier(path: Path) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """Return the cells of a kept table, without an index, and where and with which code they were trained."""
    if not path.is_file():
        return pd.DataFrame(columns=[*tables.CELL, "seeds"]), []
    header = dict(re.findall(r"^# (\w+): (.*)$", path.read_text(), flags=re.MULTILINE))
    commits = header["commit"].rsplit("trainings by ", 1)[-1].split(", ")
    places = [place.removesuffix(" cores").rsplit(", ", 1) for place in header["hardware"].split("; ")]
    trained = [{"commit": commit, "device": device, "cores": cores} for commit in commits for device, cores in places]
    kept = pd.read_csv(path, dtype={"epsilon": str}, comment="#")
    return kept.drop(columns=["paper_mean", "paper_std", "printed", "printed_std"], errors="ignore"), trained


def with_earlier(runs: pd.DataFrame, label: str, kept: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the table of runs and of the cells of a kept table, and runs for its notes.

    A kept cell is left out where this machine has all its seeds. The runs of the others have only what notes need.
    """
    patients = runs["per_patient"].iloc[0]  # the same in all runs
    here = {cell: set(own["seed"]) for cell, own in runs.groupby(tables.CELL)}
    kept = kept.set_index(tables.CELL)
    missing = [not here.get(cell, set()) >= set(range(own["seeds"])) for cell, own in kept.iterrows()]
    kept = kept[np.array(missing, dtype=bool)]
    first = kept["seeds"].reindex(pd.MultiIndex.from_frame(runs[tables.CELL]), fill_value=0)
    runs = runs[runs["seed"].to_numpy() >= first.to_numpy()]
    parts = [kept.reset_index()] if len(kept) else []
    parts += [tables.table1(runs, label)] if len(runs) else []
    cells = [joined(own) for _, own in pd.concat(parts).groupby(tables.CELL)]
    others = kept.loc[kept.index.repeat(kept["seeds"])].reset_index().rename(columns={"noise": "noise_source"})
    others["per_patient"] = [patients] * len(others)
    return tables.ordered(pd.DataFrame(cells)), pd.concat([runs, others], ignore_index=True)


def joined(parts: pd.DataFrame) -> pd.Series:
    """Return one cell from parts with different seeds; the bounds of its interval are means over seeds."""
    seeds = parts["seeds"].to_numpy()
    cell = parts.iloc[0].copy()
    for name in ("mean", "ci_low", "ci_high", *tables.BESIDE):
        cell[name] = np.average(parts[name].astype(float), weights=seeds)
    cell["seeds"] = seeds.sum()
    if cell["seeds"] > 1:
        squares = parts["std"].astype(float).fillna(0) ** 2 * (seeds - 1) + seeds * (parts["mean"] - cell["mean"]) ** 2
        cell["std"] = math.sqrt(squares.sum() / (cell["seeds"] - 1))
    return cell


def beside_printed(table: pd.DataFrame) -> tuple[pd.DataFrame, list[tuple[str, ...]]]:
    """Return the table with the columns ``printed`` and ``printed_std``, and a row for each arm of the paper."""
    printed = pd.read_csv(PRINTED, dtype={"epsilon": str}, comment="#")
    epsilons = sorted(set(table["epsilon"]), key=epsilon_order)
    rows = []
    for arm, cells in printed.set_index("epsilon").groupby("arm", sort=False):
        shown = [
            f"{cells.printed[e]:.2f} ± {cells.printed_std[e]:.2f}" if e in cells.index else MISSING for e in epsilons
        ]
        rows.append(("the paper, printed", str(arm), *shown))
    return table.merge(printed, how="left", on=["arm", "epsilon"]), rows


def main() -> None:
    """Write table and figure."""
    given = parser_of(__doc__, "complex_mri").parse_args()
    experiment = Experiment.of(SCENARIO)
    names = experiment.config.run_names
    folders = [folder for folder in map(experiment.folder, names) if (folder / "metrics.json").is_file()]
    if not folders:
        raise UserError(f"Expected finished runs in {experiment.results}/runs, found none. Run: make paper-complex_mri")
    cohort = asdict(experiment.config.cohort)
    label = f"simulated cohort {cohort['name']}, {cohort['train_patients']} + {cohort['test_patients']} patients"
    runs = tables.collect(folders)
    kept, elsewhere = earlier(KEPT)
    table, runs = with_earlier(runs, label, kept)
    below = notes(runs, label, planned=len(names))
    if elsewhere:
        below += ("Intervals of cells whose runs come from several machines are means of those machines', by seeds.",)
    trained = [read_json(folder / "metrics.json")["environment"] for folder in folders]
    made = origin(*declared_by(SCENARIO), runs=trained + elsewhere)
    below += (NOTE,)
    sheet = rendering.accuracy_sheet(table, (*below, *made))
    table, printed = beside_printed(table)
    sheet = replace(sheet, rows=(*sheet.rows, *printed))
    write_text(given.output / "table.csv", rendering.to_csv(table, (*made, *below)))
    write_text(given.output / "table.md", rendering.to_markdown(sheet))
    save_svg(accuracy_against_epsilon(table, label, chance=tables.chance_of(runs)), given.output / "accuracy.svg")
    print(rendering.to_text(sheet))


if __name__ == "__main__":
    ended(main)
