"""The area under the ROC curve, and each item's part in it.

The area is the chance that an item of a class has a higher score for it than an item of another class. Ties count half.
An item of the class has a placement: the share of other items with a lower score. Another item has the share of items
of the class with a higher score. The area is the mean placement of either group (DeLong et al. 1988,
doi:10.2307/2531595). With placements, the area becomes a metric of single items.
"""

from __future__ import annotations

import numpy as np


def areas(scores: np.ndarray, of_class: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the area under the ROC curve of one class against all others.

    Parameters
    ----------
    scores
        Score of each item for the class, shape (item,).
    of_class
        Whether each item is of the class, shape (item,).
    weights
        How often each item counts, shape (replicate, item). By default each item counts once, in one replicate.

    Returns
    -------
    Shape (replicate,). NaN where no item of the class or no other item counts.
    """
    of_class = np.asarray(of_class, dtype=bool)
    times = np.ones((1, len(scores))) if weights is None else weights
    order = scores.argsort(kind="stable")
    others = np.cumsum(np.where(of_class, 0, times)[:, order], axis=1)
    before = np.concatenate((np.zeros((len(times), 1)), others), axis=1)
    low, high = (np.searchsorted(scores[order], scores[of_class], side) for side in ("left", "right"))
    below = (before[:, low] + before[:, high]) / 2
    pairs = times[:, of_class].sum(axis=1) * before[:, -1]
    values = np.full(len(times), np.nan)
    np.divide((times[:, of_class] * below).sum(axis=1), pairs, out=values, where=pairs > 0)
    return values


def area(scores: np.ndarray, of_class: np.ndarray) -> float:
    """Return the area of one class (parameters as in `areas`), or NaN if all items are of one kind."""
    return float(areas(scores, of_class)[0])


def placements(scores: np.ndarray, of_class: np.ndarray) -> np.ndarray:
    """Return the placement of each item, shape (item,). All are NaN if all items are of one kind.

    Parameters
    ----------
    scores, of_class
        Same as for `areas`.
    """
    from scipy.stats import rankdata  # takes a while to import

    of_class = np.asarray(of_class, dtype=bool)
    shares, ranks = np.full(len(scores), np.nan), rankdata(scores)
    if of_class.any() and not of_class.all():
        # Among all items, the rank of an item exceeds its rank in its own group by the number of others below it.
        for group in (of_class, ~of_class):
            shares[group] = (ranks[group] - rankdata(scores[group])) / (~group).sum()
        shares[~of_class] = 1 - shares[~of_class]
    return shares


def macro_area(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the mean over classes of the area of each class against all others.

    Parameters
    ----------
    labels
        Class of each item, shape (item,).
    scores
        Score of each class, shape (item, class).
    weights
        As in `areas`.

    Returns
    -------
    Shape (replicate,). The mean leaves out classes with no item and classes with all items. It is NaN if no class
    remains.
    """
    by_class = np.stack(
        [areas(class_scores, labels == number, weights) for number, class_scores in enumerate(scores.T)]
    )
    there = ~np.isnan(by_class)
    count, total = there.sum(axis=0), np.where(there, by_class, 0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(by_class.shape[1], np.nan), where=count > 0))


def area_shares(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return one number per item. The mean of these numbers is `macro_area`.

    An item's number is the area plus the item's influence on the area: the first-order term of Hoeffding's
    decomposition, as used by DeLong. If items are resampled, the mean of the numbers varies like the area, to first
    order. A single number can be below zero or above one.

    Parameters
    ----------
    labels, scores
        Same as for `macro_area`.

    Returns
    -------
    Shape (item,).
    """
    total, classes = np.zeros(len(labels)), 0
    for number, class_scores in enumerate(scores.T):
        of_class = labels == number
        if of_class.any() and not of_class.all():
            classes += 1
            placed = placements(class_scores, of_class)
            for group in (of_class, ~of_class):
                total[group] += (placed[group] - placed[group].mean()) / group.sum()
    return np.asarray(float(macro_area(labels, scores)[0]) + len(labels) * total / max(classes, 1))
