"""The area under the ROC curve, of whom it is made, and how sure it is.

The area is the chance that a diseased patient's score is above a healthy one's; half of all ties count. It is also the
mean, over the diseased, of the share of the healthy that each is rightly ranked against, and the same the other
way round (DeLong et al. 1988, doi:10.2307/2531595). These shares make it a metric of items and of patients.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

REPLICATES = 2000
LEVEL = 0.95


def placements(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return for each item the share of items of the other label that it is rightly ranked against; NaN without any.

    Parameters
    ----------
    scores
        Score of each item, shape (item,).
    labels
        Whether each is diseased, shape (item,).
    """
    labels = np.asarray(labels, dtype=bool)
    above = (scores[labels][:, None] > scores[~labels]) + 0.5 * (scores[labels][:, None] == scores[~labels])
    found = np.full(len(scores), np.nan)
    if above.size:
        found[labels], found[~labels] = above.mean(axis=1), above.mean(axis=0)
    return found


def area(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the area under the ROC curve; NaN with one label alone. Parameters as of `placements`."""
    labels = np.asarray(labels, dtype=bool)
    return float(placements(scores, labels)[labels].mean()) if labels.any() else float("nan")


def of_patients(patients: pd.Series, scores: pd.Series, labels: pd.Series) -> pd.DataFrame:
    """Return the mean score and the label of each patient, in the order of their names."""
    table = pd.DataFrame({"patient": patients.astype(str), "score": scores, "label": labels})
    return table.groupby("patient").agg(score=("score", "mean"), label=("label", "first"))


def replicates(
    scores: np.ndarray, labels: np.ndarray, random: np.random.Generator, count: int = REPLICATES
) -> np.ndarray:
    """Return the area in resamples of patients, those of each label among themselves, shape (resample,).

    Parameters
    ----------
    scores, labels
        As of `placements`, of patients. NaN where a label is missing.
    random
        Source of the resamples; from equal sources come the same resamples of equal labels.
    count
        How many.
    """
    labels = np.asarray(labels, dtype=bool)
    ill, well = scores[labels], scores[~labels]
    if not len(ill) or not len(well):
        return np.full(count, np.nan)
    above = (ill[:, None] > well) + 0.5 * (ill[:, None] == well)
    # How often each patient is drawn, as a share: (resample, patient).
    of_ill, of_well = (random.multinomial(n, np.full(n, 1 / n), count) / n for n in (len(ill), len(well)))
    return np.asarray((of_ill @ above * of_well).sum(axis=1))


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return the ends that leave out as many of the lowest and of the highest resamples; NaN without any."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
