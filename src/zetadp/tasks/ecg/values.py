"""Files with the inputs of networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zetadp.base.storage import read_arrays, write_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np


def write_values(path: Path, values: np.ndarray, labels: np.ndarray, names: Sequence[str], units: str) -> None:
    """Write inputs of networks and labels to HDF5.

    Parameters
    ----------
    path
        The file.
    values
        Inputs, usually of shape (recording, 1, 1, value).
    labels, names
        Label and name of each recording.
    units
        Units of the values.
    """
    axes = {"axes": ["recording", "channel", "row", "value"], "units": units}
    write_arrays(path, {"values": values, "labels": labels}, {"records": names}, axes, {})


def read_values(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return values, labels and names that `write_values` wrote.

    Raises
    ------
    UserError
        If the file is missing or damaged, or has other contents.
    """
    (values, labels), (names,) = read_arrays(path, "recordings", ("values", "labels"), ("records",))
    return values, labels, names
