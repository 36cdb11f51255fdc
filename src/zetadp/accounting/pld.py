"""Privacy-loss distributions of many releases, on a grid that is refined until a value of them converges.

dp-accounting composes the distributions; which grid is fine enough, and which too large, is decided here. Losses are
rounded up to the grid ("connect the dots", Doroshenko et al. 2022, arXiv:2207.04380), so every grid gives a bound.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from zetadp.accounting.kinds import Kind
from zetadp.base.logs import PROGRESS

if TYPE_CHECKING:  # takes a second, and a training without a cap needs no accountant
    from dp_accounting.pld import privacy_loss_distribution

progress = logging.getLogger(PROGRESS)

Key: TypeAlias = tuple[tuple[Kind, int], ...]
"""Kinds with their numbers of releases, in a fixed order."""

_MOST_HALVINGS = 10
_MOST_POINTS = 1 << 22
"""Largest number of grid points of a distribution. They take about ten seconds."""
_MANY_POINTS, _FEW_POINTS = 1 << 19, 1 << 16
"""If one release's losses need more points than the first number, a grid of at most the second is tried first."""
_DENSE_FROM = 10
"""Number of releases from which a distribution is composed as an array, which is what a mixture with itself is.

As a dictionary, dp-accounting would do the same, but first raise its length to the power of the number of releases: an
integer of a hundred million digits."""
_SPREAD = 24.0
"""Standard deviations of the privacy loss that a grid covers."""


def refined(
    key: Key,
    value: Callable[[privacy_loss_distribution.PrivacyLossDistribution], float | np.ndarray],
    tolerance: tuple[float, float],
) -> tuple[float | np.ndarray, bool]:
    """Return a value of the composed distribution, on a grid that is halved until the value converges.

    A smaller value must be tighter. Every grid then gives a valid value, and the smallest is returned. The error of
    "connect the dots" falls with the square of the interval, so after a change by x an error of about x / 3 remains. On
    very fine grids (a million rounds) rounding errors, which only add probability, make the value rise again.
    Refinement ends there as well, and where a finer grid would take too long.

    Parameters
    ----------
    key
        The releases.
    value
        Computes the value of a distribution.
    tolerance
        Relative and absolute change. Refinement ends when one halving changes the value by less.

    Returns
    -------
    The value, infinity without a grid, and whether it converged.
    """
    relative, absolute = tolerance
    interval = _first_interval(key)
    if interval is None:
        return math.inf, False

    def of_grid() -> float | np.ndarray:
        points = _points(key, interval)
        if points > _MANY_POINTS:  # takes a second or more
            releases = sum(count for _, count in key)
            progress.info(
                "Composing the privacy losses of %s releases on %s grid points", f"{releases:,}", f"{points:,.0f}"
            )
        return value(_composed(key, interval))

    # With almost no noise, quotients of probabilities overflow to infinity, which compares correctly. The difference of
    # two infinities is nan, which compares as "not converged".
    with np.errstate(over="ignore", invalid="ignore"):
        best = of_grid()
        for _ in range(_MOST_HALVINGS):
            interval /= 2
            if _points(key, interval) > _MOST_POINTS:
                break
            current = of_grid()
            gain, small = np.subtract(best, current), relative * np.abs(best) + absolute
            best = np.minimum(best, current)
            if np.all(gain <= small):
                return best, bool(np.all(gain >= -small))
    return best, False


def _points(key: Key, interval: float) -> float:
    """Return the rough number of grid points that the composed distribution needs, and that of one release.

    On a grid that is wider than the typical loss, rounding up increases the variance of the loss. dp-accounting ends a
    grid where Chernoff bounds of a few fixed orders say: for very many releases, far out.
    """
    variances = [
        (kind, count * max(kind.loss_variance, math.sqrt(kind.loss_variance) * interval)) for kind, count in key
    ]
    chernoff = sum(variance / kind.largest_loss for kind, variance in variances)
    spread = max(_SPREAD * math.sqrt(sum(variance for _, variance in variances)), chernoff)
    return max(spread, *(kind.largest_loss for kind, _ in key)) / interval


def _first_interval(key: Key) -> float | None:
    """Return the first distance of the grid's points, a power of two, or None if every grid would be too large.

    It lies near a quarter of the typical privacy loss of one release. Rare large losses make the typical loss small,
    and need a coarser grid only.
    """
    variance = sum(count * kind.loss_variance for kind, count in key)
    typical = math.sqrt(variance / sum(count for _, count in key))
    first = 2.0 ** math.floor(math.log2(typical / 4))
    if max(kind.largest_loss for kind, _ in key) / first > _MANY_POINTS:
        coarser = (first * 2.0**doublings for doublings in range(1, 64))
        return next((interval for interval in coarser if _points(key, interval) <= _FEW_POINTS), None)
    return first if _points(key, first) <= _MOST_POINTS else None


@lru_cache(maxsize=12)
def _composed(key: Key, interval: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Return the composed distribution of the privacy loss, in both directions, rounded up to a grid."""
    total: privacy_loss_distribution.PrivacyLossDistribution | None = None
    for kind, count in key:
        losses = kind.losses(interval)
        if count >= _DENSE_FROM:
            losses = losses.compute_mixture(losses, 0.5)
        composed = losses.self_compose(count)
        total = composed if total is None else total.compose(composed)
    return total
