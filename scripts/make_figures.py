"""Draw the figures of an experiment's runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from zetadp import figures, tables
from zetadp.epsilon import epsilon_value
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    *,
    metrics: list[Path],
    privacy: list[Path],
    histories: list[Path],
    accuracy: Path,
    confusion: Path,
    curves: Path,
    per_class: Path,
    cohort_label: str,
) -> None:
    """Draw accuracy, confusion, recall and training curves."""
    folders = [path.parent for path in metrics]
    runs = tables.collect(folders)
    table = tables.table1(runs, cohort_label)
    figures.save_svg(figures.accuracy_against_epsilon(table, cohort_label), accuracy)
    figures.save_svg(figures.confusion_matrices(chosen(runs), cohort_label), confusion)
    figures.save_svg(figures.training_curves(tables.collect_histories(folders), cohort_label), curves)
    figures.save_svg(figures.accuracy_per_class(runs, cohort_label), per_class)


def chosen(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs whose confusion is shown: for each network and arm the loosest guarantee, and none."""
    cells = runs.drop_duplicates([*tables.CELL]).copy()
    cells["value"] = cells["epsilon"].map(epsilon_value)
    private, free = cells[np.isfinite(cells["value"])], cells[cells["epsilon"] == "inf"]
    loosest = private.sort_values("value").groupby(["network", "arm"]).tail(1)
    keys = pd.concat([loosest, free])[tables.CELL].head(figures.MAX_MATRICES)
    return runs.merge(keys, on=tables.CELL)


if __name__ == "__main__":
    run(main, snakemake)
