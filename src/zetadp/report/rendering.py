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

from zetadp.base.epsilon import epsilon_named, epsilon_order, rounded_up
from zetadp.base.storage import read_json, write_text
from zetadp.base.tables import MISSING, Sheet
from zetadp.base.templates import template
from zetadp.base.validation import shown
from zetadp.core.metrics import LEVEL
from zetadp.privacy.threat import arm_shown
from zetadp.report.provenance import KEYS
from zetadp.report.tables import BESIDE, holders, metric_shown, not_empty

FIGURE = "accuracy.svg"
_SHOWN = {
    "confusion.svg": "Confusion of the classes",
    "curves.svg": "Training curves on validation data",
    "patient.svg": "Data of one held-out patient",
}
_OF_A_RUN = (
    "Each run has a folder `runs/NETWORK/ARM/eps-EPSILON/seed-SEED`. There, `risk.html` says what the run may reveal "
    "about a person, and `privacy.txt` states its guarantee."
)
_NUMBER = re.compile(r"[+-][0-9.]+(e[+-]?[0-9]+)?%?")
_HTML = re.compile(r"<(?=[A-Za-z/!?])")


def accuracy_sheet(table: pd.DataFrame, notes: tuple[str, ...] = (), *, intervals: bool = True) -> Sheet:
    """Return `tables.table1` with networks and arms as rows and epsilons as columns.

    Parameters
    ----------
    table
        Result of `tables.table1`.
    notes
        Sentences to print below, as `zetadp.report.notes.notes` returns them.
    intervals
        Print its interval over patients under each mean. If images were classified together, also print the accuracy of
        each image by itself and that of volumes.
    """
    not_empty(table)
    title = f"Test {metric_shown(table['metric'].iloc[0])} in %"
    epsilons = sorted(set(table["epsilon"]), key=epsilon_order)
    rows = []
    for (network, arm), group in table.groupby(["network", "arm"], sort=False):
        cells = {str(row["epsilon"]): row for _, row in group.iterrows()}
        shown = arm_shown(str(arm), str(group["threat"].iloc[0]))
        named = f"{network} (per image)" if (group["unit"] == "image").any() else str(network)
        rows.append((named, shown, *(spread_cell(cells.get(e)) for e in epsilons)))
        if intervals:
            rows.append(("", f"{LEVEL:.0%} interval", *(interval_cell(cells.get(e)) for e in epsilons)))
            rows += [("", shown, *figures) for shown, figures in _beside(cells, epsilons)]
    heading = ("network", "arm", *map(epsilon_named, epsilons))
    return Sheet(title, heading, tuple(rows), (_spread_note(table, intervals=intervals), *notes), names=2)


def to_csv(frame: pd.DataFrame, notes: tuple[str, ...] = (), *, float_format: str | None = None) -> str:
    """Render a data frame as CSV, by default in full precision.

    The notes come first, as lines that begin with ``#``: read the file with ``read_csv(comment="#")``.
    """
    buffer = io.StringIO()
    buffer.writelines(f"# {line}\n" for note in notes for line in note.splitlines())
    frame.map(_csv_cell).to_csv(buffer, index=False, lineterminator="\n", float_format=float_format)
    return buffer.getvalue()


def _csv_cell(value: object) -> object:
    """Return a cell that is no formula of a spreadsheet and begins no comment; numbers stay what they are."""
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
    made: tuple[str, ...],
    *,
    float_format: str | None = None,
) -> None:
    """Write a table to files, each in the format that its name ends with: ``.csv`` or ``.md``.

    Parameters
    ----------
    files
        The files.
    frame, sheet
        The table as numbers, for CSV, and for readers.
    made
        How it was made, as `zetadp.report.provenance.origin` says it.
    float_format
        How CSV writes numbers, by default in full precision.
    """
    formats = {
        ".csv": lambda: to_csv(frame, (*made, *sheet.notes), float_format=float_format),
        ".md": lambda: to_markdown(replace(sheet, notes=(*sheet.notes, *made))),
    }
    for file in files:
        write_text(file, formats[file.suffix]())


def _spread_note(table: pd.DataFrame, *, intervals: bool) -> str:
    fewest, most = table["seeds"].min(), table["seeds"].max()
    count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    if most == 1:
        spread = "One seed a cell: the spread over seeds is unknown."
    else:
        spread = f"Mean ± standard deviation over {count} seeds."
    if not intervals:
        return spread
    whose = holders(table)
    return (
        f"{spread} Intervals: {LEVEL:.0%}, bootstrap over {whose}, resampled jointly over seeds; exact limits where "
        f"all {whose} are alike."
    )


def spread_cell(row: pd.Series | None) -> str:
    """Return mean and standard deviation of a row of `tables.table1` as a cell; without a row, a dash."""
    if row is None or math.isnan(row["mean"]):
        return MISSING
    return f"{row['mean']:.2f}" + ("" if math.isnan(row["std"]) else f" ± {row['std']:.2f}")


def interval_cell(row: pd.Series | None) -> str:
    """Return the interval of a row of `tables.table1` as a cell; without one, a dash."""
    if row is None or math.isnan(row["ci_low"]):
        return MISSING
    return f"{row['ci_low']:.2f} to {row['ci_high']:.2f}"


def _beside(cells: Mapping[str, pd.Series], epsilons: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return rows with further accuracies, if images were classified together."""
    if all(math.isnan(row["image_accuracy"]) for row in cells.values()):
        return []
    return [
        (shown, [f"{cells[epsilon][key]:.2f}" if epsilon in cells else MISSING for epsilon in epsilons])
        for key, shown in BESIDE.items()
    ]


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


def filled(file: str, *, filters: Mapping[str, Callable[..., Any]], html: bool = False, **values: Any) -> str:  # noqa: ANN401  (whatever the template shows)
    """Return a template beside this module with its values; in HTML every text is escaped and on one line."""
    return template(Path(__file__).parent / file, filters, html=html).render(**values).strip() + "\n"


def page_html(title: str, sections: Sequence[Section], *, repeated: int = 0, whole: bool = False) -> str:
    """Return a page that needs no other file and is well-formed XML; the first section's paragraphs are set off.

    Parameters
    ----------
    title, sections
        Content of the page.
    repeated
        Number of sections that the landing page of Snakemake's report repeats.
    whole
        Never break lines within tables on a screen.
    """
    return filled(
        "templates/page.html.j2",
        html=True,
        filters={"base64": _base64},
        title=title,
        sections=sections,
        repeated=repeated,
        whole=whole,
    )


def write_report(*, table: Path, total: Path, text: Path, pictures: list[Path], page: Path, name: str) -> None:
    """Write the page of an experiment, which needs no other file and no network.

    Parameters
    ----------
    table
        ``table1.csv``, with the notes below the table and the lines on how it was made.
    total, text
        ``privacy_total.json``, and the same as text.
    pictures
        SVG files, known by their names.
    page
        The page.
    name
        Name of the experiment.
    """
    frame = pd.read_csv(table, comment="#", dtype={"epsilon": str})
    lines = table.read_text(encoding="utf-8").splitlines()
    notes = [line.removeprefix("# ") for line in lines if line.startswith("#")]
    made = [note for note in notes if note.partition(":")[0] in KEYS]
    below = tuple(note for note in notes if note not in made)
    drawn = {path.name: path for path in pictures}
    title = f"{metric_shown(str(frame['metric'].iloc[0]))} against ε"
    main = {title: drawn[FIGURE]} if FIGURE in drawn else {}
    others = {shown: drawn[file] for file, shown in _SHOWN.items() if file in drawn}
    # The landing page of Snakemake's report shows the first section as well.
    sections = [
        Section("Result", [spent(read_json(total))], pictures=main, tables=[accuracy_sheet(frame, below)]),
        Section("Privacy of all runs together", texts=[text.read_text(encoding="utf-8")]),
        Section("Privacy of each run", [_OF_A_RUN]),
        *([Section("Further figures", pictures=others)] if others else []),
        Section("Origin", points=made),
    ]
    write_text(page, page_html(f"Results of the experiment {name}", sections, repeated=1, whole=True))


def spent(total: Mapping[str, Any]) -> str:
    """Return a sentence with the total cost of all runs for one unit."""
    rows, broken = total["private_rows"], len(total["all_rows"]["without_noise"])
    without = f"{broken} {'run has' if broken == 1 else 'runs have'} no noise and no guarantee"
    if not rows["runs"]:
        return f"Privacy: {without}."
    runs = "the one private run costs" if rows["runs"] == 1 else f"the {rows['runs']} private runs together cost"
    found = f"{runs} each {total['unit']} at most ε = {rounded_up(float(rows['epsilon']))} at δ = {total['delta']:g}"
    if total["noise_source"] == "seeded":
        found += "; the noise is seeded, so this is a simulation and protects nobody"
    return f"Privacy: {found}{f'; {without}' if broken else ''}."


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
