"""The files of what networks see of recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zetadp.storage import read_arrays, write_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np


def write_values(path: Path, values: np.ndarray, labels: np.ndarray, names: Sequence[str], units: str) -> None:
    """Write what networks see of recordings, shape (recording, 1, 1, value), to HDF5."""
    axes = {"axes": ["recording", "channel", "row", "value"], "units": units}
    write_arrays(path, {"values": values, "labels": labels}, {"records": names}, axes, {})


def read_values(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return values, labels and names that `write_values` wrote.

    Raises
    ------
    UserError
        If the file is absent, damaged or another one.
    """
    (values, labels), (names,) = read_arrays(path, "recordings", ("values", "labels"), ("records",))
    return values, labels, names
