"""How many trials an audit needs to refute a claim that is false, and how likely so many are to do it.

A claim is refuted where the upper limits of both error rates lie below a point of the claimed trade-off curve
(`zetadp.audit.detection`).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from zetadp.audit.detection import FALSE_ALARM
from zetadp.privacy import accounting
from zetadp.privacy.accounting import Mechanisms

POWER = 0.99
"""Chance to refute a claim whose noise falls short by the square root of two."""


def trials_needed(mu_honest: float, mu_faulty: float, *, false_alarm: float = FALSE_ALARM, power: float = POWER) -> int:
    """Return how many trials on each side tell a faulty mechanism from the claimed one.

    The attack is the best at equal error rates, its threshold half way. The claim is refuted where both Clopper-Pearson
    limits, each at half of ``false_alarm``, lie below the error rate that the claim implies. Counts are whole numbers,
    so that the power rises in teeth; from the returned number on it is never below ``power`` by more than 1e-4.

    Parameters
    ----------
    mu_honest, mu_faulty
        The claim and what is to be caught.
    false_alarm
        Largest chance to refute a true claim.
    power
        Chance to refute it where `mu_faulty` is the truth.

    Examples
    --------
    >>> trials_needed(1, 2**0.5)
    1466
    """
    if not 0 < mu_honest < mu_faulty:
        raise ValueError(f"Expected 0 < mu_honest < mu_faulty, found {mu_honest} and {mu_faulty}.")
    return trials_for_rates(
        (float(ndtr(-mu_honest / 2)),) * 2, (float(ndtr(-mu_faulty / 2)),) * 2, false_alarm=false_alarm, power=power
    )


def trials_for_rates(
    claimed: tuple[float, float],
    faulty: tuple[float, float],
    *,
    false_alarm: float = FALSE_ALARM,
    power: float = POWER,
) -> int:
    """Return the trials on each side that bring both limits of the error rates below a point of the claimed curve.

    Parameters
    ----------
    claimed
        A point (alpha, beta) of the claimed trade-off curve.
    faulty
        The attack's error rates (alpha, beta) where the mechanism is at fault, both less than `claimed`.
    false_alarm, power
        As in `trials_needed`.
    """
    if not all(0 < less < more < 1 for less, more in zip(faulty, claimed, strict=True)):
        raise ValueError(f"Expected 0 < faulty rates < claimed rates < 1, found {faulty} and {claimed}.")
    most = 64
    while True:
        trials = np.arange(8, most)
        short = np.flatnonzero(_power(trials, claimed, faulty, false_alarm) < power - 1e-4)
        # A number is the answer only if twice as many do not fall short either.
        last = int(trials[short[-1]]) if len(short) else int(trials[0]) - 1
        if last < most // 2:
            return last + 1
        most *= 2


def trials_for_curve(
    mechanisms: Mechanisms,
    faulty: tuple[float, float],
    *,
    false_alarm: float = FALSE_ALARM,
    power: float = POWER,
) -> int:
    """Return the trials on each side that refute a claimed trade-off curve where an attack errs at ``faulty`` rates.

    The point of the curve that both limits must pass is the one as far to the right of the faulty rates as above them.

    Raises
    ------
    ValueError
        If the faulty rates are on the curve or beyond: no number of trials can refute the claim.
    """
    claimed = _opposite(mechanisms, faulty)
    return trials_for_rates(claimed, faulty, false_alarm=false_alarm, power=power)


def power_of(
    mechanisms: Mechanisms, faulty: tuple[float, float], trials: int, *, false_alarm: float = FALSE_ALARM
) -> float:
    """Return the least chance that so many trials a side refute the claim; parameters as in `trials_for_curve`."""
    return float(_power(np.array([trials]), _opposite(mechanisms, faulty), faulty, false_alarm)[0])


def _opposite(mechanisms: Mechanisms, faulty: tuple[float, float]) -> tuple[float, float]:
    """Return the point of the trade-off curve that lies diagonally above the faulty rates."""

    def gap(more: float) -> float:
        return accounting.trade_off(mechanisms, [faulty[0] + more])[0] - faulty[1] - more

    if gap(0.0) <= 0:
        raise ValueError(f"Expected error rates below the claimed trade-off curve, found {faulty}.")
    more = float(brentq(gap, 0.0, (1 - sum(faulty)) / 2, xtol=1e-7))
    return faulty[0] + more, faulty[1] + more


def _power(
    trials: np.ndarray, claimed: tuple[float, float], faulty: tuple[float, float], false_alarm: float
) -> np.ndarray:
    """Return the probability that both upper limits lie below the claimed rates, for each number of trials."""
    power = np.ones(len(trials))
    for high, low in zip(claimed, faulty, strict=True):
        # The limit is below `high` for as many errors as have a probability of at most half the false alarm there.
        most = binom.ppf(false_alarm / 2, trials, high)
        most -= binom.cdf(most, trials, high) > false_alarm / 2
        power *= binom.cdf(most, trials, low)
    return power
