"""Draw the figures of an experiment's runs."""

from pathlib import Path

from zetadp.base.workflow import run
from zetadp.report import figures, tables
from zetadp.report.figures import accuracy_against_epsilon
from zetadp.report.figurestyle import save_svg


def main(
    *,
    metrics: list[Path],
    privacy: list[Path],
    histories: list[Path],
    accuracy: Path,
    curves: Path,
    cohort_label: str,
    confusion: Path | None = None,
) -> None:
    """Draw the metric against epsilon and training curves and, for a task with classes, confusion."""
    runs = tables.collect([path.parent for path in metrics])
    table = tables.table1(runs, cohort_label)
    chance = tables.chance_of(runs)
    save_svg(accuracy_against_epsilon(table, cohort_label, chance=chance), accuracy)
    save_svg(figures.training_curves(tables.histories(runs), cohort_label, chance=chance), curves)
    if confusion is not None:
        save_svg(figures.confusion_matrices(runs, cohort_label), confusion)


if __name__ == "__main__":
    run(main)
