"""The page of an experiment: its results, their cost in privacy, and their origin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from zetadp.accounting.threat import MASKED_SUMS, NoiseSource
from zetadp.base.epsilon import rounded_up
from zetadp.base.storage import read_json, write_text
from zetadp.report.provenance import KEYS
from zetadp.report.rendering import Section, accuracy_sheet, further_sheets, page_html
from zetadp.report.tables import best_without_noise, leading_network, metric_shown, private_rows, read_table1
from zetadp.training.metrics import LEVEL

_SHOWN = {
    "networks.svg": "Other networks",
    "confusion.svg": "Confusion of the classes",
    "curves.svg": "Training curves on validation data",
    "patient.svg": "Data of one held-out patient",
}
_FIGURE = "accuracy.svg"
_OF_A_RUN = (
    "Each run has a folder `runs/NETWORK/ARM/eps-EPSILON/seed-SEED`. There, `risk.html` describes what the run may "
    "reveal about a person, and `privacy.txt` states its guarantee."
)


def write_report(
    *, table: Path, total: Path, text: Path, pictures: list[Path], page: Path, name: str, simulated: bool
) -> None:
    """Write the page of an experiment, which needs no other file and no network.

    Parameters
    ----------
    table
        ``table1.csv``, with the notes below the table and the lines on its origin.
    total, text
        ``privacy_total.json``, and the same as text.
    pictures
        SVG files, identified by their names.
    page
        The page.
    name, simulated
        Name of the experiment, and whether its cohort is simulated.
    """
    frame = read_table1(table)
    lines = table.read_text(encoding="utf-8").splitlines()
    notes = [line.removeprefix("# ") for line in lines if line.startswith("#")]
    origin = [note for note in notes if note.partition(":")[0] in KEYS]
    below = tuple(note for note in notes if note not in origin)
    figures = {path.name: path for path in pictures}
    title = f"{metric_shown(str(frame['metric'].iloc[0]))} against ε"
    main = {title: figures[_FIGURE]} if _FIGURE in figures else {}
    others = {heading: figures[file] for file, heading in _SHOWN.items() if file in figures}
    # The landing page of Snakemake's report shows the first three sections as well.
    sections = [
        Section("Result", [describe_result(frame, simulated=simulated)], pictures=main),
        Section("Cost in privacy", [describe_cost(read_json(total))]),
        Section("All networks", tables=[accuracy_sheet(frame, below)]),
        *([Section("Further tables", tables=further)] if (further := further_sheets(frame)) else []),
        *([Section("Further figures", pictures=others)] if others else []),
        Section("Privacy of all runs together", texts=[text.read_text(encoding="utf-8")]),
        Section("Privacy of each run", [_OF_A_RUN]),
        Section("Origin", points=origin),
    ]
    write_text(page, page_html(f"Results of the experiment {name}", sections, repeated=3))


def describe_result(table: pd.DataFrame, *, simulated: bool) -> str:
    """Return a sentence on the result of the leading network, at the epsilon that is closest to 1.

    Parameters
    ----------
    table
        Result of `tables.table1`.
    simulated
        Whether its cohort is simulated.
    """
    metric, network = metric_shown(str(table["metric"].iloc[0])), leading_network(table)
    cohort = "On a simulated cohort, the" if simulated else "The"
    private, free = private_rows(table), best_without_noise(table).to_dict("records")
    rows = private[private["network"] == network]
    if rows.empty:
        best = free[0]
        return (
            f"{cohort} best network, {best['network']}, reaches a test {metric} of {_percent(best)} without noise. No "
            "run has a privacy guarantee."
        )
    rows = rows[rows["arm"] == rows["arm"].iloc[0]]
    row = rows.loc[rows["epsilon"].map(lambda target: abs(math.log(target.epsilon))).idxmin()]
    sums = " with masked sums" if row["threat"] == MASKED_SUMS else ""
    others = []
    if not math.isnan(row["public_start"]):
        others.append(f"its public weights alone reach {row['public_start']:.1f} %")
    for best in free:
        subject = "the same network" if best["network"] == network else f"the best network, {best['network']},"
        others.append(f"without noise {subject} reaches {best['mean']:.1f} %")
    comparison = f"; {', and '.join(others)}" if others else ""
    guarantee = f"{row['epsilon'].title} per {row['unit']}{sums}"
    return f"{cohort} network {network} reaches a test {metric} of {_percent(row)} at {guarantee}{comparison}."


def _percent(row: Mapping[Any, Any] | pd.Series) -> str:
    """Return a mean in % with its interval."""
    if math.isnan(row["ci_low"]):
        return f"{row['mean']:.1f} %"
    return f"{row['mean']:.1f} % ({LEVEL:.0%} interval {row['ci_low']:.1f} to {row['ci_high']:.1f})"


def describe_cost(total: Mapping[str, Any]) -> str:
    """Return a sentence with the total cost of all runs for one unit."""
    rows, broken = total["private_rows"], len(total["all_rows"]["without_noise"])
    without = f"{broken} {'run has' if broken == 1 else 'runs have'} no noise and no guarantee"
    if not rows["runs"]:
        return f"{without}."
    runs = "The one private run costs" if rows["runs"] == 1 else f"The {rows['runs']} private runs together cost"
    sentence = f"{runs} each {total['unit']} at most ε = {rounded_up(float(rows['epsilon']))} at δ = {total['delta']:g}"
    if total["noise_source"] == NoiseSource.SEEDED:
        sentence += "; the noise is seeded, so this is a simulation and protects nobody"
    return f"{sentence}{f'; {without}' if broken else ''}."
