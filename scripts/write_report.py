"""Write the page with the result of an experiment, and the picture of its stages."""

from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.base.workflow import run
from zetadp.report.figurestyle import save_svg
from zetadp.report.resultpage import Results, write_results
from zetadp.report.stagesfigure import stages_figure

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    *,
    table: Path,
    total: Path,
    text: Path,
    pictures: list[Path],
    page: Path,
    stages: Path,
    name: str,
    rules: list[str],
) -> None:
    """Write the page from what other rules made; ``rules`` names the scripts that the workflow runs."""
    save_svg(stages_figure(rules), stages)
    write_results(Results.read(table, total, text, [*pictures, stages]), name, page)


if __name__ == "__main__":
    run(main, snakemake)
