r"""Exact privacy of a Gaussian mechanism.

A mechanism is :math:`\mu`-GDP if distinguishing its outputs on two neighbouring cohorts is at least as hard as
distinguishing :math:`N(0, 1)` from :math:`N(\mu, 1)` (Dong, Roth and Su 2022, doi:10.1111/rssb.12454). The complex
Gaussian mechanism with variance :math:`\sigma^2` in the real and in the imaginary part has
:math:`\mu = \Delta / \sigma`, like a real mechanism with twice as many coordinates. With half that variance in each
part it would have :math:`\mu = \sqrt{2} \Delta / \sigma`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import erfcx, log_ndtr, ndtr, ndtri

from zetadp.base.validation import in_range

_LARGE = 1e5


def delta(epsilon: float, mu: float) -> float:
    r"""Return the smallest delta at which a mu-GDP mechanism is (epsilon, delta)-private.

    .. math:: \delta = \Phi(\mu/2 - \epsilon/\mu) - e^\epsilon \Phi(-\mu/2 - \epsilon/\mu)

    The formula is Theorem 8 of Balle and Wang 2018 (arXiv:1805.06530). The result is accurate even if it is tiny.
    """
    return math.exp(_log_delta(epsilon, mu))


def epsilon(delta: float, mu: float) -> float:
    """Return the smallest epsilon >= 0 at which a mu-GDP mechanism is (epsilon, delta)-private."""
    if not 0 <= delta <= 1:
        raise ValueError(f"Expected 0 <= delta <= 1, found {delta}.")
    if _log_delta(0.0, mu) <= _log(delta):
        return 0.0
    if delta == 0 or mu == math.inf:
        return math.inf
    # The privacy loss is N(mu^2 / 2, mu^2), and its upper tail is below exp(-z^2 / 2).
    if mu > _LARGE:
        # Without the second term of delta, which is smaller than the first by about mu, the root is known. This is an
        # upper bound, by less than a part in mu^2; the difference of both terms would be lost to rounding.
        return mu * (mu / 2 - float(ndtri(delta)))
    upper = mu**2 / 2 + mu * math.sqrt(2 * -_log(delta))
    return _root(lambda x: _log_delta(x, mu) - _log(delta), 0.0, upper, within=1e-13)


def mu(epsilon: float, delta: float) -> float:
    """Return the largest mu at which every mu-GDP mechanism is (epsilon, delta)-private."""
    if not (epsilon >= 0 and 0 < delta < 1):
        raise ValueError(f"Expected epsilon >= 0 and 0 < delta < 1, found {epsilon} and {delta}.")
    if epsilon == math.inf:
        return math.inf
    upper = 1.0
    while _log_delta(epsilon, upper) < math.log(delta):
        upper *= 2
    lower = upper
    while _log_delta(epsilon, lower) > math.log(delta):
        lower /= 2
    return _root(lambda x: _log_delta(epsilon, x) - math.log(delta), lower, upper, within=1e-14)


def _root(function: Callable[[float], float], low: float, high: float, within: float) -> float:
    """Return where a function is zero between two points, up to a distance."""
    from scipy.optimize import brentq  # a quarter of a second of the start of every training, which seldom needs it

    return float(brentq(function, low, high, xtol=within, rtol=1e-13))


def beta(alpha: float, mu: float) -> float:
    r"""Return the least type-II error of any test with type-I error alpha: :math:`\Phi(\Phi^{-1}(1-\alpha) - \mu)`."""
    in_range(0, 1, alpha=alpha)
    _check_mu(mu)
    if mu == math.inf:
        return 0.0
    return float(ndtr(-ndtri(alpha) - mu))


def _log_delta(epsilon: float, mu: float) -> float:
    """Return the logarithm of `delta`."""
    _check_mu(mu)
    if mu == math.inf or epsilon == -math.inf:
        return 0.0
    if mu == 0:
        return _log(-math.expm1(epsilon)) if epsilon < 0 else -math.inf
    t = epsilon / mu - mu / 2
    if t > 0:
        # Both terms are one normal density times a Mills ratio. Taking it out keeps the tail free of underflow and of
        # the rounding of large exponents.
        mills = math.sqrt(math.pi / 2) * float(erfcx(t / math.sqrt(2)) - erfcx((t + mu) / math.sqrt(2)))
        return -(t**2) / 2 - math.log(2 * math.pi) / 2 + _log(mills)
    return _log(float(ndtr(-t)) - math.exp(epsilon + float(log_ndtr(-t - mu))))


def _log(value: float) -> float:
    """Return the natural logarithm, or minus infinity for zero and for values that rounding made negative."""
    return math.log(value) if value > 0 else -math.inf


def _check_mu(mu: float) -> None:
    if not mu >= 0:
        raise ValueError(f"Expected mu >= 0, found {mu}.")
