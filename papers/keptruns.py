"""Runs of a comparison, each stored as soon as it is finished, so that an interrupted comparison continues."""

from __future__ import annotations

import csv
import os
import platform
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pandas as pd

from zetadp.base.storage import write_text
from zetadp.report.provenance import code_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Run = TypeVar("Run")


class KeptRuns(Generic[Run]):
    """All runs so far, one line each in a file that survives an interruption.

    Parameters
    ----------
    path
        The file.
    kind
        Dataclass whose fields identify a run. A text stays text where it looks like a number.
    results
        Names of the results of a run.
    """

    def __init__(self, path: Path, kind: type[Run], *results: str) -> None:
        self.path, self.keys = path, [field.name for field in fields(kind)]  # type: ignore[arg-type]
        self.texts = [field.name for field in fields(kind) if field.type == "str"]  # type: ignore[arg-type]
        # Once: files may be edited while a process runs what it has loaded.
        self.here = {"commit": code_version(), "device": platform.machine(), "cores": os.cpu_count()}
        self.columns = (*self.keys, *results, *self.here)
        if not path.exists():
            write_text(path, ",".join(self.columns) + "\n")

    def read(self) -> pd.DataFrame:
        """Return one row per run."""
        return pd.read_csv(self.path, dtype=dict.fromkeys((*self.texts, "commit"), str))

    def missing(self, runs: Iterable[Run]) -> Iterator[Run]:
        """Yield the runs that are not stored yet."""
        done = set(self.read()[self.keys].itertuples(index=False, name=None))
        return (run for run in runs if tuple(vars(run).values()) not in done)

    def add(self, run: Run, **results: Any) -> None:  # noqa: ANN401  (numbers and texts)
        """Store the results of a run that was made by this process."""
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns).writerow({**vars(run), **results, **self.here})


def environments(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return where runs were made, as `zetadp.report.provenance.origin` takes it."""
    return runs[["commit", "device", "cores"]].drop_duplicates().to_dict("records")
