"""Runs of a comparison, each stored as soon as it is finished, so that an interrupted comparison continues."""

from __future__ import annotations

import csv
import os
import platform
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pandas as pd

from zetadp.base.storage import write_text
from zetadp.report.provenance import code_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

Run = TypeVar("Run")


class KeptRuns:
    """All runs so far, one line each in a file that survives an interruption.

    Attributes
    ----------
    COLUMNS
        Names of the comparison's own columns: first those that identify a run, then its results.
    KEYS
        Number of columns that identify a run.
    TEXT
        Columns with text that may look like a number.
    """

    COLUMNS: ClassVar[tuple[str, ...]]
    KEYS: ClassVar[int]
    TEXT: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        # Once: files may be edited while a process runs what it has loaded.
        self.here = {"commit": code_version(), "device": platform.machine(), "cores": os.cpu_count()}
        self.columns = (*self.COLUMNS, *self.here)
        if not path.exists():
            write_text(path, ",".join(self.columns) + "\n")

    def read(self) -> pd.DataFrame:
        """Return one row per run."""
        return pd.read_csv(self.path, dtype=dict.fromkeys((*self.TEXT, "commit"), str))

    def done(self) -> set[tuple[Any, ...]]:
        """Return the keys of the stored runs."""
        return set(self.read()[list(self.COLUMNS[: self.KEYS])].itertuples(index=False, name=None))

    def missing(self, wanted: Iterable[Run]) -> Iterator[Run]:
        """Yield the runs that are not stored yet. A run is a dataclass whose fields identify it."""
        done = self.done()
        return (run for run in wanted if tuple(vars(run).values()) not in done)

    def add(self, row: Mapping[str, Any]) -> None:
        """Store a run that was made by this process."""
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns).writerow({**row, **self.here})


def places(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return where runs were made, as `zetadp.report.provenance.origin` takes it."""
    return runs[["commit", "device", "cores"]].drop_duplicates().to_dict("records")
