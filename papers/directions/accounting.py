r"""The privacy cost of a sequence of von Mises-Fisher releases, and the concentration for a target epsilon.

A release is a `zetadp.privacy.directions.Direction`, one of the kinds that `zetadp.privacy.accounting` composes.
The values are upper bounds; they are exact apart from rounding up (`zetadp.privacy.directions`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from scipy.optimize import brentq

from zetadp.base.validation import positive
from zetadp.privacy import accounting
from zetadp.privacy.directions import Direction


def noise_multiplier(concentration: float, dimension: int) -> float:
    r"""Return the noise multiplier of a Gaussian mechanism that is about as private: an approximation, NOT a bound.

    Parameters
    ----------
    concentration, dimension
        Kappa, and real dimension p.

    Returns
    -------
    :math:`z = \sqrt{p} / (2 \kappa)`.

    Examples
    --------
    >>> noise_multiplier(concentration=50.0, dimension=10_000)
    1.0
    """
    return math.sqrt(dimension) / (2 * concentration)


def epsilon(
    releases: Mapping[tuple[float, float, int], int], delta: float, tolerance: float = accounting.TOLERANCE
) -> float:
    """Return an upper bound on epsilon.

    The privacy loss is rounded up to a grid, which is refined until the bound hardly changes.

    Parameters
    ----------
    releases
        Number of releases by (sampling probability, concentration, dimension).
    delta
        At least `zetadp.privacy.accounting.SMALLEST_DELTA`.
    tolerance
        Refining ends when halving the grid changes the bound by less than this share. The result is an upper bound for
        every tolerance.

    Raises
    ------
    ValueError
        If a release cannot be accounted for.
    """
    kinds = {Direction(*kind): count for kind, count in releases.items()}
    return accounting.epsilon_pld(kinds, delta, tolerance)


def concentration_for_epsilon(target: float, probability: float, dimension: int, releases: int, delta: float) -> float:
    """Return the concentration at which releases cost a target epsilon, or slightly less.

    Parameters
    ----------
    target
        The target epsilon, above zero.
    probability, dimension, releases, delta
        Sampling probability, real dimension and number of the releases, and delta.
    """
    positive(target=target)

    def excess(log_concentration: float) -> float:
        spent = epsilon({(probability, math.exp(log_concentration), dimension): releases}, delta)
        return math.log(spent / target) + 2 * accounting.TOLERANCE

    lower = upper = math.log(math.sqrt(dimension) / 2)
    while excess(upper) < 0:
        upper += 1
    while excess(lower) > 0:
        lower -= 1
    found = brentq(excess, lower, upper, xtol=accounting.TOLERANCE)
    while excess(found) > accounting.TOLERANCE:
        found -= accounting.TOLERANCE
    return math.exp(found)
