"""Files with the items of a task. Stages that prepare data import this, so it needs no network's libraries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from zetadp.base.storage import read_arrays, write_arrays
from zetadp.base.validation import UserError, check_distinct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np


@dataclass(frozen=True)
class Items:
    """Items with their names.

    Attributes
    ----------
    arrays
        Arrays by name.
    names
        Table of texts with one row per item. The column ``record`` names the record that the item belongs to.
    source
        File that the items were read from, for error messages.
    """

    arrays: Mapping[str, np.ndarray]
    names: pd.DataFrame
    source: Path = Path()

    def part(self, wanted: np.ndarray) -> Items:
        """Return the items at some positions, or those for which a boolean mask is true."""
        return replace(
            self,
            arrays={name: values[wanted] for name, values in self.arrays.items()},
            names=self.names[wanted] if wanted.dtype == bool else self.names.iloc[wanted],
        )

    def write(self, path: Path, axes: Sequence[str], units: str) -> None:
        """Write the items to HDF5.

        Parameters
        ----------
        path
            The file, written completely or not at all.
        axes, units
            Names of the axes of the first array, and units of its values.
        """
        names = {str(column): tuple(self.names[column].astype(str)) for column in self.names}
        write_arrays(path, self.arrays, names, {"axes": list(axes), "units": units}, {})

    @classmethod
    def read(
        cls, path: Path, arrays: Sequence[str] = ("values", "labels"), names: Sequence[str] = ("record",)
    ) -> Items:
        """Read items that `write` wrote.

        Raises
        ------
        UserError
            If the file is missing or damaged, or has other contents.
        """
        values, texts = read_arrays(path, "items", arrays, names)
        table = pd.DataFrame({name: list(each) for name, each in zip(names, texts, strict=True)}, dtype=str)
        return cls(dict(zip(arrays, values, strict=True)), table, path)


def checked(rows: pd.DataFrame, declared: Mapping[str, int], source: str) -> pd.DataFrame:
    """Return the table of a cohort, one row per record, as it is compared with what the user declared.

    Parameters
    ----------
    rows
        Patient, record and part (``train`` or ``test``) of each record.
    declared
        Declared number of patients in each part. The guarantee uses these numbers as public constants.
    source
        Where the records come from, for messages.

    Raises
    ------
    UserError
        If a record's name occurs twice, the names of two patients look the same, a patient is in both parts, or a
        number of patients differs from the declared number.
    """
    check_distinct(rows["patient"], source)
    twice = rows["record"][rows["record"].duplicated()]
    if len(twice):
        raise UserError(f"Expected each record of {source} to have its own name, found {twice.iloc[0]} twice.")
    both = rows.groupby("patient")["part"].nunique() > 1
    if both.any():
        raise UserError(f"Expected each patient of {source} in one part, found {both.idxmax()} in both.")
    for part, wanted in declared.items():
        found = rows["patient"][rows["part"] == part].nunique()
        if found != wanted:
            raise UserError(
                f"Expected cohort.{part}_patients to be the number of units in {source}, {found}, found {wanted}. "
                f"Declare {found}: the guarantee uses this number as a public constant."
            )
    return rows
