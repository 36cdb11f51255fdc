"""Write a table of the time of every rule of a finished workflow, from the records that Snakemake keeps.

Snakemake notes when the job of each output began and ended (``.snakemake/metadata``, which its report reads too). Run
this in the folder where the workflow ran, after everything has run once on a quiet machine:

    make results
    python -m benchmarks.rules
"""

from __future__ import annotations

import argparse
import json
import os
from base64 import urlsafe_b64decode
from dataclasses import replace
from datetime import UTC, datetime
from math import isnan
from pathlib import Path

import pandas as pd

from zetadp.base.storage import write_text
from zetadp.base.tables import Sheet
from zetadp.base.validation import UserError
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_markdown

RESULTS = Path(__file__).parents[1] / "docs/results/benchmarks"
FIRST_TABLE = "tabulate_headline"


def jobs(folder: Path, experiment: str) -> pd.DataFrame:
    """Return the jobs that Snakemake ran in a folder: ``rule``, ``began`` and ``ended``, in seconds.

    Parameters
    ----------
    folder
        Where the workflow ran.
    experiment
        Name of the experiment; results of others are left out, while stages of the cohort count.
    """
    records = folder / ".snakemake/metadata"
    rows = []
    for file in sorted(path for path in records.rglob("*") if path.is_file()):
        # A long name of an output is cut into folders.
        name = "".join(part.removeprefix("@") for part in file.relative_to(records).parts)
        output = urlsafe_b64decode(name).decode()
        record = json.loads(file.read_text(encoding="utf-8"))
        of_another = output.startswith("results/") and not output.startswith(f"results/{experiment}/")
        if not (of_another or record["incomplete"]):
            rows.append((record["rule"], " ".join(record["log"]), record["starttime"], record["endtime"]))
    if not rows:
        raise UserError(
            f"Expected records of the experiment {experiment} in {records}, found none. Run the workflow there first."
        )
    outputs = pd.DataFrame(rows, columns=["rule", "log", "began", "ended"])
    # Every job has a separate log; its outputs were finished one after the other.
    return outputs.groupby(["rule", "log"], as_index=False).agg({"began": "min", "ended": "max"})


def table(finished: pd.DataFrame, experiment: str) -> Sheet:
    """Return the rules in the order of their first jobs, with the number, the duration and the time of their jobs."""
    start, end = finished["began"].min(), finished["ended"].max()
    first = finished.loc[finished["rule"] == FIRST_TABLE, "ended"].max()
    # A file that was taken from a cache is older than its job.
    finished = finished.assign(seconds=(finished["ended"] - finished["began"]).clip(lower=0))
    rows = [
        (
            f"`{rule}`",
            str(len(of_rule)),
            f"{of_rule['seconds'].mean():.1f}",
            f"{of_rule['seconds'].sum():.0f}",
            f"{of_rule['began'].min() - start:.0f} to {of_rule['ended'].max() - start:.0f}",
        )
        for rule, of_rule in sorted(finished.groupby("rule"), key=lambda group: group[1]["began"].min())
    ]
    day = datetime.fromtimestamp(end, tz=UTC)
    notes = (
        *(
            []
            if isnan(first)
            else [f"The first table was there {first - start:.0f} s after the start of the first job."]
        ),
        f"Everything was there after {end - start:.0f} s.",
    )
    return Sheet(
        f"Jobs of the experiment {experiment} on {os.cpu_count()} cores, {day.day} {day:%B %Y}",
        ("rule", "jobs", "seconds per job", "seconds in all", "from, to"),
        tuple(rows),
        notes,
    )


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(), help="where the workflow ran")
    parser.add_argument("--experiment", default="default", help="its name")
    arguments = parser.parse_args()
    sheet = table(jobs(arguments.folder, arguments.experiment), arguments.experiment)
    made_by = origin(f"that of the experiment {arguments.experiment}", "those of its runs")
    text = to_markdown(replace(sheet, notes=(*sheet.notes, *made_by)))
    print(text)
    write_text(RESULTS / "rules.md", text)


if __name__ == "__main__":
    main()
