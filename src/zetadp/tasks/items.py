"""Files with the items of a task, and the items of one role in a partition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from zetadp.base.storage import read_arrays, write_arrays
from zetadp.base.validation import UserError, check_distinct
from zetadp.core.task import places_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import torch

    from zetadp.core.records import Records

    Take = Callable[[Mapping[str, np.ndarray], np.ndarray], tuple[np.ndarray, np.ndarray]]


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


def records_of(items: Items, partition: pd.DataFrame, role: str, device: torch.device, take: Take) -> Records:
    """Return the items of all records with one role, in the order of the partition's rows.

    Parameters
    ----------
    items
        All items of the file.
    partition, role, device
        Same as for `zetadp.core.task.PipelineTask.load`.
    take
        Function from the arrays of `items` and the positions of the chosen items to their inputs and targets.

    Raises
    ------
    UserError
        If the file lacks a record.
    """
    import torch  # takes seconds, and every start of the workflow makes a task

    from zetadp.core.records import Records

    rows = partition[partition["role"] == role].reset_index(drop=True)
    places = places_of(rows["record"], items.names["record"], "records", items.source)
    table = items.names.loc[places].merge(rows, on="record", how="left", validate="many_to_one")
    inputs, targets = (torch.from_numpy(values) for values in take(items.arrays, places))
    return Records(inputs, targets, items=table).to(device)


def values_and_labels(arrays: Mapping[str, np.ndarray], places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values and labels of some items."""
    return arrays["values"][places], arrays["labels"][places]
