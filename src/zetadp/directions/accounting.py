r"""What a sequence of von Mises-Fisher releases costs in privacy, and the concentration that a target allows.

The releases are `zetadp.privacy.events.Direction`, one of the kinds that `zetadp.privacy.accounting` composes. Figures
are exact but for rounding up (`zetadp.directions.loss`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from scipy.optimize import brentq

from zetadp.privacy import accounting
from zetadp.privacy.events import Direction
from zetadp.validation import positive


def noise_multiplier(concentration: float, dimension: int) -> float:
    r"""Return :math:`z = \sqrt{p} / (2 \kappa)`, of the Gaussian mechanism that is about as private: NOT a bound.

    Examples
    --------
    >>> noise_multiplier(concentration=50.0, dimension=10_000)
    1.0
    """
    return math.sqrt(dimension) / (2 * concentration)


def epsilon(
    releases: Mapping[tuple[float, float, int], int], delta: float, tolerance: float = accounting.TOLERANCE
) -> float:
    """Return an upper bound on epsilon, on a grid refined until the bound stands still.

    Parameters
    ----------
    releases
        Releases by (sampling probability, concentration, dimension).
    delta
        At least `zetadp.privacy.accounting.SMALLEST_DELTA`.
    tolerance
        Relative change by one halving of the grid at which refining ends. Every value gives an upper bound.
    """
    kinds = {Direction(*kind): count for kind, count in releases.items()}
    return accounting.epsilon_pld(kinds, delta, tolerance)


def concentration_for_epsilon(target: float, probability: float, dimension: int, releases: int, delta: float) -> float:
    """Return a concentration at which so many releases cost at most epsilon, and hardly less."""
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
