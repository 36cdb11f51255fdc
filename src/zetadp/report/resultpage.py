"""One page with the result of an experiment: its figure, its table, and its cost in privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from zetadp.base.epsilon import epsilon_shown, epsilon_value, rounded_up
from zetadp.base.storage import read_json, write_text
from zetadp.base.tables import Sheet
from zetadp.privacy.threat import arm_shown
from zetadp.report.provenance import KEYS
from zetadp.report.rendering import Section, accuracy_sheet, page_html
from zetadp.report.tables import is_simulated, metric_shown

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
_MOST_NAMED = 4


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
    # The landing page shows these as well.
    result = [
        Section("In two sentences", [reached(frame), spent(read_json(total))]),
        Section("Figure and table", pictures=main, tables=[accuracy_sheet(frame, below)]),
    ]
    details = [
        Section("Privacy of each network", [_OF_A_RUN], tables=[_stated(frame)]),
        Section("Privacy of all runs together", texts=[text.read_text(encoding="utf-8")]),
        *([Section("Further figures", pictures=others)] if others else []),
        Section("Origin", points=made),
    ]
    heading = f"Results of the experiment {name}"
    write_text(page, page_html(heading, [*result, *details], repeated=len(result), whole=True))


def reached(table: pd.DataFrame) -> str:
    """Return a sentence with the networks' results at the smallest epsilon, best first."""
    private = table[~table["epsilon"].map(epsilon_value).map(math.isinf)]
    shown = private if len(private) else table
    least = min(shown["epsilon"], key=epsilon_value)
    rows = shown[shown["epsilon"] == least].sort_values("mean", ascending=False, kind="stable")
    metric = metric_shown(str(rows["metric"].iloc[0]))
    named = [f"{row['network']} ({_arm(row)}) {row['mean']:.1f} %" for _, row in rows.head(_MOST_NAMED).iterrows()]
    more = f", and {len(rows) - _MOST_NAMED} more in the table" if len(rows) > _MOST_NAMED else ""
    units = " or ".join(sorted({f"per {unit}" for unit in rows["unit"]}))
    at = f"At ε = {epsilon_shown(least)} {units}" if len(private) else "Without noise, and so without a guarantee"
    whose = " on simulated data" if rows["cohort"].map(is_simulated).all() else ""
    return f"{at}, the test {metric}{whose} is: {', '.join(named)}{more}."


def spent(total: Mapping[str, Any]) -> str:
    """Return a sentence with the total cost of all runs for one unit."""
    rows, broken = total["private_rows"], len(total["all_rows"]["without_noise"])
    without = f"{broken} {'run has' if broken == 1 else 'runs have'} no noise and no guarantee"
    if not rows["runs"]:
        return f"Privacy: {without}."
    runs = "The one private run costs" if rows["runs"] == 1 else f"The {rows['runs']} private runs together cost"
    found = f"{runs} each {total['unit']} at most ε = {rounded_up(float(rows['epsilon']))} at δ = {total['delta']:g}"
    if total["noise_source"] == "seeded":
        found += "; the noise is seeded, so this is a simulation and protects nobody"
    return f"Privacy: {found[0].lower()}{found[1:]}{f'; {without}' if broken else ''}."


def _stated(table: pd.DataFrame) -> Sheet:
    """Return a table of the target epsilon of each network, and the epsilon computed from its ledgers."""
    rows = tuple(
        (
            str(row["network"]),
            _arm(row),
            epsilon_shown(row["epsilon"]),
            rounded_up(float(row["epsilon_stated"])) if math.isfinite(row["epsilon_stated"]) else "none",
            f"{row['unit']}, δ = {row['delta']:g}",
            str(row["noise"]),
        )
        for _, row in table.iterrows()
    )
    columns = ("network", "arm", "ε planned", "ε from the ledger", "per", "noise")
    notes = ("Of several seeds: the largest. None: there is no guarantee.",)
    return Sheet("What one run spends", columns, rows, notes, names=2)


def _arm(row: pd.Series) -> str:
    return arm_shown(str(row["arm"]), str(row["threat"]))
