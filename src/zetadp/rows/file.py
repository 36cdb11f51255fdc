"""The file of a release: the examples that others train on, and their guarantee.

The format is HDF5, so that nobody needs this library to open the file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from zetadp.base.storage import hdf5_written_whole
from zetadp.base.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from zetadp.core.plan import Plan

FORMAT = "zetadp-release-1"
README = (
    "Everybody may train on features (row, component) and labels (row, class): no use of them costs the people behind "
    "them any further privacy. The attribute statement describes the guarantee of this file. In Python: "
    "h5py.File(name)['features'][:]"
)


def write_release(path: Path, rows: Tensor, plan: Plan, inputs: int, statement: Mapping[str, Any]) -> None:
    """Write released rows to a file as examples, completely or not at all.

    The file has three arrays: ``features`` of shape (row, component), complex64; ``labels`` of shape (row, class),
    float32; and ``classes``, the names of the classes. Noise can make labels negative.

    Parameters
    ----------
    path
        The HDF5 file to write.
    rows
        The rows that the plan's run released (`zetadp.core.training.Trained`).
    plan
        The plan. Its public constants include the hash of the network that made the features.
    inputs
        Number of complex components of the features.
    statement
        The privacy statement of the run.
    """
    from zetadp.core.assembly import mixture_of  # takes seconds to import, and reading a statement does not need it
    from zetadp.core.task import task_of

    task = task_of(plan.task)
    examples = mixture_of(plan, task, inputs).examples(rows)
    classes = np.array(getattr(task, "names", ()), dtype=h5py.string_dtype())  # a task without classes was refused
    with hdf5_written_whole(path) as file:
        file.attrs.update(format=FORMAT, readme=README)
        file.attrs["statement"] = json.dumps(statement, indent=1)
        file.attrs["plan"] = json.dumps(plan.to_json(), indent=1)
        file.attrs["extractor"] = json.dumps(dict(plan.public))
        for name, values, axes in (
            ("features", examples.features, ("row", "component")),
            ("labels", examples.labels.float(), ("row", "class")),
        ):
            stored = file.create_dataset(name, data=values.cpu().numpy(), track_times=False)  # noise does not compress
            for place, axis in enumerate(axes):
                stored.dims[place].label = axis
        file.create_dataset("classes", data=classes, track_times=False)


def read_statement(path: Path) -> dict[str, Any]:
    """Return the privacy statement from the file of a release.

    Raises
    ------
    UserError
        If the file is absent or not a release.
    """
    try:
        with h5py.File(path) as file:
            if file.attrs.get("format") == FORMAT:
                found: dict[str, Any] = json.loads(file.attrs["statement"])
                return found
    except OSError as error:
        raise UserError(f"Cannot read {path} as a release: {error}.") from error
    raise UserError(f"Expected {path} to be a release of zetadp ({FORMAT}), found another HDF5 file.")
