"""Release your own features as mixed rows. One call makes the plan, noise, ledger, statement and file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zetadp.base.validation import UserError
from zetadp.core.assembly import mixture_of
from zetadp.core.checkpoint import RunFiles
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.promise import noise_of_plan
from zetadp.core.records import LabelledItems
from zetadp.core.settings import MixingSettings, TrainingSettings
from zetadp.core.task import Classification
from zetadp.core.training import train
from zetadp.nn.settings import MIXED_ROWS, NetworkSettings
from zetadp.privacy.budget import Cap, Permission
from zetadp.privacy.ledger import read_ledger
from zetadp.privacy.statement import last_statement
from zetadp.privacy.threat import CENTRAL_HOLDER
from zetadp.rows.degree import best_degree, usual_rows
from zetadp.rows.file import Release, write_release

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class ReleaseSettings:
    """Settings of a release. All are public constants: choose them without looking at the data.

    Attributes
    ----------
    epsilon, delta
        The guarantee for each person.
    people
        Declared number of people. Each has one row of features.
    classes
        Number of classes.
    rows
        Number of rows to release. None releases as many rows as there are people.
    degree
        Expected number of people in a row. None chooses it by a theorem (`zetadp.rows.degree`).
    active
        Share of the rows that are open to each class (`zetadp.core.settings.MixingSettings`).
    norm
        Norm to which features are clipped.
    cohort
        Name of this group of people in ledgers.
    cap
        Largest epsilon, at ``delta``, that all releases and runs recorded in the ledger's folder may cost a person
        together. None sets no limit.
    seed
        Seed of the draws of a simulation. It has no effect with noise from the operating system.
    """

    epsilon: float
    delta: float
    people: int
    classes: int
    rows: int | None = None
    degree: float | None = None
    active: float = 1.0
    norm: float = 1.0
    cohort: str = ""
    cap: float | None = None
    seed: int = 0

    def plan(self, *, real: bool, noise: str = "os") -> Plan:
        """Return the plan of the release, with the noise that the guarantee needs.

        Parameters
        ----------
        real
            Whether features are real.
        noise
            Same as for `release_features`.

        Raises
        ------
        UserError
            If the settings contradict each other or the guarantee cannot be met.
        """
        rows = self.rows or usual_rows(self.people, self.active)
        mixing = MixingSettings(rows, active=self.active, real=real, learn=False)
        degree = self.degree or best_degree(
            self.epsilon, self.delta, population=self.people, rows=rows, share=self.active
        )
        training = TrainingSettings(
            1, images_per_patient=1, noise=noise, estimator=MIXED_ROWS, feature_norm=self.norm, mixing=mixing
        )
        plan = Plan(
            RunName("release", CENTRAL_HOLDER, f"{self.epsilon:g}", self.seed),
            NetworkSettings("head", "features"),
            training,
            (NodeConstants(CENTRAL_HOLDER, self.people, degree),),
            delta=self.delta,
            cohort=self.cohort,
            task={"name": "classification", "classes": self.classes},
            threat="central",
        )
        return plan.with_noise(noise_of_plan(plan))


def release_features(
    features: np.ndarray, labels: np.ndarray, settings: ReleaseSettings, *, ledger: Path, file: Path, noise: str = "os"
) -> dict[str, Any]:
    """Release features as rows that mix people, and return the privacy statement.

    If a release was interrupted, call this function again: it continues with the rows that were already drawn and draws
    none of them again. A finished release cannot be repeated unless the ledger permits it (``zetadp permit``).

    Parameters
    ----------
    features
        One row per person, shape (person, component), complex or real. Each row must be computed from this person
        alone, by a method that has not seen any of these people.
    labels
        Class of each person, a whole number from 0, shape (person,).
    settings
        Settings of the release.
    ledger
        File that records the release before it is made. Store it with the data.
    file
        The HDF5 file to write (`zetadp.rows.file`).
    noise
        ``os`` takes exact noise from the operating system's generator. ``seeded`` is a simulation and protects nobody.

    Returns
    -------
    The privacy statement, which the file contains as well.

    Raises
    ------
    UserError
        If the data do not match the settings, if the guarantee cannot be met, or if the release would exceed the cap.
        Nothing is released in these cases.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> random = np.random.default_rng(0)
    >>> labels = random.integers(0, 2, 500)
    >>> features = np.eye(2)[labels] + 0.1 * random.standard_normal((500, 2))
    >>> settings = ReleaseSettings(epsilon=1, delta=1e-5, people=500, classes=2)
    >>> statement = release_features(
    ...     features, labels, settings, ledger=folder / "rows.jsonl", file=folder / "rows.h5"
    ... )
    >>> statement["guarantee"], round(statement["epsilon"], 2)
    ('holds', 1.0)
    """
    if features.ndim != 2 or labels.shape != (len(features),) or len(features) != settings.people:
        raise UserError(
            f"Expected features of shape ({settings.people}, component) and {settings.people} labels, as declared, "
            f"found shapes {features.shape} and {labels.shape}."
        )
    inputs = _examples(features)
    labels = _whole(labels)
    if labels.min() < 0 or labels.max() >= settings.classes:
        raise UserError(f"Expected labels from 0 to {settings.classes - 1}, found {labels.min()} to {labels.max()}.")
    plan = settings.plan(real=not np.iscomplexobj(features), noise=noise)
    data = LabelledItems(inputs, torch.from_numpy(labels))
    permission = Permission(settings.delta) if noise == "os" else None
    cap = None if settings.cap is None else Cap(settings.cap, settings.delta)
    files = RunFiles(ledger, ledger.with_suffix(".checkpoint.safetensors"), permission, cap)
    units = [[person] for person in range(settings.people)]
    trained = train(plan, data, [units], files)
    statement = last_statement(read_ledger(ledger), plan.label)
    mixture = mixture_of(plan, Classification(settings.classes), features.shape[1])
    if trained.released is None:
        raise RuntimeError("Expected rows of a plan that releases them, found none.")
    names = [str(number) for number in range(settings.classes)]
    write_release(file, mixture.examples(trained.released), Release(statement, plan.to_json(), names))
    files.finish()
    return statement


def _examples(features: np.ndarray) -> torch.Tensor:
    """Return features as examples; refuse what is no finite number in single precision, which would add nothing."""
    if features.dtype.kind not in "biufc" or not features.shape[1]:
        raise UserError(
            f"Expected numbers as features, at least one for each person, found {features.dtype} of shape "
            f"{features.shape}. Convert them."
        )
    with np.errstate(over="ignore"):
        inputs = features.astype(np.complex64)
    others = np.flatnonzero(~np.isfinite(inputs).all(axis=1))
    if len(others):
        raise UserError(
            f"Expected finite numbers below 3e38 as features, found others for {len(others)} of {len(features)} "
            f"people, the first in row {others[0]} (counted from 0). Replace them, for example by zero."
        )
    return torch.from_numpy(inputs)[:, None, None]


def _whole(labels: np.ndarray) -> np.ndarray:
    """Return labels as int64; refuse labels that are no whole numbers, which would change when they are converted."""
    whole = labels.dtype.kind in "iub"
    if labels.dtype.kind == "f":
        whole = bool((np.isfinite(labels) & (labels == np.floor(labels))).all())
    if not whole:
        raise UserError(
            f"Expected whole numbers from 0 as labels, found {labels.dtype} such as {labels[0]!r}. Number the classes."
        )
    return labels.astype(np.int64)
