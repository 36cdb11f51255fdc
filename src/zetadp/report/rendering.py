"""Tables as CSV, Markdown and plain text, each with its notes, and pages of tables, text and figures.

All formats but CSV are rendered from one `Sheet`, so they show the same numbers. A page is one self-contained HTML file
or Markdown, made from a template.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from zetadp.accounting.threat import arm_shown
from zetadp.base.storage import write_text
from zetadp.base.tables import MISSING, Sheet
from zetadp.base.templates import template
from zetadp.base.validation import shown
from zetadp.report.tables import holders, metric_shown, not_empty, seeds_in_words
from zetadp.training.metrics import LEVEL

PUBLIC = "public weights"
"""Heading of the column for the metric of public weights before any private training."""
_NUMBER = re.compile(r"[+-][0-9.]+(e[+-]?[0-9]+)?%?")
DIGITS = 1
"""Decimal places of the tables of an experiment: intervals over patients are wider than the first place."""
_INTERVAL = re.compile(r" (?=\([\d.]+ to [\d.]+\)$)")
_WITHIN = re.compile(r"(?<=\d) (±|to) (?=\d)")
_HTML = re.compile(r"<(?=[A-Za-z/!?])")


def accuracy_sheet(table: pd.DataFrame, notes: tuple[str, ...] = (), *, intervals: bool = True) -> Sheet:
    """Return `tables.table1` with networks and arms as rows, and public weights and epsilons as columns.

    Parameters
    ----------
    table
        Result of `tables.table1`.
    notes
        Sentences to print below, as `zetadp.report.notes.notes` returns them.
    intervals
        Print standard deviation and interval after each mean.

    Returns
    -------
    Table whose cell is empty where the experiment has no run. Public weights have a column if a network starts from
    them.
    """
    cell = _with_interval if intervals else _mean
    start = {} if table["public_start"].isna().all() else {PUBLIC: _number("public_start")}
    sheet = _sheet(table, f"Test {metric_shown(table['metric'].iloc[0])} in %", cell, start)
    return replace(sheet, notes=(_spread_note(table, intervals=intervals), *notes))


def further_sheets(table: pd.DataFrame) -> list[Sheet]:
    """Return a table like `accuracy_sheet` for each further metric of the task."""
    further = [str(column) for column in table.columns if str(column).endswith(f"_{table['metric'].iloc[0]}")]
    return [_sheet(table, f"Test {column.replace('_', ' ')} in %", _number(column)) for column in further]


def _sheet(
    table: pd.DataFrame,
    title: str,
    cell: Callable[[pd.Series], str],
    start: Mapping[str, Callable[[pd.Series], str]] | None = None,
) -> Sheet:
    """Return a table of networks and arms with one column for each epsilon, after the columns of ``start``."""
    not_empty(table)
    targets, start = sorted(set(table["epsilon"])), start or {}
    rows = []
    for (network, arm), group in table.groupby(["network", "arm"], sort=False):
        cells = {row["epsilon"]: cell(row) for _, row in group.iterrows()}
        first = [show(group.iloc[0]) for show in start.values()]
        network_name = f"{network} (per image)" if (group["unit"] == "image").any() else str(network)
        arm_name = arm_shown(str(arm), str(group["threat"].iloc[0]))
        rows.append((network_name, arm_name, *first, *(cells.get(target, "") for target in targets)))
    return Sheet(title, ("network", "arm", *start, *(target.title for target in targets)), tuple(rows), names=2)


def _number(column: str) -> Callable[[pd.Series], str]:
    """Return a function that shows the number in a column of a row; a missing one is an empty cell."""
    return lambda row: "" if math.isnan(row[column]) else f"{row[column]:.{DIGITS}f}"


_mean = _number("mean")


def _with_interval(row: pd.Series) -> str:
    """Return mean, standard deviation and, in parentheses, the interval of a row of `tables.table1`."""
    interval = "" if math.isnan(row["ci_low"]) else f" ({interval_cell(row, DIGITS)})"
    return f"{spread_cell(row, DIGITS)}{interval}"


def to_csv(frame: pd.DataFrame, notes: tuple[str, ...] = (), *, float_format: str | None = None) -> str:
    """Render a data frame as CSV, by default in full precision.

    The notes come first, as lines that begin with ``#``: read the file with ``read_csv(comment="#")``.
    """
    buffer = io.StringIO()
    buffer.writelines(f"# {line}\n" for note in notes for line in note.splitlines())
    frame.map(_csv_cell).to_csv(buffer, index=False, lineterminator="\n", float_format=float_format)
    return buffer.getvalue()


def _csv_cell(value: object) -> object:
    """Escape a text that a spreadsheet would read as a formula, or a reader as a comment; numbers do not change."""
    if not isinstance(value, str):
        return value
    text = shown(value).replace("#", "\uff03")
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(text) else text


def markdown_text(text: str) -> str:
    """Return a text for a page in Markdown, on one line and without raw HTML."""
    return _HTML.sub("&lt;", shown(text))


def to_markdown(sheet: Sheet) -> str:
    """Render a sheet as a GitHub table with its notes as a list."""
    head, *body = [[markdown_text(cell).replace("|", r"\|") for cell in row] for row in (sheet.columns, *sheet.rows)]
    rule = [":--" if index < sheet.names else "--:" for index in range(len(head))]
    lines = [f"| {' | '.join(row)} |" for row in (head, rule, *body)]
    listed = [f"- {markdown_text(note)}" for note in sheet.notes]
    return "\n".join([f"**{markdown_text(sheet.title)}**", "", *lines, *([""] if listed else []), *listed]) + "\n"


def to_text(sheet: Sheet) -> str:
    """Render a sheet as an aligned text table for the terminal."""
    rows = [sheet.columns, *sheet.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(sheet.columns))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if index < sheet.names else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([sheet.title, "", *lines, *([""] if sheet.notes else []), *sheet.notes]) + "\n"


def write_table(
    files: Iterable[Path],
    frame: pd.DataFrame,
    sheet: Sheet,
    origin: tuple[str, ...],
    *,
    float_format: str | None = None,
) -> None:
    """Write a table to files, in the format of their suffix: ``.csv`` or ``.md``.

    Parameters
    ----------
    files
        The files.
    frame, sheet
        The table as numbers, for CSV, and for readers.
    origin
        Lines on its origin, from `zetadp.report.provenance.origin`.
    float_format
        Format of numbers in CSV, by default full precision.
    """
    formats = {
        ".csv": lambda: to_csv(frame, (*origin, *sheet.notes), float_format=float_format),
        ".md": lambda: to_markdown(replace(sheet, notes=(*sheet.notes, *origin))),
    }
    for file in files:
        write_text(file, formats[file.suffix]())


def _spread_note(table: pd.DataFrame, *, intervals: bool) -> str:
    if table["seeds"].max() == 1:
        spread = "One seed per cell: the spread over seeds is unknown."
    else:
        spread = f"Mean{' ± standard deviation' if intervals else ''} over {seeds_in_words(table['seeds'])}."
    if not intervals:
        return spread
    units = holders(table)
    return (
        f"{spread} In parentheses: {LEVEL:.0%} interval, bootstrap over {units}, resampled jointly over seeds; exact "
        f"limits where all {units} are alike."
    )


def spread_cell(row: pd.Series | None, digits: int = 2) -> str:
    """Return mean and standard deviation of a row of `tables.table1` as a cell; without a row, a dash."""
    if row is None or math.isnan(row["mean"]):
        return MISSING
    return f"{row['mean']:.{digits}f}" + ("" if math.isnan(row["std"]) else f" ± {row['std']:.{digits}f}")


def interval_cell(row: pd.Series | None, digits: int = 2) -> str:
    """Return the interval of a row of `tables.table1` as a cell; without one, a dash."""
    if row is None or math.isnan(row["ci_low"]):
        return MISSING
    return f"{row['ci_low']:.{digits}f} to {row['ci_high']:.{digits}f}"


@dataclass(frozen=True)
class Section:
    """A part of a page; its elements appear in the order of the attributes.

    Attributes
    ----------
    heading
        One line.
    paragraphs
        Texts, with code in backticks.
    pictures
        SVG files by their descriptions.
    tables
        Tables with their notes.
    texts
        Preformatted texts, whose line breaks stay.
    points
        Items of a list, with code in backticks.
    """

    heading: str
    paragraphs: Sequence[str] = ()
    pictures: dict[str, Path] = field(default_factory=dict)
    tables: Sequence[Sheet] = ()
    texts: Sequence[str] = ()
    points: Sequence[str] = ()


def render_template(file: str, *, filters: Mapping[str, Callable[..., Any]], html: bool = False, **values: Any) -> str:  # noqa: ANN401  (whatever the template shows)
    """Render a template of this package; in HTML every text is escaped and on one line."""
    return template(Path(__file__).parent / file, filters, html=html).render(**values).strip() + "\n"


def page_html(title: str, sections: Sequence[Section], *, repeated: int = 0) -> str:
    """Return a page that needs no other file and is well-formed XML; the first section's paragraphs are set off.

    Parameters
    ----------
    title, sections
        Content of the page.
    repeated
        Number of leading sections that the landing page of Snakemake's report repeats.
    """
    return render_template(
        "templates/page.html.j2",
        html=True,
        filters={"base64": _base64, "in_cell": _in_cell},
        title=title,
        sections=sections,
        repeated=repeated,
    )


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _in_cell(text: str) -> Markup:
    """Return the text of a cell, with an interval on a separate line, and no other break within numbers."""
    lines = _INTERVAL.sub("<br/>", str(escape(shown(text))))
    return Markup(_WITHIN.sub(r"&#160;\1&#160;", lines))  # noqa: S704  (escaped above)
