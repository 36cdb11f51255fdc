r"""Privacy accounting of sequences of releases.

An accountant needs the number of releases of each kind, and the distributions of the privacy loss that a kind has
(`zetadp.accounting.kinds`). Neighbours differ in one unit whose contribution is replaced by zero, in both directions;
the worse direction counts.

There are three accountants. The privacy-loss distribution (Koskela et al. 2020, arXiv:1906.03049; discretised by
"connect the dots", Doroshenko et al. 2022, arXiv:2207.04380) is tight and is quoted; where every unit takes part in
every round, the composition of Gaussian mechanisms is exact and is quoted instead. Renyi privacy (Mironov et al. 2019,
arXiv:1908.10530; converted as in Canonne, Kamath and Steinke 2020, arXiv:2004.00010) is looser. It is a second opinion,
and it is quoted where the distribution of millions of rounds would take too long or drown in rounding errors. The
central-limit formula is not a bound and is here for comparison only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from zetadp.accounting import gaussian
from zetadp.accounting.events import MOST_RELEASES, Event
from zetadp.accounting.kinds import FEW_UNITS, Kind, gaussian_event
from zetadp.accounting.pld import Key, refined
from zetadp.base.epsilon import DELTAS, LARGEST_EXPONENT
from zetadp.base.logs import only_errors
from zetadp.base.validation import UserError, positive

if TYPE_CHECKING:  # takes a second, and a training without a cap needs no accountant
    from dp_accounting.pld import privacy_loss_distribution

Exposure: TypeAlias = Mapping[Kind, int]
"""Number of releases of each kind, for one unit of a person or for several."""

TOLERANCE = 5e-4
"""A value is final once halving the grid moves it by less than this fraction."""


ORDERS_AT_ANY_TIME = tuple(1 + 2.0**power for power in range(-2, 9))
"""Renyi orders of `epsilon_any_time`, fixed once and for all. The best order is off by a factor of sqrt(2) at most."""

_ROUNDING = 2.0**-51
"""Largest rounding error of the composed distribution's tail, for each release: 3e-16 was seen, of 10 million."""
_NEGLIGIBLE = 1e-4
"""Rounding errors below this fraction of delta are not charged: losses are rounded up by more."""
_LARGE_ORDERS = (1448, 2048, 2896, 4096, 5792, 8192)
"""Renyi orders above dp-accounting's own, for epsilons below about 0.02."""
_COVERING_NOISE = 1e7
"""Noise of a Gaussian release that costs more than the rounding errors of one release's Renyi divergences."""
_ROUGH = 0.02
"""Tolerance for many units. Their values are large; a finer grid takes minutes and lowers them by a few per cent."""


def compose(*parts: Iterable[Event] | Exposure) -> Counter[Kind]:
    """Add up events, or counts of releases, to the total exposure of one unit.

    Composition is addition. The order of releases does not matter, and later ones may depend on the results of earlier
    ones.

    Examples
    --------
    >>> from zetadp.accounting.kinds import NoisySum
    >>> half, whole = NoisySum(0.5, 2.0), NoisySum(1.0, 4.0)
    >>> compose({half: 3}, {half: 1, whole: 2}) == {half: 4, whole: 2}
    True
    """
    total: Counter[Kind] = Counter()
    for part in parts:
        for kind, count in part.items() if isinstance(part, Mapping) else ((e.kind, e.count) for e in part):
            total[kind] += count
    return total


def ordered(exposure: Exposure) -> Key:
    """Return the releases as a hashable value in a fixed order, checked. Kinds that were never released are left out.

    Equal exposures have equal values. Sums of floating-point numbers depend on their order, so epsilons need one.
    """
    for kind, count in exposure.items():
        if not 0 <= count <= MOST_RELEASES:
            raise UserError(f"Expected from 0 to {MOST_RELEASES:,} releases of {kind}, found {count}.")
    counts = [(kind, count) for kind, count in exposure.items() if count]
    return tuple(sorted(counts, key=lambda entry: (entry[0].order, entry[1], entry[0].law)))


def exact_mu(exposure: Exposure) -> float | None:
    r"""Return :math:`\mu = \sqrt{\sum 1/\sigma^2}` where every unit takes part in every noisy sum, else None.

    It is None for every law of an installed package, which may have inherited `Kind.squared_mu` from a Gaussian one.
    """
    squares = [kind.squared_mu(count) if kind.gaussian else None for kind, count in ordered(exposure)]
    known = [square for square in squares if square is not None]
    return math.sqrt(sum(known)) if len(known) == len(squares) else None


def epsilon(exposure: Exposure, delta: float, tolerance: float = TOLERANCE) -> float:
    """Return the epsilon to quote: exact for full participation, else the smaller of two upper bounds."""
    return quoted(exposure, delta, tolerance)[0]


def quoted(exposure: Exposure, delta: float, tolerance: float = TOLERANCE) -> tuple[float, str]:
    """Return the epsilon to quote, and the name of the accountant that it comes from.

    Renyi privacy is computed only where the privacy-loss distribution did not converge. Where it did, it is tight.

    Parameters
    ----------
    exposure, delta, tolerance
        As in `epsilon_pld`.
    """
    mu = exact_mu(exposure)
    if mu is not None:
        return gaussian.epsilon(delta, mu), "exact composition of Gaussians"
    key = ordered(exposure)
    bound, converged = _epsilon(key, _checked(delta), tolerance)
    # Zero only says that the divergences are too small for the conversion.
    if not converged and 0 < (renyi := _epsilon_rdp(key, delta, extended=True)) < bound:
        return renyi, "Renyi differential privacy"
    return bound, "privacy-loss distribution"


def epsilon_pld(exposure: Exposure, delta: float, tolerance: float = TOLERANCE) -> float:
    """Return an upper bound on epsilon, by privacy-loss distribution on a grid that is refined until it converges.

    Parameters
    ----------
    exposure
        Number of releases of each kind. One release without noise makes epsilon infinite.
    delta
        In the range `zetadp.base.epsilon.DELTAS`.
    tolerance
        Refinement of the grid ends when one halving of the grid changes the value by less than this fraction. With a
        large fraction the value is computed quickly and is still an upper bound.

    Returns
    -------
    The bound. It is infinite where so many releases need more grid points than are computed, or where rounding errors
    of the composition exceed delta. There `epsilon` is the Renyi bound.
    """
    return _epsilon(ordered(exposure), _checked(delta), tolerance)[0]


def epsilon_group(exposure: Exposure, delta: float, units: int, tolerance: float = TOLERANCE) -> float:
    """Return an upper bound on epsilon for a person with several units on one node.

    The units are drawn independently, so a round adds a Binomial number of clipped contributions. The result is a
    mixture of Gaussians. In the worst case all contributions have the same direction (Choquette-Choo et al. 2024,
    arXiv:2310.15526, Corollary 4.7). For units on several nodes, `compose` the nodes' mechanisms instead. With many
    units, rounds that draw unusually many of them (probability 1e-15) are left out and charged, so the bound holds.
    """
    return epsilon(grouped(exposure, units), delta, tolerance)


def grouped(exposure: Exposure, units: int) -> Counter[Kind]:
    """Return the releases for a person who has `units` times as many units on the node, each drawn independently.

    Examples
    --------
    >>> from zetadp.accounting.kinds import NoisySum
    >>> grouped({NoisySum(0.5, 2.0): 3}, 6) == {NoisySum(0.5, 2.0, units=6): 3}
    True
    """
    total: Counter[Kind] = Counter()
    for kind, count in ordered(exposure):
        total[kind.of_person(units)] += count
    return total


def epsilon_rdp(exposure: Exposure, delta: float) -> float:
    """Return an upper bound on epsilon by Renyi differential privacy: valid, and looser than `epsilon_pld`.

    Another law counts as Gaussian noise that hides no more.
    """
    key = ordered(exposure)
    # Divergences that rounding made negative count as none.
    return _epsilon_rdp(key, delta) or _epsilon_rdp(key, delta, extended=True)


def epsilon_any_time(exposure: Exposure, delta: float) -> float:
    r"""Return epsilon of releases that were chosen after earlier results, valid whenever somebody stops: an odometer.

    A filter has its limit beforehand. A total that is printed afterwards has not: someone who stops at a high loss
    exceeds the pair (epsilon of the filter, delta). For one order :math:`\alpha`, let :math:`\rho_t` be the sum of the
    Renyi divergences of all releases up to t, each chosen with any knowledge of the results before. Then
    :math:`e^{(\alpha - 1)(L_t - \rho_t)}` is a supermartingale of the loss L that starts at one, so its mean is at most
    one at every stopping time as well (Feldman and Zrnic 2021, arXiv:2008.11193, with the stopping theorem). The usual
    conversion to epsilon therefore holds at every stopping time for that order. The smallest value of all orders may
    be printed if the orders are fixed and share delta. One more share is for a total so small that epsilon is zero.

    Dividing delta among the totals instead, :math:`\delta / (k (k + 1))` for the k-th (after Rogers et al. 2016,
    arXiv:1605.08294), would hold only if the size of every run were fixed beforehand.
    """
    shares = len(ORDERS_AT_ANY_TIME) + 1
    return _epsilon_rdp(ordered(exposure), _checked(delta) / shares, ORDERS_AT_ANY_TIME)


def epsilon_within(exposure: Exposure, limit: float, delta: float) -> float:
    """Return epsilon of releases by Renyi privacy at one order, which follows from a limit and delta alone.

    The theorem on filters (Feldman and Zrnic 2021, arXiv:2008.11193) is for one order that is fixed before the first
    release. The order chosen here admits the most Gaussian releases.
    """
    # At whole orders the divergence of a sampled Gaussian is a finite sum; at others its series may not converge.
    orders = (1.5, *range(2, 65), 128, 256, 512)
    order = max(orders, key=lambda a: (limit - math.log1p(-1 / a) + math.log(delta * a) / (a - 1)) / a)
    return _epsilon_rdp(ordered(exposure), _checked(delta), (order,))


def central_limit_mu(sampling_probability: float, noise_multiplier: float, rounds: int) -> float:
    r"""Return :math:`p \sqrt{T (e^{1/\sigma^2} - 1)}`: an approximation, NOT a bound; it can be below the truth.

    This is the limit of many rounds (Bu et al. 2020, doi:10.1162/99608f92.cfc5dd25). It serves for comparison with work
    that uses it, and as a first guess.
    """
    positive(noise_multiplier=noise_multiplier)
    return sampling_probability * math.sqrt(rounds * math.expm1(min(noise_multiplier**-2, LARGEST_EXPONENT)))


def central_limit_noise(mu: float, sampling_probability: float, rounds: int) -> float:
    r"""Return :math:`1 / \sqrt{\ln(1 + \mu^2 / (p^2 T))}`, the inverse of `central_limit_mu`: NOT a bound."""
    positive(mu=mu, sampling_probability=sampling_probability, rounds=rounds)
    return 1 / math.sqrt(math.log1p((mu / sampling_probability) ** 2 / rounds))


def trade_off(exposure: Exposure, alphas: Sequence[float]) -> list[float]:
    r"""Return, for each false-alarm rate, the smallest miss rate of any attack on one unit's membership.

    Every pair :math:`(\epsilon, \delta)` bounds the error of the second kind from below by
    :math:`\max(0,\; 1 - \delta - e^\epsilon \alpha,\; e^{-\epsilon} (1 - \delta - \alpha))` (Wasserman and Zhou 2010,
    doi:10.1198/jasa.2009.tm08651). The curve is the best of these bounds over all pairs. It is exact for full
    participation.
    """
    rates = np.asarray(alphas, dtype=np.float64)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(f"Expected every false-alarm rate between 0 and 1, found {list(alphas)}.")
    mu = exact_mu(exposure)
    if mu is not None:
        return [gaussian.beta(float(rate), mu) for rate in rates]
    key = _few(ordered(exposure))
    if not _has_noise(key):
        return [0.0] * len(rates)
    # For each epsilon both bounds touch the curve at one slope, so the epsilons are spaced by ratio.
    epsilons = np.concatenate([[0.0], np.geomspace(1e-3, 50, 500)])

    def power(loss: privacy_loss_distribution.PrivacyLossDistribution) -> np.ndarray:
        deltas = np.asarray(loss.get_delta_for_epsilon(epsilons))[:, None]
        steep = 1 - deltas - np.exp(epsilons)[:, None] * rates
        flat = np.exp(-epsilons)[:, None] * (1 - deltas - rates)
        return np.asarray(1 - np.maximum(0, np.maximum(steep, flat)).max(axis=0))

    curve, _ = refined(key, power, (1e-3, 1e-5))
    return [float(1 - value) for value in np.broadcast_to(np.minimum(curve, 1), rates.shape)]


def _few(key: Key) -> Key:
    """Refuse releases with many units of one person: only `epsilon` charges for the draws that are left out."""
    if any(kind.units > FEW_UNITS for kind, _ in key):
        raise ValueError(f"Expected at most {FEW_UNITS} units of one person here. For more, only epsilon is computed.")
    return key


def _log_not_drawn(kind: Kind) -> float:
    """Return the logarithm of the probability that one release does not depend on a unit."""
    return math.log1p(-kind.sampling_probability) if kind.sampling_probability < 1 else -math.inf


def _has_noise(key: Key) -> bool:
    return all(kind.private for kind, _ in key)


def _checked(delta: float) -> float:
    DELTAS.check("delta", delta)
    return delta


@lru_cache(maxsize=4096)
def _epsilon(key: Key, delta: float, tolerance: float) -> tuple[float, bool]:
    """Return a bound by privacy-loss distribution, and whether it converged."""
    if not key or not _has_noise(key):
        return (0.0 if not key else math.inf), True
    if -math.expm1(sum(count * kind.units * _log_not_drawn(kind) for kind, count in key)) <= delta:
        return 0.0, True
    # With probability q per round, more units are drawn than are counted, so a round is P = (1 - q) P' + q P''.
    # Therefore P <= P' + q, which delta pays for, and P >= (1 - q) P', which epsilon pays for.
    left_out = sum(count * kind.left_out for kind, count in key)
    rounding = _ROUNDING * sum(count for _, count in key)
    charged = left_out + (rounding if rounding > _NEGLIGIBLE * delta else 0.0)
    if charged >= delta:
        return math.inf, False
    if any(kind.units > FEW_UNITS for kind, _ in key):
        tolerance = max(tolerance, _ROUGH)
    bound, converged = refined(key, lambda loss: float(loss.get_epsilon_for_delta(delta - charged)), (tolerance, 1e-6))
    return float(bound) - sum(count * math.log1p(-kind.left_out) for kind, count in key), converged


@lru_cache(maxsize=1024)
def _epsilon_rdp(key: Key, delta: float, orders: tuple[float, ...] | None = None, *, extended: bool = False) -> float:
    """Return a bound by Renyi divergences of some orders, by default the usual ones.

    Extended, it has more orders, and rounding errors are added to all.
    """
    if not key or not _has_noise(key):
        return 0.0 if not key else math.inf
    from dp_accounting import rdp

    usual = orders or rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS
    accountant = rdp.RdpAccountant([*usual, *_LARGE_ORDERS] if extended else usual)
    # The accountant warns about each order whose series does not converge. Leaving out an order can only raise epsilon.
    with only_errors("absl"):
        for kind, count in key:
            accountant.compose(kind.dp_event(), count)
            if extended:
                accountant.compose(gaussian_event(1.0, _COVERING_NOISE), count)
        return float(accountant.get_epsilon(delta))
