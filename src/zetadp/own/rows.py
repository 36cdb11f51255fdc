"""Released rows: how many units are mixed into one, and the file of examples that others train on.

With too many units all rows are nearly the same mean. With too few, the noise hides them. The degree of mixing follows
from public constants alone, so no search touches private data.

The format of the file is HDF5, so that nobody needs this library to open it.
"""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from zetadp.account.statement import Statement
from zetadp.accounting import gaussian
from zetadp.base.storage import hdf5_written_whole
from zetadp.base.validation import UserError, positive
from zetadp.training.settings import open_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import h5py
    from torch import Tensor

    from zetadp.training.plan import Plan

BEST_RATIO = 0.5049762122
r"""The ratio :math:`\nu^* / \mu`, where :math:`\nu^*` maximises :math:`\nu \ln(1 + \mu^2 / \nu^2)`."""
WITHOUT_NOISE = 10.0
"""Largest epsilon that sets the degree. Rows without noise use the degree of this epsilon."""
FORMAT = "zetadp-release-1"
README = (
    "Everybody may train on features (row, component) and labels (row, class): no use of them costs the people behind "
    "them any further privacy. The attribute statement describes the guarantee of this file. Features of people were "
    "clipped to the attribute norm, so clip new ones to it too. The attribute noise is the standard deviation of the "
    "noise in each real number of the features. In Python: h5py.File(name)['features'][:], or zetadp.fit_head(name)"
)
HDF5_NAMES = (".h5", ".hdf5")


def best_mixed(mu: float, units: int, rounds: int, class_rate: float = 1.0) -> float:
    r"""Return the degree of mixing that minimises a bound on the error of a linear regression on the rows.

    It is :math:`m^* = \nu^* n / \sqrt T = 0.505 \mu n / \sqrt T` (Li, Cao and Yao, arXiv:2202.06467, Theorem 3.2). The
    paper has two misprints here: "argmin" for the argmax of its proof, and :math:`n \sqrt{T}` for :math:`n / \sqrt{T}`.

    Parameters
    ----------
    mu
        The guarantee in terms of Gaussian differential privacy.
    units
        Number of units n.
    rounds
        Number of released rows T.
    class_rate
        Share p of the rows that are open to a class. Below one, the safe rule of Hierarchical Sampling applies: the
        formula then uses :math:`\sqrt{p} \mu`.

    Returns
    -------
    Expected number of units in a row. It may be below one.
    """
    positive(mu=mu, units=units, rounds=rounds)
    return BEST_RATIO * mu * math.sqrt(class_rate / rounds) * units


def usual_rows(populations: Sequence[int], active: float = 1.0) -> int:
    """Return as many rows as a node of median size has units, rounded up until every class has a whole number of rows.

    Parameters
    ----------
    populations
        Number of units at each node.
    active
        Share of the rows that are open to each class.
    """
    whole = open_share(active).denominator
    return math.ceil(math.ceil(median(populations)) / whole) * whole


def mixed_as(
    epsilon: float,
    delta: float,
    populations: Sequence[int],
    *,
    rows: int | None = None,
    degree: float | None = None,
    active: float = 1.0,
) -> tuple[int, list[float]]:
    """Return the number of rows that each node releases, and the expected number of units in a row of each node.

    Parameters
    ----------
    epsilon, delta
        The target. An epsilon above `WITHOUT_NOISE` counts as `WITHOUT_NOISE`.
    populations
        Number of units at each node.
    rows
        Number of rows. None takes `usual_rows`.
    degree
        Expected number of units in a row. None takes the best one at each node, from one to ``population * active``.
    active
        Share of the rows that are open to each class.

    Raises
    ------
    UserError
        If the best degree is below one unit per row, where the theorem has no meaning.
    """
    rows = rows or usual_rows(populations, active)
    if degree is not None:
        return rows, [float(degree)] * len(populations)
    mu, degrees = gaussian.mu(min(epsilon, WITHOUT_NOISE), delta), []
    for population in populations:
        best = best_mixed(mu, population, rows, active)
        if best < 1:
            most = int(best_mixed(mu, population, 1, active) ** 2)
            advice = f"at most {most} rows" if most else "a larger epsilon"
            usual = f", for example {population}" if 0 < population <= most else ""
            raise UserError(
                f"Expected rows that mix at least one patient each, found {rows} rows of {population} patients at "
                f"epsilon {epsilon:g}. The best degree of mixing would be {best:.2g} patients per row. Choose "
                f"{advice}{usual}, or set the degree.",
                "degree",
            )
        degrees.append(min(best, population * active))
    return rows, degrees


def write_release(path: Path, rows: Tensor, plan: Plan, inputs: int, statement: Mapping[str, Any]) -> None:
    """Write released rows to a file as examples, completely or not at all.

    The file has three arrays: ``features`` of shape (row, component), complex64, or float32 for features that were
    declared as real; ``labels`` of shape (row, class), float32; and ``classes``, the names of the classes. Noise can
    make labels negative. Among its attributes are ``noise``, the standard deviation of the noise in each real number of
    the features; ``norm``, to which the features of people were clipped; and ``shares``, the shares of the classes that
    the labels assume, where rows are open to some classes only.

    Parameters
    ----------
    path
        The HDF5 file to write.
    rows
        The rows that the plan's run released (`zetadp.training.loop.Trained`).
    plan
        The plan. Its public constants include the hash of the network that made the features.
    inputs
        Number of complex components of the features.
    statement
        The privacy statement of the run.
    """
    import h5py

    from zetadp.training.assembly import mixture_of  # takes seconds to import
    from zetadp.training.task import Classification, task_of

    task = task_of(plan.task)
    mixture, mixing = mixture_of(plan, task, inputs), plan.training.mixing
    assert isinstance(task, Classification)  # `mixture_of` refuses others
    examples = mixture.examples(rows, plan.noise_of_row)
    real = mixing is not None and mixing.real and not task.balanced
    classes = np.array(task.names, dtype=h5py.string_dtype())
    with hdf5_written_whole(path) as file:
        file.attrs.update(format=FORMAT, readme=README)
        file.attrs["statement"] = json.dumps(statement, indent=1)
        file.attrs["plan"] = json.dumps(plan.to_json(), indent=1)
        file.attrs["extractor"] = json.dumps(dict(plan.public))
        file.attrs["noise"] = math.sqrt(examples.noise)
        file.attrs["norm"] = mixture.feature_bound
        if mixing is not None and mixing.active < 1:
            file.attrs["shares"] = mixing.shares_of(len(classes))
        for name, values, axes in (
            ("features", examples.features.real if real else examples.features, ("row", "component")),
            ("labels", examples.labels.float(), ("row", "class")),
        ):
            stored = file.create_dataset(name, data=values.cpu().numpy(), track_times=False)  # noise does not compress
            for index, axis in enumerate(axes):
                stored.dims[index].label = axis
        file.create_dataset("classes", data=classes, track_times=False)


def check_name(path: Path) -> None:
    """Raise a `UserError` if the name of a file for released rows does not say that it is HDF5."""
    if path.suffix.lower() not in HDF5_NAMES:
        raise UserError(
            f"file: Expected a name that ends in {' or '.join(HDF5_NAMES)}, because rows are written as HDF5, found "
            f"{path.name}."
        )


@dataclass(frozen=True)
class ReleasedRows:
    """What a file of released rows says of its examples.

    Attributes
    ----------
    features, labels
        Shapes (row, component) and (row, class).
    noise
        Standard deviation of the noise in each real number of the features.
    norm
        Norm to which the features of people were clipped.
    """

    features: np.ndarray
    labels: np.ndarray
    noise: float
    norm: float


def read_rows(path: Path) -> ReleasedRows:
    """Return the examples in the file of a release.

    Raises
    ------
    UserError
        If the file is absent, is not a release, or lacks noise and norm.
    """
    with _opened(path) as file:
        if not {"noise", "norm"} <= set(file.attrs):
            raise UserError(
                f"Expected {path} to say how much noise its features have and what they were clipped to, found "
                "neither. Get the file again from those who released it."
            )
        features, labels = (file[name][:] for name in ("features", "labels"))
        return ReleasedRows(features, labels, float(file.attrs["noise"]), float(file.attrs["norm"]))


def read_statement(path: Path) -> Statement:
    """Return the privacy statement from the file of a release.

    Raises
    ------
    UserError
        If the file is absent or not a release.
    """
    with _opened(path) as file:
        return Statement(json.loads(file.attrs["statement"]))


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Open the file of a release, or raise a `UserError`."""
    import h5py

    try:
        with h5py.File(path) as file:
            if file.attrs.get("format") != FORMAT:
                raise UserError(f"Expected {path} to be a release of zetadp ({FORMAT}), found another HDF5 file.")
            yield file
    except OSError as error:
        raise UserError(f"Cannot read {path} as a release: {error}.") from error
