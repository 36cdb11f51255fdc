"""The search for patients whose images are the same, or nearly so."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.ndimage import gaussian_filter

from zetadp.base.storage import present
from zetadp.base.tables import shared_contents
from zetadp.base.validation import refuse, shown
from zetadp.mri.slicing import resize_area

THRESHOLD = 0.8
"""Least correlation of a pair that is reported, after the mean of the cohort is subtracted.

Where patients come from one scanner and are registered to one space, this is reached by two persons who differ from the
rest of the cohort in the same way: three real patients among 37 simulated ones reach 0.94. So a pair must also agree in
its details (`DETAIL`).
"""

DETAIL = 0.73
"""Least correlation of the details of a pair that is reported: above that of distinct patients, below that of copies.

Measured on simulated patients at 32 x 32 pixels and on the three real patients of one scanner. The 780 pairs of 40
patients of the standard population reach at most 0.50, the 190 of 20 healthy ones 0.45, and the three of the real ones
0.69. Copies reach at least 0.99 after a change of contrast (power 0.8), 0.97 when shifted by one slice, 0.90 after a
shift of a quarter of a pixel in both directions, 0.86 after a blur of 0.7 pixels and 0.76 with noise of 0.3 standard
deviations. A copy with noise of half a standard deviation or a shift of half a pixel (2.7 mm along the diagonal) is not
found.
"""

PIXELS, SLABS = 16, 5
"""Size of the coarse grid on which images are compared."""
DETAIL_PIXELS, BLUR = 32, 1.0
"""Size of the grid on which details are compared, and the width in pixels of the blur that is subtracted from it."""


def check_different(stack: np.ndarray, records: Sequence[str]) -> None:
    """Refuse records that share an image series exactly: one scan in two files of different bytes.

    Such files differ in the type of their voxels, in the order of their axes or in their headers.

    Parameters
    ----------
    stack
        As in `near_duplicates`.
    records
        Name of each record.

    Raises
    ------
    UserError
        One message that names the records.
    """
    at = [(int(record), int(sequence)) for record, sequence in np.argwhere(present(stack))]
    contents = [hashlib.sha256(stack[index].tobytes()).hexdigest() for index in at]
    groups = shared_contents(map(str, range(len(at))), contents)
    alike = [dict.fromkeys(records[at[int(position)][0]] for position in group) for group in groups]
    refuse(
        [
            f"Expected different images in different records, found the same in {' and '.join(map(shown, names))}. "
            "Keep one, or correct dataset.json."
            for names in dict.fromkeys(map(tuple, alike))
            if len(names) > 1
        ],
        "in the cohort",
    )


def near_duplicates(stack: np.ndarray, patients: Sequence[str]) -> pd.DataFrame:
    """Find the pairs of patients whose images correlate more than the common anatomy explains.

    Such a pair may be one person under two names, or one scan in two files, which hashes of files cannot find. Then a
    patient may be in training and in test data, and the guarantee per patient is wrong.

    Each sequence of each patient is averaged to a coarse grid (16 x 16 pixels, 5 slabs) and standardised to zero mean
    and unit variance. The mean over the cohort is subtracted, and the correlation of two patients is that of the rest.
    Scale and offset of intensities do not change it; noise and small shifts change it little. Two patients are compared
    in the sequences that both have. Such a pair is reported if it also correlates in its details, which
    are finer than what registration makes equal.

    Parameters
    ----------
    stack
        float32 images of shape (patient, sequence, slice, row, column). A sequence that a patient lacks is NaN.
    patients
        Identifier of each patient.

    Returns
    -------
    Table with the columns patient_a, patient_b and correlation, highest first. With fewer than three patients it is
    empty, because the anatomy that all share cannot be separated from the similarity of a pair.

    Notes
    -----
    This needs at least a few dozen patients. In a smaller cohort, every patient is a large part of the mean, and
    altered copies can be missed. Patients of another source than the majority resemble each other and can be reported
    wrongly. A pair is a reason to look, not a proof.

    The result depends on all patients of the cohort. It is for the data holder, before training, and must not be
    released.
    """
    columns = ["patient_a", "patient_b", "correlation"]
    if len(patients) < 3:
        return pd.DataFrame({"patient_a": [], "patient_b": [], "correlation": np.empty(0)}, columns=columns)
    available = present(stack)
    features = np.zeros((*available.shape, _coarse_features(stack[0, :1]).size), dtype=np.float32)
    for patient, of_patient in enumerate(available):
        features[patient, of_patient] = _coarse_features(stack[patient, of_patient]).reshape(of_patient.sum(), -1)
    features -= features.sum(axis=0) / np.maximum(available.sum(axis=0), 1)[:, None]
    features[~available] = 0
    squares = np.square(features).sum(axis=2) @ available.T  # of each patient, in the sequences of each other one
    features = features.reshape(len(stack), -1)
    correlation = features @ features.T / np.maximum(np.sqrt(squares * squares.T), np.finfo(np.float32).tiny)
    first, second = np.nonzero(np.triu(correlation >= THRESHOLD, k=1))
    alike = [_correlate_details(stack[a], stack[b]) >= DETAIL for a, b in zip(first, second, strict=True)]
    first, second = first[alike], second[alike]
    correlations = correlation[first, second]
    order = np.argsort(-correlations, kind="stable")
    rows = [(patients[first[i]], patients[second[i]], float(correlations[i])) for i in order]
    return pd.DataFrame(rows, columns=columns)


def _correlate_details(first: np.ndarray, second: np.ndarray) -> float:
    """Return the mean correlation, over sequences, of the fine details of two patients: image minus blurred image."""
    details = []
    for images in (first, second):
        fine = _average_slabs(images, DETAIL_PIXELS)
        fine = fine - gaussian_filter(fine, (0, 0, BLUR, BLUR))
        details.append(fine.reshape(len(fine), -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = [np.corrcoef(a, b)[0, 1] for a, b in zip(*details, strict=True)]
    defined = np.isfinite(correlations)  # a sequence without details correlates with none
    return float(np.mean(np.array(correlations)[defined])) if defined.any() else 0.0


def _average_slabs(images: np.ndarray, pixels: int) -> np.ndarray:
    """Return images of shape (sequence, slice, row, column) on fewer pixels, as means of `SLABS` groups of slices."""
    small = resize_area(images, min(pixels, *images.shape[-2:]))
    slabs = np.array_split(small, min(SLABS, small.shape[1]), axis=1)
    return np.stack([slab.mean(axis=1) for slab in slabs], axis=1)


def _coarse_features(images: np.ndarray) -> np.ndarray:
    """Return the coarse, standardised images of one patient as a vector."""
    coarse = _average_slabs(images, PIXELS)
    flat = coarse.reshape(len(coarse), -1)
    flat = flat - flat.mean(axis=1, keepdims=True)
    spread = flat.std(axis=1, keepdims=True)
    return np.asarray(flat / np.where(spread > 0, spread, 1.0), dtype=np.float32).ravel()
