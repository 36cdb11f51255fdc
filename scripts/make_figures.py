"""Draw the figures of an experiment's runs."""

from pathlib import Path

from zetadp.base.workflow import run
from zetadp.report import figures, tables
from zetadp.report.accuracyfigure import accuracy_against_epsilon, compare_networks
from zetadp.report.figurestyle import save_svg
from zetadp.report.provenance import Cohort


def main(
    *,
    metrics: list[Path],
    accuracy: Path,
    cohort: Cohort,
    networks: Path | None = None,
    curves: Path | None = None,
    confusion: Path | None = None,
) -> None:
    """Draw the metric of the leading network against epsilon.

    The experiment decides on the other figures: other networks, training curves, and confusion of classes. Statements
    and histories are in the folders of the metrics.
    """
    runs = tables.collect([path.parent for path in metrics])
    table = tables.table1(runs, cohort)
    chance, leading = tables.chance_of(runs), tables.leading_network(table)
    save_svg(accuracy_against_epsilon(table, cohort, networks=[leading], chance=chance), accuracy)
    if networks is not None:
        others = [name for name in table["network"].unique() if name != leading]
        save_svg(compare_networks(table, cohort, networks=others, chance=chance), networks)
    if curves is not None:
        save_svg(figures.training_curves(tables.histories(runs), cohort, chance=chance), curves)
    if confusion is not None:
        save_svg(figures.confusion_matrices(runs, cohort), confusion)


if __name__ == "__main__":
    run(main, unread=("privacy", "histories"))
