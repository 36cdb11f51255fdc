r"""Privacy accounting of sequences of noisy rounds.

An accountant needs three numbers for each kind of round: how many rounds there were, the probability with which one
patient's contribution entered, and the noise in units of the clipping norm. For rounds that release a direction, the
concentration replaces the noise (`zetadp.directions.loss`). Neighbours differ in one patient whose contribution is
replaced by zero, in both directions; the worse direction counts.

There are three accountants. The privacy-loss distribution (Koskela et al. 2020, arXiv:1906.03049; discretised by
"connect the dots", Doroshenko et al. 2022, arXiv:2207.04380) is tight and is quoted; where every patient takes part in
every round, the composition of Gaussian mechanisms is exact and is quoted instead. Renyi privacy (Mironov et al. 2019,
arXiv:1908.10530) is a looser second opinion. The central-limit formula is no bound and is here for comparison only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from dp_accounting import dp_event, rdp
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import binom

from zetadp.base.epsilon import SMALLEST_DELTA
from zetadp.base.quiet import only_errors
from zetadp.base.validation import positive
from zetadp.directions.cosine import check_mechanism
from zetadp.directions.loss import loss_distribution
from zetadp.privacy import gaussian
from zetadp.privacy.events import Direction, Kind, Mechanism, Round, gaussian_bound

Mechanisms: TypeAlias = Mapping[Mechanism, int] | Mapping[Kind, int]
"""Number of rounds of each kind: (sampling probability, noise multiplier), or a `Direction`."""

Grouped: TypeAlias = tuple[float, float, int]
"""A `Mechanism` for a person with several units, drawn independently. The third value is the number of units."""

Exposure: TypeAlias = (
    Mechanisms | Mapping[Direction, int] | Mapping[Mechanism | Grouped, int] | Mapping[Kind | Grouped, int]
)
"""Number of rounds of each kind, for one unit of a person or for several."""

TOLERANCE = 5e-4
"""A figure is final once halving the grid moves it by less than this fraction."""

_Key: TypeAlias = tuple[tuple[float, float, int, int, int], ...]
"""Sampling probability, noise multiplier, units of one person, rounds, and zero.

For directions, kappa replaces the noise multiplier and the dimension replaces the zero. Several units of a person
cannot do more than reverse a direction. They therefore count as one unit, which is drawn if any of them is drawn.
"""

_GROUPED = 3
"""Length of a `Grouped`."""
_MOST_HALVINGS = 10
_FEW_UNITS = 8
_LEFT_OUT = 1e-15
"""Probability that a round draws more units of a person than are considered. Delta and epsilon are charged for it."""
_ROUGH = 0.02
"""Tolerance for many units. Their figures are large; a finer grid takes minutes and lowers them by a few per cent."""


def compose(*parts: Iterable[Round] | Mechanisms) -> Counter[Kind]:
    """Add up rounds, or counts of rounds, to the total exposure of one patient.

    Composition is addition. The order of rounds does not matter, and later rounds may depend on the results of earlier
    ones.

    Examples
    --------
    >>> compose({(0.5, 2.0): 3}, {(0.5, 2.0): 1, (1.0, 4.0): 2})
    Counter({(0.5, 2.0): 4, (1.0, 4.0): 2})
    """
    total: Counter[Kind] = Counter()
    for part in parts:
        for kind, count in part.items() if isinstance(part, Mapping) else ((e.mechanism, e.count) for e in part):
            total[kind] += count
    return total


def as_dp_event(mechanisms: Exposure) -> dp_event.DpEvent:
    """Return the rounds as an event of dp-accounting, which other accountants can compose.

    That library knows no directions. Gaussian noise that hides no more replaces them.

    Examples
    --------
    >>> as_dp_event({(1.0, 4.0): 2})
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=4.0), count=2)
    """
    events = [
        dp_event.SelfComposedDpEvent(_one_round(probability, sigma, units), count)
        for probability, sigma, units, count in _as_sums(_key(mechanisms))
    ]
    return events[0] if len(events) == 1 else dp_event.ComposedDpEvent(events)


def _one_round(probability: float, sigma: float, units: int) -> dp_event.DpEvent:
    if probability == 1:
        return dp_event.GaussianDpEvent(sigma / units)
    if units > 1:
        return dp_event.MixtureOfGaussiansDpEvent(sigma, *_drawn(probability, units)[:2])
    return dp_event.PoissonSampledDpEvent(probability, dp_event.GaussianDpEvent(sigma))


def exact_mu(mechanisms: Exposure) -> float | None:
    r"""Return :math:`\mu = \sqrt{\sum 1/\sigma^2}` where every patient takes part in every noisy sum, else None."""
    key = _key(mechanisms)
    if any(probability < 1 or dimension for probability, *_, dimension in key):
        return None
    if not _has_noise(key):
        return math.inf
    return math.sqrt(sum(count * units**2 / sigma**2 for _, sigma, units, count, _ in key))


def epsilon(mechanisms: Exposure, delta: float, tolerance: float = TOLERANCE) -> float:
    """Return the epsilon to quote: exact for full participation, else by privacy-loss distribution."""
    mu = exact_mu(mechanisms)
    return epsilon_pld(mechanisms, delta, tolerance) if mu is None else gaussian.epsilon(delta, mu)


def epsilon_pld(mechanisms: Exposure, delta: float, tolerance: float = TOLERANCE) -> float:
    """Return an upper bound on epsilon, by privacy-loss distribution on a grid that is refined until it converges.

    Parameters
    ----------
    mechanisms
        Rounds by (sampling probability, noise multiplier). A noise multiplier of zero makes epsilon infinite.
    delta
        At least `SMALLEST_DELTA`.
    tolerance
        Refinement of the grid ends when one halving of the grid changes the figure by less than this fraction. With a
        large value the figure is computed quickly and is still an upper bound.
    """
    return _epsilon(_key(mechanisms), _checked(delta), tolerance)


def epsilon_group(mechanisms: Exposure, delta: float, records: int, tolerance: float = TOLERANCE) -> float:
    """Return an upper bound on epsilon for a person with several records on one node.

    The records are drawn independently, so a round adds a Binomial number of clipped contributions. The result is a
    mixture of Gaussians. In the worst case all contributions have the same direction (Choquette-Choo et al. 2024,
    arXiv:2310.15526, Corollary 4.7). For records on several nodes, `compose` the nodes' mechanisms instead. With many
    records, rounds that draw unusually many of them (probability 1e-15) are left out and charged, so the bound holds.
    """
    return epsilon(grouped(mechanisms, records), delta, tolerance)


def grouped(mechanisms: Exposure, units: int) -> Counter[Kind | Grouped]:
    """Return the rounds for a person who has `units` times as many units on the node, each drawn independently.

    Examples
    --------
    >>> grouped({(0.5, 2.0): 3}, 6)
    Counter({(0.5, 2.0, 6): 3})
    """
    positive(units=units)
    total: Counter[Kind | Grouped] = Counter()
    for probability, level, held, count, dimension in _key(mechanisms):
        if dimension:
            total[Direction(_any_drawn(probability, units), level, dimension)] += count
        else:
            total[(probability, level, held * units) if held * units > 1 else (probability, level)] += count
    return total


def epsilon_rdp(mechanisms: Exposure, delta: float) -> float:
    """Return an upper bound on epsilon by Renyi differential privacy: valid, and looser than `epsilon_pld`.

    Directions count as Gaussian noise that hides no more.
    """
    return _epsilon_rdp(_key(mechanisms), delta)


def central_limit_mu(sampling_probability: float, noise_multiplier: float, rounds: int) -> float:
    r"""Return :math:`p \sqrt{T (e^{1/\sigma^2} - 1)}`: an approximation, NOT a bound; it can be below the truth.

    This is the limit of many rounds (Bu et al. 2020, doi:10.1162/99608f92.cfc5dd25). It serves for comparison with work
    that uses it, and as a first guess.
    """
    positive(noise_multiplier=noise_multiplier)
    # Beyond the largest exponent of a double there is no privacy, whatever the exact figure.
    return sampling_probability * math.sqrt(rounds * math.expm1(min(noise_multiplier**-2, 700.0)))


def central_limit_noise(mu: float, sampling_probability: float, rounds: int) -> float:
    r"""Return :math:`1 / \sqrt{\ln(1 + \mu^2 / (p^2 T))}`, the inverse of `central_limit_mu`: NOT a bound."""
    positive(mu=mu, sampling_probability=sampling_probability, rounds=rounds)
    return 1 / math.sqrt(math.log1p((mu / sampling_probability) ** 2 / rounds))


def trade_off(mechanisms: Exposure, alphas: Sequence[float]) -> list[float]:
    r"""Return, for each false-alarm rate, the smallest miss rate of any attack on one patient's membership.

    Every pair :math:`(\epsilon, \delta)` bounds the error of the second kind from below by
    :math:`\max(0,\; 1 - \delta - e^\epsilon \alpha,\; e^{-\epsilon} (1 - \delta - \alpha))` (Wasserman and Zhou 2010,
    doi:10.1198/jasa.2009.tm08651). The curve is the best of these bounds over all pairs. It is exact for full
    participation.
    """
    rates = np.asarray(alphas, dtype=np.float64)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(f"Expected every false-alarm rate between 0 and 1, found {list(alphas)}.")
    mu = exact_mu(mechanisms)
    if mu is not None:
        return [gaussian.beta(float(rate), mu) for rate in rates]
    key = _few(_key(mechanisms))
    if not _has_noise(key):
        return [0.0] * len(rates)
    # For each epsilon both bounds touch the curve at one slope, so the epsilons are spaced by ratio.
    epsilons = np.concatenate([[0.0], np.geomspace(1e-3, 50, 500)])

    def power(loss: privacy_loss_distribution.PrivacyLossDistribution) -> np.ndarray:
        deltas = np.asarray(loss.get_delta_for_epsilon(epsilons))[:, None]
        steep = 1 - deltas - np.exp(epsilons)[:, None] * rates
        flat = np.exp(-epsilons)[:, None] * (1 - deltas - rates)
        return np.asarray(1 - np.maximum(0, np.maximum(steep, flat)).max(axis=0))

    curve = refined(lambda interval: _composed(key, interval), first_interval(key), power, (1e-3, 1e-5))
    return [float(1 - value) for value in np.asarray(curve)]


def _key(mechanisms: Exposure) -> _Key:
    """Return the rounds as a hashable value in a fixed order, checked."""
    found = []
    for kind, count in mechanisms.items():
        if isinstance(kind, Direction):
            check_mechanism(kind.concentration, kind.dimension, kind.sampling_probability)
            if count:
                found.append((kind.sampling_probability, kind.concentration, 1, count, kind.dimension))
            continue
        probability, sigma, units = kind if len(kind) == _GROUPED else (*kind, 1)
        if not (0 < probability <= 1 and sigma >= 0 and math.isfinite(sigma) and count >= 0 and units >= 1):
            shown = f"{probability}, {sigma}, {units} and {count}"
            raise ValueError(
                f"Expected 0 < sampling probability <= 1, finite noise >= 0, units >= 1 and rounds >= 0, found {shown}."
            )
        if count:
            found.append((probability, sigma, int(units), count, 0))
    return tuple(sorted(found))


def _as_sums(key: _Key) -> list[tuple[float, float, int, int]]:
    """Return probability, noise multiplier, units and rounds, with Gaussian noise that hides no more for directions."""
    return [
        (probability, gaussian_bound(level, dimension) if dimension else level, units, count)
        for probability, level, units, count, dimension in key
    ]


def _any_drawn(probability: float, units: int) -> float:
    return -math.expm1(units * math.log1p(-probability)) if probability < 1 else 1.0


def _few(key: _Key) -> _Key:
    """Refuse rounds with many units of one person: only `epsilon` charges for the draws that are left out."""
    if any(units > _FEW_UNITS for _, _, units, *_ in key):
        raise ValueError(f"Expected at most {_FEW_UNITS} units of one person here. For more, only epsilon is computed.")
    return key


def _has_noise(key: _Key) -> bool:
    return all(level > 0 for _, level, *_ in key)


def _checked(delta: float) -> float:
    if not SMALLEST_DELTA <= delta < 1:
        raise ValueError(f"Expected {SMALLEST_DELTA} <= delta < 1, found {delta}.")
    return delta


@lru_cache(maxsize=4096)
def _epsilon(key: _Key, delta: float, tolerance: float) -> float:
    if not key or not _has_noise(key):
        return 0.0 if not key else math.inf
    # With probability q per round, more units are drawn than are counted, so a round is P = (1 - q) P' + q P''.
    # Therefore P <= P' + q, which delta pays for, and P >= (1 - q) P', which epsilon pays for.
    left_out = sum(count * _drawn(probability, units)[2] for probability, _, units, count, _ in key)
    if left_out >= delta:
        return math.inf
    if any(units > _FEW_UNITS for _, _, units, *_ in key):
        tolerance = max(tolerance, _ROUGH)
    figure = epsilon_at(delta - left_out)
    bound = refined(lambda interval: _composed(key, interval), first_interval(key), figure, (tolerance, 1e-6))
    return float(bound) - sum(count * math.log1p(-_drawn(p, units)[2]) for p, _, units, count, _ in key)


@lru_cache(maxsize=1024)
def _epsilon_rdp(key: _Key, delta: float) -> float:
    if not key or not _has_noise(key):
        return 0.0 if not key else math.inf
    accountant = rdp.RdpAccountant()
    # The accountant warns about each order whose series does not converge. Leaving out an order can only raise epsilon.
    with only_errors("absl"):
        for probability, sigma, units, count in _as_sums(key):
            if units > 1:
                # Whenever any unit is drawn, all are counted as drawn. This can only raise epsilon.
                probability = _any_drawn(probability, units)
                sigma /= units
            accountant.compose(_one_round(probability, sigma, 1), count)
        return float(accountant.get_epsilon(delta))


def epsilon_at(delta: float) -> Callable[[privacy_loss_distribution.PrivacyLossDistribution], float]:
    """Return the function that computes epsilon at this delta, for `refined`."""
    return lambda loss: float(loss.get_epsilon_for_delta(delta))


def refined(
    composed: Callable[[float], privacy_loss_distribution.PrivacyLossDistribution],
    interval: float,
    figure: Callable[[privacy_loss_distribution.PrivacyLossDistribution], float | np.ndarray],
    tolerance: tuple[float, float],
) -> float | np.ndarray:
    """Return a figure of the composed distribution, on a grid that is halved until the figure converges.

    A smaller figure must be tighter. Every grid then gives a valid figure, and the smallest is returned. The error of
    "connect the dots" falls with the square of the interval, so after a change by x an error of about x / 3 remains. On
    very fine grids (a million rounds) rounding errors, which only add probability, make the figure rise again.
    Refinement ends there as well.

    Parameters
    ----------
    composed
        Returns the distribution, in both directions, rounded up to a grid of the given interval.
    interval
        Interval of the first grid.
    figure
        Computes the figure of a distribution.
    tolerance
        Relative and absolute change. Refinement ends when one halving changes the figure by less.
    """
    relative, absolute = tolerance
    # With almost no noise, quotients of probabilities overflow to infinity, which compares correctly. The difference of
    # two infinities is nan, which compares as "not converged".
    with np.errstate(over="ignore", invalid="ignore"):
        best = figure(composed(interval))
        for _ in range(_MOST_HALVINGS):
            interval /= 2
            current = figure(composed(interval))
            gain = np.subtract(best, current)
            best = np.minimum(best, current)
            if np.all(gain <= relative * np.abs(best) + absolute):
                break
    return best


def first_interval(key: _Key) -> float:
    """Return a power of two near a quarter of the typical privacy loss of one round."""
    variance = 0.0
    for probability, level, units, count, dimension in key:
        # Approximately the Gaussian noise of equal cost. The first interval need not be a bound.
        sigma = math.sqrt(dimension) / (2 * level) if dimension else level
        mean = probability * units
        many_rounds = mean**2 * math.expm1(min(sigma**-2, 700.0))
        few_rounds = mean * units / sigma**2
        variance += count * min(many_rounds, few_rounds)
    typical = math.sqrt(variance / sum(count for *_, count, _ in key))
    return 2.0 ** math.floor(math.log2(typical / 4))


@lru_cache(maxsize=12)
def _composed(key: _Key, interval: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Return the composed distribution of the privacy loss, in both directions, rounded up to a grid."""
    total: privacy_loss_distribution.PrivacyLossDistribution | None = None
    for probability, sigma, units, count, dimension in key:
        if dimension:
            single = loss_distribution(probability, sigma, dimension, interval)
        elif units == 1 or probability == 1:
            # The default neighbours are "add or remove one", in both directions. "Zero-out" has the same distributions.
            # If all units are drawn in every round, they are one contribution of `units` times the norm.
            single = privacy_loss_distribution.from_gaussian_mechanism(
                sigma / units, value_discretization_interval=interval, sampling_prob=probability
            )
        else:
            drawn, chances, _ = _drawn(probability, units)
            single = privacy_loss_distribution.from_mixture_gaussian_mechanism(
                sigma, drawn, chances, value_discretization_interval=interval
            )
        composed = single.self_compose(count)
        total = composed if total is None else total.compose(composed)
    return total


def _drawn(probability: float, units: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the numbers of a person's units that a round can draw, their probabilities, and the one left out."""
    most, left_out = units, 0.0
    if units > _FEW_UNITS:
        tail = binom.sf(np.arange(units + 1), units, probability)
        most = int(np.argmax(tail <= _LEFT_OUT))
        left_out = float(tail[most])
    drawn = np.arange(most + 1)
    chances = binom.pmf(drawn, units, probability)
    return drawn, chances / chances.sum() if left_out else chances, left_out
