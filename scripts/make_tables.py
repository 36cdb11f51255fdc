"""Write Table 1, and the table by node."""

import logging
from dataclasses import replace
from pathlib import Path

from zetadp.base.logs import NOTICE
from zetadp.base.storage import read_json, write_text
from zetadp.base.workflow import run
from zetadp.report import rendering, tables
from zetadp.report.notes import notes
from zetadp.report.provenance import Cohort, origin, seeds_shown
from zetadp.report.resultpage import describe_result


def main(
    *,
    metrics: list[Path],
    total: Path,
    csv: Path,
    md: Path,
    txt: Path,
    per_node: Path,
    declared: str,
    cohort: Cohort,
    planned: int,
) -> None:
    """Write accuracy against epsilon in three formats from the same cells, and the table by node as CSV.

    ``declared`` is the line on the cohort's origin. ``planned`` is the number of runs of the experiment; a table of
    fewer runs has a note that the others follow. Statements are in the folders of the metrics.
    """
    runs = tables.collect([path.parent for path in metrics])
    table_notes = notes(runs, cohort, read_json(total), planned)
    table = tables.table1(runs, cohort)
    sheet = rendering.accuracy_sheet(table, table_notes)
    trained = [read_json(path).get("environment", {}) for path in metrics]
    provenance = origin(declared, seeds_shown(runs["seed"]), runs=trained)
    write_text(csv, rendering.to_csv(table, (*provenance, *table_notes)))
    sheets = [replace(sheet, notes=()), *rendering.further_sheets(table)]
    sheets[-1] = replace(sheets[-1], notes=(*sheet.notes, *provenance))
    first = describe_result(table, simulated=cohort.simulated)
    write_text(md, "\n".join([f"{rendering.markdown_text(first)}\n", *map(rendering.to_markdown, sheets)]))
    text = f"{first}\n\n{rendering.to_text(rendering.accuracy_sheet(table, table_notes, intervals=False))}"
    write_text(txt, text)
    write_text(per_node, rendering.to_csv(tables.per_node(runs), (*provenance, *table_notes)))
    # Where more runs follow, this is the first result of some hours; the table of all stands at the end of the output.
    level = NOTICE if len(runs) < planned else logging.INFO
    logging.getLogger(__name__).log(level, "%s:\n\n%s", txt, text)


if __name__ == "__main__":
    run(main, unread=("privacy",))
