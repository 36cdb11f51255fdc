"""Draw every figure of an experiment."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from zetadp import figures, tables
from zetadp.epsilon import epsilon_value
from zetadp.federation.partition import read_partition
from zetadp.storage import ImageStack, read_stack
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    *,
    metrics: list[Path],
    privacy: list[Path],
    histories: list[Path],
    slices: list[Path],
    kspace: list[Path],
    whitened: list[Path],
    partition: Path,
    accuracy: Path,
    confusion: Path,
    curves: Path,
    per_class: Path,
    patient: Path,
    cohort_label: str,
) -> None:
    """Draw accuracy, confusion, training curves and one held-out patient."""
    folders = [path.parent for path in metrics]
    runs = tables.collect(folders)
    table = tables.table1(runs, cohort_label)
    figures.save_svg(figures.accuracy_against_epsilon(table, cohort_label), accuracy)
    figures.save_svg(figures.confusion_matrices(chosen(runs), cohort_label), confusion)
    figures.save_svg(figures.training_curves(tables.collect_histories(folders), cohort_label), curves)
    figures.save_svg(figures.accuracy_per_class(runs, cohort_label), per_class)

    rows = read_partition(partition)
    record = rows.loc[rows["role"] == "test", "record"].iloc[0]
    images, stack = images_of(slices, record)
    middle = images.shape[1] // 2
    figure = figures.patient_figure(
        images[:, middle],
        images_of(kspace, record)[0][:, middle],
        images_of(whitened, record)[0][:, middle],
        stack.sequences,
        patient=record,
        slice_number=middle,
        cohort_label=cohort_label,
    )
    figures.save_svg(figure, patient)


def chosen(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs whose confusion is shown: for each network and arm the loosest guarantee, and none."""
    cells = runs.drop_duplicates([*tables.CELL]).copy()
    cells["value"] = cells["epsilon"].map(epsilon_value)
    private, free = cells[np.isfinite(cells["value"])], cells[cells["epsilon"] == "inf"]
    loosest = private.sort_values("value").groupby(["network", "arm"]).tail(1)
    keys = pd.concat([loosest, free])[tables.CELL].head(figures.MAX_MATRICES)
    return runs.merge(keys, on=tables.CELL)


def images_of(files: list[Path], record: str) -> tuple[np.ndarray, ImageStack]:
    """Return one record's images of shape (sequence, slice, row, column), and the stack that they stand in."""
    for file in files:
        stack = read_stack(file)
        if record in stack.patients:
            return stack.values[stack.patients.index(record)], stack
    msg = f"No stack holds record {record}."
    raise ValueError(msg)


if __name__ == "__main__":
    run(main, snakemake)
