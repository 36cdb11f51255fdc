"""Recordings of the heart: the common form for all readers and the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
LABELS = ("normal", "LBBB")
"""Names of the two labels; LBBB is left bundle branch block."""
FOLDS = 10


@dataclass(frozen=True)
class Recording:
    """One recording with twelve leads.

    Attributes
    ----------
    name
        Name of the recording, unique in its cohort.
    patient
        Identifier of the patient. A patient may have several recordings.
    signal
        float32, shape (lead, sample), in the order of `LEADS`, in the units of the source (usually millivolts).
    rate
        Samples per second.
    label
        Position in `LABELS`.
    fold
        Fold from 1 to 10, the same for all recordings of a patient. 0 if the source has no folds.
    age
        Age in years; NaN if unknown.
    device
        Name of the recording device; empty if unknown.
    form
        How the recording was processed before publication; empty if unknown.
    """

    name: str
    patient: str
    signal: np.ndarray
    rate: float
    label: int
    fold: int = 0
    age: float = float("nan")
    device: str = ""
    form: str = ""


def folds_of(patients: Sequence[str], labels: Sequence[int], seed: int = 0) -> dict[str, int]:
    """Assign patients to ten folds. Each fold gets about the same number of patients of each label.

    Parameters
    ----------
    patients, labels
        Patient and label of each recording.
    seed
        Seed of the assignment, a public constant.

    Returns
    -------
    Fold of each patient, from 1 to 10.

    Raises
    ------
    UserError
        If a patient has recordings of both labels.
    """
    of_patient: dict[str, int] = {}
    for patient, label in zip(patients, labels, strict=True):
        if of_patient.setdefault(patient, label) != label:
            raise UserError(f"Expected one label per patient, found recordings of both labels for patient {patient}.")
    random = stream(seed, Purpose.PARTITION)
    found: dict[str, int] = {}
    for label in range(len(LABELS)):
        own = random.permutation(sorted(patient for patient, each in of_patient.items() if each == label))
        found |= {str(patient): FOLDS - place % FOLDS for place, patient in enumerate(own)}
    return found
