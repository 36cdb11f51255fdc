"""Recordings of the heart, and their folds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from zetadp.base.validation import name_key

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
LABELS = ("normal", "LBBB")
"""Names of the two labels; LBBB is left bundle branch block."""
FOLDS = 10
POPULATIONS = {"standard": 1.0, "varied": 2.2}
"""Variation of patients, torsos and noise. Public features are learnt from the first population only."""


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
        float32, shape (lead, sample), in the order of `LEADS`, in millivolts.
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


def fold_of(patient: str) -> int:
    """Return the fold of a patient, from 1 to 10. It depends on the patient's name alone, never on other patients."""
    digest = hashlib.sha256(f"ecg fold {name_key(patient)}".encode()).digest()
    return 1 + int.from_bytes(digest[:8], "big") % FOLDS
