"""Files with the items of a task, and the items of one role in a partition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from zetadp.base.storage import read_arrays, write_arrays
from zetadp.core.task import Held, places_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import torch

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


def held(items: Items, partition: pd.DataFrame, role: str, device: torch.device, take: Take) -> Held:
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
    return Held(Records(inputs, targets).to(device), table)


def values_and_labels(arrays: Mapping[str, np.ndarray], places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values and labels of some items."""
    return arrays["values"][places], arrays["labels"][places]
