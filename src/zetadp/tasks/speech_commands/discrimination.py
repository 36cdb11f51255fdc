"""Areas under ROC curves of a word against all others, their mean, and its interval over speakers."""

from __future__ import annotations

import numpy as np

REPLICATES = 1000


def macro_auc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the macro one-vs-rest area under the ROC curve; ties count half.

    Parameters
    ----------
    labels
        Class of each item, shape (item,).
    scores
        Score of each class, shape (item, class).
    weights
        How often each item counts, shape (replicate, item); once by default.

    Returns
    -------
    Shape (replicate,). Classes without an item, or with all items, are left out; NaN where none is left.
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
    """Return numbers, one an item, whose mean is `macro_auc`, and whose spread over items is that of the area.

    An item's number is the area plus the item's influence on it (the first-order term of Hoeffding, as of DeLong,
    doi:10.2307/2531595). Means of these numbers over resampled items therefore vary as the area does, to first order;
    a single one may be below zero or above one.

    Parameters
    ----------
    labels, scores
        As of `macro_auc`.
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
    """Return the percentile bootstrap interval of `macro_auc`, with owners as the units that are resampled.

    Parameters
    ----------
    labels, scores
        As of `macro_auc`.
    owners
        Whose each item is, shape (item,); an owner is drawn with all items.
    generator
        Source of the resamples.
    level
        Share of intervals that are to cover the area.
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
