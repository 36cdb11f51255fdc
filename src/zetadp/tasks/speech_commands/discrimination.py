"""The area under the ROC curve for each word against all others, its mean over words, and an interval over speakers."""

from __future__ import annotations

import numpy as np

REPLICATES = 1000


def macro_auc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the macro-averaged one-vs-rest area under the ROC curve. Ties count half.

    Parameters
    ----------
    labels
        Class of each item, shape (item,).
    scores
        Score of each class, shape (item, class).
    weights
        How often each item counts, shape (replicate, item). By default each item counts once, in one replicate.

    Returns
    -------
    Shape (replicate,). The mean leaves out classes with no item and classes with all items. It is NaN if no class
    remains.
    """
    times = np.ones((1, len(labels))) if weights is None else weights
    found = np.full((scores.shape[1], len(times)), np.nan)
    for number, own in enumerate(scores.T):
        of_class = labels == number
        order = own.argsort(kind="stable")
        others = np.cumsum(np.where(of_class, 0, times)[:, order], axis=1)
        before = np.concatenate((np.zeros((len(times), 1)), others), axis=1)
        low, high = (np.searchsorted(own[order], own[of_class], side) for side in ("left", "right"))
        below = (before[:, low] + before[:, high]) / 2
        pairs = times[:, of_class].sum(axis=1) * before[:, -1]
        np.divide((times[:, of_class] * below).sum(axis=1), pairs, out=found[number], where=pairs > 0)
    there = ~np.isnan(found)
    count = there.sum(axis=0)
    total = np.where(there, found, 0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(len(times), np.nan), where=count > 0))


def auc_shares(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return one number per item. The mean of these numbers is `macro_auc`.

    An item's number is the area plus the item's influence on the area: the first-order term of Hoeffding's
    decomposition, as used by DeLong (doi:10.2307/2531595). If items are resampled, the mean of the numbers varies like
    the area, to first order. A single number can be below zero or above one.

    Parameters
    ----------
    labels, scores
        Same as for `macro_auc`.

    Returns
    -------
    Shape (item,).
    """
    area = float(macro_auc(labels, scores)[0])
    total, classes = np.zeros(len(labels)), 0
    for number, own in enumerate(scores.T):
        of_class = labels == number
        if not of_class.any() or of_class.all():
            continue
        classes += 1
        mine, others = np.sort(own[of_class]), np.sort(own[~of_class])
        beaten = _share_below(others, own[of_class])
        total[of_class] += (beaten - beaten.mean()) / len(mine)
        beating = 1 - _share_below(mine, own[~of_class])
        total[~of_class] += (beating - beating.mean()) / len(others)
    return np.asarray(area + len(labels) * total / max(classes, 1))


def auc_interval(
    labels: np.ndarray, scores: np.ndarray, owners: np.ndarray, generator: np.random.Generator, level: float
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of `macro_auc` over owners.

    Parameters
    ----------
    labels, scores
        Same as for `macro_auc`.
    owners
        Owner of each item, such as a speaker, shape (item,). Owners are resampled with all of their items.
    generator
        Generator of the resamples.
    level
        Confidence level, between zero and one.

    Returns
    -------
    Lower and upper end. Both are NaN with fewer than two owners.
    """
    names, place = np.unique(owners, return_inverse=True)
    if len(names) < 2:
        return float("nan"), float("nan")
    times = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=REPLICATES).astype(float)
    tail = (1 - level) / 2
    low, high = np.nanquantile(macro_auc(labels, scores, times[:, place]), [tail, 1 - tail])
    return float(low), float(high)


def _share_below(ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    low, high = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return np.asarray((low + high) / 2 / len(ordered))
