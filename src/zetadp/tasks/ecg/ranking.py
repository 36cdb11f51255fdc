"""The area under the ROC curve, each patient's part in it, and its bootstrap interval.

The area is the chance that a diseased patient's score is above a healthy patient's score. Ties count half. Each
diseased patient has a share: the share of healthy patients with a lower score. Each healthy patient has the share of
diseased patients with a higher score. The area is the mean share of the diseased, and also the mean share of the
healthy (DeLong et al. 1988, doi:10.2307/2531595). With these shares, the area is a metric of single items and patients.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

REPLICATES = 2000
LEVEL = 0.95


def placements(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the share of each item: the share of items with the other label that are ranked correctly against it.

    Parameters
    ----------
    scores
        Score of each item, shape (item,).
    labels
        Whether each item is diseased, shape (item,).

    Returns
    -------
    Shape (item,). All values are NaN if one of the labels is missing.
    """
    labels = np.asarray(labels, dtype=bool)
    above = (scores[labels][:, None] > scores[~labels]) + 0.5 * (scores[labels][:, None] == scores[~labels])
    found = np.full(len(scores), np.nan)
    if above.size:
        found[labels], found[~labels] = above.mean(axis=1), above.mean(axis=0)
    return found


def area(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the area under the ROC curve, or NaN if one of the labels is missing (parameters as in `placements`)."""
    labels = np.asarray(labels, dtype=bool)
    return float(placements(scores, labels)[labels].mean()) if labels.any() else float("nan")


def of_patients(patients: pd.Series, scores: pd.Series, labels: pd.Series) -> pd.DataFrame:
    """Return the mean score and the label of each patient, sorted by name.

    Parameters
    ----------
    patients, scores, labels
        Patient, score and label of each item. All items of a patient have one label.

    Returns
    -------
    Table with the patients as index and columns ``score`` and ``label``.
    """
    table = pd.DataFrame({"patient": patients.astype(str), "score": scores, "label": labels})
    return table.groupby("patient").agg(score=("score", "mean"), label=("label", "first"))


def replicates(
    scores: np.ndarray, labels: np.ndarray, random: np.random.Generator, count: int = REPLICATES
) -> np.ndarray:
    """Return the areas in bootstrap resamples of patients. The patients of each label are resampled separately.

    Parameters
    ----------
    scores, labels
        Score and label of each patient, as in `placements`.
    random
        Generator of the resamples. Equal generators give equal resamples if the labels are equal.
    count
        Number of resamples.

    Returns
    -------
    Shape (resample,). All values are NaN if one of the labels is missing.
    """
    labels = np.asarray(labels, dtype=bool)
    ill, well = scores[labels], scores[~labels]
    if not len(ill) or not len(well):
        return np.full(count, np.nan)
    above = (ill[:, None] > well) + 0.5 * (ill[:, None] == well)
    # How often each patient is drawn, as a share of all draws, shape (resample, patient).
    of_ill, of_well = (random.multinomial(n, np.full(n, 1 / n), count) / n for n in (len(ill), len(well)))
    return np.asarray((of_ill @ above * of_well).sum(axis=1))


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of the percentile interval of resamples at the confidence level `LEVEL`."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
