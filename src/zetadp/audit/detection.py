"""Minimum error rates of attacks, and conclusions from observed errors about the noise.

An attack gives every trial a score, and decides "the patient took part" above a threshold. The numbers of false alarms
and misses are Binomial. Their upper limits are those of Clopper and Pearson (1934, doi:10.1093/biomet/26.4.404), each
at half the allowed error. A claim gives the smallest miss rate of any attack for every false-alarm rate. If the upper
limit of the misses is smaller, the claim is refuted. The limits are valid for a threshold that is fixed before the
trials.

One pair of error rates gives the largest noise with which such an attack would be possible, for the same sampling and
number of rounds, and so a lower bound on epsilon. This is the audit by trade-off function of Nasr et al. (2023,
arXiv:2302.07956).

The same limits give the number of trials that an audit needs to refute a false claim, and the power of that number:
both limits must lie below a point of the claimed trade-off curve.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.stats import beta, binom

from zetadp.accounting import composition
from zetadp.accounting.composition import Exposure
from zetadp.accounting.kinds import Kind
from zetadp.base.validation import in_range, positive

FALSE_ALARM = 1e-3
"""Chance to refute a claim that is true."""

_WIDEST = 64.0


@dataclass(frozen=True)
class Claim:
    """Guarantee for one patient.

    Attributes
    ----------
    mechanisms
        All releases of the patient's node that the attacker has seen, in the accountant's form. Their trade-off curve
        is the full claim.
    delta
        The delta of the quoted epsilon.
    """

    mechanisms: Exposure
    delta: float = 1e-3

    @cached_property
    def epsilon(self) -> float:
        """The quoted epsilon."""
        return composition.epsilon(self.mechanisms, self.delta)

    def power(self, rates: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return the largest power (true-positive rate) of any attack at each false-positive rate."""
        return 1 - np.array(composition.trade_off(self.mechanisms, list(map(float, rates))))

    def epsilon_of(self, alpha: float, misses: float) -> float:
        """Return the smallest epsilon at which an attack can have these error rates; zero if guessing can have them.

        The sampling and the number of rounds are as claimed. All noise multipliers are scaled by one factor until the
        accountant's trade-off curve passes through the error rates.
        """
        factor = _noise_factor(self.mechanisms, alpha, misses)
        return composition.epsilon(_scale_noise(self.mechanisms, factor), self.delta) if math.isfinite(factor) else 0.0


class Rate(NamedTuple):
    """An observed error rate.

    Attributes
    ----------
    upper, lower
        Its confidence limits.
    share
        The share of errors, with half an error added, so that zero errors do not mean certainty.
    """

    upper: float
    share: float
    lower: float

    @classmethod
    def of(cls, errors: int, trials: int, wrong: float) -> Rate:
        """Return the rate after this many errors; each limit is wrong with chance ``wrong``."""
        lower = 1 - upper_limit(trials - errors, trials, wrong)
        return cls(upper_limit(errors, trials, wrong), (errors + 0.5) / (trials + 1), lower)


@dataclass(frozen=True)
class Errors:
    """The errors of one attack at one threshold.

    Attributes
    ----------
    false_alarms, misses
        Trials without the patient that scored above the threshold, and trials with it that did not.
    trials_out, trials_in
        Trials without and with the patient.
    confidence
        Probability with which the upper limits of both rates hold together.
    """

    false_alarms: int
    misses: int
    trials_out: int
    trials_in: int
    confidence: float

    def __post_init__(self) -> None:
        """Refuse impossible counts."""
        positive(trials_out=self.trials_out, trials_in=self.trials_in)
        in_range(0, self.trials_out, false_alarms=self.false_alarms)
        in_range(0, self.trials_in, misses=self.misses)
        in_range(0.5, 1, confidence=self.confidence)

    @property
    def alpha(self) -> Rate:
        """Rate of false alarms."""
        return Rate.of(self.false_alarms, self.trials_out, (1 - self.confidence) / 2)

    @property
    def beta(self) -> Rate:
        """Rate of misses."""
        return Rate.of(self.misses, self.trials_in, (1 - self.confidence) / 2)


def upper_limit(events: int, trials: int, error: float) -> float:
    """Return an upper limit of a probability after ``events`` in ``trials``, which is wrong with chance ``error``."""
    return 1.0 if events >= trials else float(beta.isf(error, events + 1, trials - events))


def count_errors(
    scores_out: ArrayLike,
    scores_in: ArrayLike,
    threshold: float,
    *,
    confidence: float = 1 - FALSE_ALARM,
) -> Errors:
    """Count the errors of an attack.

    Parameters
    ----------
    scores_out, scores_in
        One score per trial without and with the patient; the trials are independent.
    threshold
        A constant that does not depend on these trials.
    confidence
        Probability with which the limits of both error rates hold.
    """
    out, inside = (np.asarray(scores, dtype=np.float64) for scores in (scores_out, scores_in))
    if np.isnan(out).any() or np.isnan(inside).any():
        raise ValueError("Expected scores, found NaN among them: the attack failed, and nothing can be concluded.")
    return Errors(int((out > threshold).sum()), int((inside <= threshold).sum()), len(out), len(inside), confidence)


def _noise_factor(mechanisms: Exposure, alpha: float, misses: float) -> float:
    """Return the factor on the noise at which the trade-off curve passes through a point; infinity for guessing."""
    if alpha + misses >= 1:
        return math.inf

    def gap(logarithm: float) -> float:
        return composition.trade_off(_scale_noise(mechanisms, math.exp(logarithm)), [alpha])[0] - misses

    low = high = 0.0
    step = math.log(2)
    while gap(low) > 0 and low > -math.log(_WIDEST):
        low -= step
    while gap(high) < 0:
        if high > math.log(_WIDEST):
            return math.inf
        high += step
    # Below the range of factors there is almost no noise, and the exact value does not matter.
    return math.exp(low) if gap(low) > 0 else math.exp(brentq(gap, low, high, xtol=1e-4))


def _scale_noise(mechanisms: Exposure, factor: float) -> Exposure:
    scaled: Counter[Kind] = Counter()
    for kind, count in mechanisms.items():
        scaled[kind.with_noise_times(factor)] += count
    return scaled


ROUNDING = 1e-12
"""Error rates this close to a curve lie on it: no number of trials can separate them."""
POWER = 0.99
"""Chance to refute a claim if the fault is the truth."""


def trials_for_curve(
    mechanisms: Exposure,
    faulty: tuple[float, float],
    *,
    false_alarm: float = FALSE_ALARM,
) -> int:
    """Return the trials on each side with which an attack with ``faulty`` error rates refutes a trade-off curve.

    The claim is refuted if both Clopper-Pearson limits, each at half of ``false_alarm``, lie below the point of the
    curve that is as far to the right of the faulty rates as above them. Counts are whole numbers, so the power is not
    monotone. From the returned number on, it is never below `POWER` by more than 1e-4.

    Parameters
    ----------
    mechanisms
        The claimed mechanisms, whose trade-off curve is the claim.
    faulty
        The attack's error rates (alpha, beta) on the faulty mechanism.
    false_alarm
        Largest chance to refute a true claim.

    Raises
    ------
    ValueError
        If the faulty rates are on or above the curve: no number of trials can refute the claim.
    """
    claimed = _find_opposite(mechanisms, faulty)
    most = 64
    while True:
        trials = np.arange(8, most)
        short = np.flatnonzero(_power(trials, claimed, faulty, false_alarm) < POWER - 1e-4)
        # A number is the answer only if twice as many do not fall short either.
        last = int(trials[short[-1]]) if len(short) else int(trials[0]) - 1
        if last < most // 2:
            return last + 1
        most *= 2


def power_of(
    mechanisms: Exposure, faulty: tuple[float, float], trials: int, *, false_alarm: float = FALSE_ALARM
) -> float:
    """Return the power of this number of trials on each side. The parameters are those of `trials_for_curve`."""
    return float(_power(np.array([trials]), _find_opposite(mechanisms, faulty), faulty, false_alarm)[0])


def _find_opposite(mechanisms: Exposure, faulty: tuple[float, float]) -> tuple[float, float]:
    """Return the point of the trade-off curve that lies diagonally above the faulty rates."""

    def gap(more: float) -> float:
        return composition.trade_off(mechanisms, [faulty[0] + more])[0] - faulty[1] - more

    if gap(0.0) <= ROUNDING:
        raise ValueError(f"Expected error rates below the claimed trade-off curve, found {faulty}.")
    more = float(brentq(gap, 0.0, (1 - sum(faulty)) / 2, xtol=1e-7))
    return faulty[0] + more, faulty[1] + more


def _power(
    trials: np.ndarray, claimed: tuple[float, float], faulty: tuple[float, float], false_alarm: float
) -> np.ndarray:
    """Return the probability that both upper limits lie below the claimed rates, for each number of trials."""
    power = np.ones(len(trials))
    for high, low in zip(claimed, faulty, strict=True):
        # The limit is below `high` up to the number of errors whose probability there is half the false alarm at most.
        most = binom.ppf(false_alarm / 2, trials, high)
        most -= binom.cdf(most, trials, high) > false_alarm / 2
        power *= binom.cdf(most, trials, low)
    return power
