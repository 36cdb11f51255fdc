"""Files with the items of a task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from zetadp.base.storage import read_arrays, write_arrays

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
