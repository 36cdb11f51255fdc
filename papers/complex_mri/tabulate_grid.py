"""Tabulate the runs of paper_small.yaml that have finished here, next to what the paper prints.

    python -m papers.complex_mri.tabulate_grid

writes table.csv, table.md and accuracy.svg, also before all runs have finished. It reads no kept table: every cell is
of this machine's runs.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd

from papers.experiments import Experiment, declared_by, ended, marked, parser_of, save_figure
from zetadp.base.epsilon import Target
from zetadp.base.storage import read_json, write_text
from zetadp.base.tables import MISSING
from zetadp.base.validation import UserError
from zetadp.report import rendering, tables
from zetadp.report.accuracyfigure import accuracy_against_epsilon
from zetadp.report.notes import notes
from zetadp.report.provenance import Cohort, origin

SCENARIO = "paper_small"
PRINTED = Path(__file__).with_name("printed.csv")
NOTE = (
    "The paper prints its own cohort, network and reading of the guarantee, over 10 seeds: no result of these runs. "
    "It states ε per patient; we infer from its batch and epochs that images were counted. Do not compare at equal ε."
)


def with_printed(table: pd.DataFrame) -> tuple[pd.DataFrame, list[tuple[str, ...]]]:
    """Return the table with the columns ``printed`` and ``printed_std``, and a row for each arm of the paper."""
    printed = pd.read_csv(PRINTED, converters={"epsilon": Target.named}, comment="#")
    epsilons = sorted(set(table["epsilon"]))
    rows = []
    for arm, cells in printed.set_index("epsilon").groupby("arm", sort=False):
        cells_shown = [
            f"{cells.printed[e]:.2f} ± {cells.printed_std[e]:.2f}" if e in cells.index else MISSING for e in epsilons
        ]
        rows.append(("the paper, printed", str(arm), *cells_shown))
    return table.merge(printed, how="left", on=["arm", "epsilon"]), rows


def main() -> None:
    """Write table and figure."""
    arguments = parser_of(__doc__, "complex_mri").parse_args()
    experiment = Experiment.of(SCENARIO)
    names = experiment.config.run_names
    folders = [folder for folder in map(experiment.folder, names) if folder.metrics.is_file()]
    if not folders:
        raise UserError(f"Expected finished runs in {experiment.results}/runs, found none. Run: make paper-complex_mri")
    cohort = asdict(experiment.config.cohort)
    size = f"{cohort['train_patients']} + {cohort['test_patients']} patients"
    people = Cohort(f"cohort {cohort['name']}, {size}", simulated=True)
    runs = tables.collect([folder.path for folder in folders])
    table = tables.table1(runs, people)
    trained = [read_json(folder.metrics)["environment"] for folder in folders]
    source = marked(origin(*declared_by(SCENARIO), runs=trained))
    below = (*notes(runs, people, planned=len(names)), NOTE)
    sheet = rendering.accuracy_sheet(table, (*below, *source))
    table, printed = with_printed(table)
    sheet = replace(sheet, rows=(*sheet.rows, *printed))
    write_text(arguments.output / "table.csv", rendering.to_csv(table, (*source, *below)))
    write_text(arguments.output / "table.md", rendering.to_markdown(sheet))
    save_figure(
        accuracy_against_epsilon(table, people, chance=tables.chance_of(runs)), arguments.output / "accuracy.svg"
    )
    print(rendering.to_text(sheet))


if __name__ == "__main__":
    ended(main)
