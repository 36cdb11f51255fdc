"""How far a statistic of correct code may stray.

Every bound is exact (chi-square, Student, binomial), two-sided, and made for one comparison: who makes several divides
the false-alarm probability among them first (Bonferroni), so that dependence between them does not matter.
"""

from __future__ import annotations

import math

from scipy import stats

FALSE_ALARM = 1e-5
"""Probability that one statistical check fails on correct code; all together may reach 1e-3."""


def variance_limits(count: int, alarm: float) -> tuple[float, float]:
    """Return the limits of the mean square of ``count`` standard normal numbers."""
    return float(stats.chi2.ppf(alarm / 2, count)) / count, float(stats.chi2.isf(alarm / 2, count)) / count


def correlation_limit(count: int, alarm: float) -> float:
    """Return the limit of the cosine between two independent standard normal vectors of ``count`` coordinates.

    The cosine r of a normal vector to any other direction has ``r sqrt((n-1)/(1-r^2))`` of Student's law with n - 1
    degrees of freedom.
    """
    t = float(stats.t.isf(alarm / 2, count - 1))
    return t / math.sqrt(count - 1 + t * t)


def count_is_plausible(successes: int, trials: int, probability: float, alarm: float) -> bool:
    """Tell whether neither tail of the binomial law beyond what was counted is rarer than half the alarm."""
    at_most = float(stats.binom.cdf(successes, trials, probability))
    at_least = float(stats.binom.sf(successes - 1, trials, probability))
    return min(at_most, at_least) > alarm / 2
