"""The noise for a privacy target, and the number of rounds for a noise level."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from functools import lru_cache

from zetadp.accounting import gaussian
from zetadp.accounting.composition import TOLERANCE, central_limit_mu, central_limit_noise, epsilon
from zetadp.accounting.events import MOST_RELEASES, kind_from_json
from zetadp.accounting.kinds import NOISE, Kind, NoisySum
from zetadp.accounting.laws import kind_of
from zetadp.accounting.masked import MaskedSum
from zetadp.base.epsilon import check_delta, rounded_up
from zetadp.base.installed import PackageError
from zetadp.base.usercode import user_code
from zetadp.base.validation import UserError, in_range, positive

EPSILONS = (1e-3, 1e3)
"""Range of targets. Below it, training fails in the noise; above it, privacy is not useful."""

_DIGITS = 5


def noise_for_epsilon(target: float, delta: float, sampling_probability: float, rounds: int) -> float:
    """Return the smallest noise multiplier at which `rounds` rounds cost at most `target` at `delta`.

    The target applies to the value that is quoted later, `composition.epsilon`. The noise multiplier is rounded up to
    five significant digits.

    Parameters
    ----------
    target
        Epsilon; infinity asks for no noise.
    delta
        As `zetadp.base.epsilon.check_delta` allows it.
    sampling_probability
        Probability that a patient is drawn in a round, in (0, 1].
    rounds
        The declared largest number of rounds.

    Returns
    -------
    The noise multiplier, or 0.0 for an infinite target.

    Raises
    ------
    UserError
        If target or delta is out of range, or if the target would be met without noise, or by none that is counted.

    Examples
    --------
    >>> noise_for_epsilon(float("inf"), 1e-3, 0.5, 100)
    0.0
    """
    positive(rounds=rounds, sampling_probability=sampling_probability)
    in_range(0, 1, sampling_probability=sampling_probability)
    if target == math.inf:
        return 0.0
    _check_target(target, delta)
    # Without noise, a patient is exposed only if drawn at least once. If this is less likely than delta, every epsilon
    # holds although nothing is hidden.
    exposed = 1.0 if sampling_probability == 1 else -math.expm1(rounds * math.log1p(-sampling_probability))
    if exposed <= delta:
        raise UserError(
            f"Expected delta below {exposed:.3g}, the probability that a patient is drawn in {rounds} rounds, found "
            f"{delta}: at this delta every epsilon would hold without noise. Choose a smaller delta."
        )
    return _noise(target, delta, sampling_probability, rounds)


def noise_for_sum(target: float, delta: float, sampling_probability: float, releases: int, shares: int) -> float:
    r"""Return the share of noise of every node at which masked sums cost at most `target`.

    With :math:`\sigma` the noise that one node would need alone, each of ``shares`` nodes adds
    :math:`\sigma / \sqrt{shares}`. In a sum, everybody's contribution weighs the same.

    Parameters
    ----------
    target, delta, sampling_probability
        As in `noise_for_epsilon`.
    releases
        Declared number of sums: the rounds, and the spare tries.
    shares
        Number of nodes that are relied on to add noise (`zetadp.accounting.threat.Sums.shares`).

    Returns
    -------
    The noise multiplier of every node's own message: less than any of them would need alone.

    Examples
    --------
    >>> noise_for_epsilon(8, 1e-3, 1, 20), noise_for_sum(8, 1e-3, 1, 20, shares=4)
    (2.1467, 1.0734)
    """
    alone = noise_for_epsilon(target, delta, sampling_probability, releases)
    if not alone:
        return 0.0
    share = _rounded_up(alone / math.sqrt(shares))
    # Compare the epsilon that will be stated, not the noise: the stated value must not exceed the target.
    while epsilon({MaskedSum(sampling_probability, share, shares): releases}, delta) > target:
        share = _next_up(share)
    return share


def rounds_for(target: float, delta: float, sampling_probability: float, noise_multiplier: float) -> int:
    """Return the largest number of rounds that cost at most `target` at `delta`; zero if one round costs more.

    The parameters are those of `noise_for_epsilon`.

    Raises
    ------
    UserError
        If the target is out of range, or allows more rounds than are counted.
    """
    positive(sampling_probability=sampling_probability, noise_multiplier=noise_multiplier)
    _check_target(target, delta)

    def cost(rounds: int) -> float:
        return epsilon({NoisySum(sampling_probability, noise_multiplier): rounds}, delta)

    first_guess = (gaussian.mu(target, delta) / central_limit_mu(sampling_probability, noise_multiplier, 1)) ** 2
    if first_guess > MOST_RELEASES:
        raise UserError(
            f"Epsilon {target:g} at delta {delta:g} allows about {first_guess:.2g} rounds, and at most "
            f"{MOST_RELEASES:.0e} are counted. Give less noise, or a larger sampling probability."
        )
    # The guess is often off by a few per cent, and the search between two numbers takes few steps.
    low, high = round(0.95 * first_guess), max(1, round(1.02 * first_guess))
    while low and cost(low) > target:
        low //= 2
    while cost(high) <= target:
        low, high = high, 2 * high
    return low + bisect_left(range(low + 1, high), True, key=lambda rounds: cost(rounds) > target)


def _check_target(target: float, delta: float) -> None:
    if not EPSILONS[0] <= target <= EPSILONS[1]:
        raise UserError(
            f"Expected epsilon between {EPSILONS[0]:g} and {EPSILONS[1]:g}, or inf for no noise, found {target}. "
            "Common targets are 1, 3 and 8."
        )
    check_delta(delta)


@lru_cache(maxsize=1024)
def _noise(target: float, delta: float, sampling_probability: float, rounds: int) -> float:
    mu = gaussian.mu(target, delta)

    def excess(log_noise: float) -> float:
        achieved = epsilon({NoisySum(sampling_probability, math.exp(log_noise)): rounds}, delta)
        # The logarithm of epsilon is close to a straight line in that of the noise.
        return min(math.log(max(achieved, 1e-9) / target), 50.0)

    if sampling_probability == 1:
        noise = _rounded_up(math.sqrt(rounds) / mu)
    else:
        # With many rounds, the central limit is accurate to a few per cent.
        guess = math.log(central_limit_noise(mu, sampling_probability, rounds))
        least, most = map(math.log, NOISE)
        guess = min(max(guess, least + 0.02), most - 0.02)
        low, high, step = guess - 0.02, guess + 0.02, 0.05
        while excess(low) < 0:
            if low == least:
                return NOISE[0]
            low, step = max(low - step, least), 2 * step
        while excess(high) > 0:
            if high == most:
                raise UserError(
                    f"Not even noise multiplier {NOISE[1]:g} meets epsilon {target:g} at delta {delta:g} in {rounds:,} "
                    "rounds. Choose a larger epsilon or delta, or fewer rounds."
                )
            high, step = min(high + step, most), 2 * step
        from scipy.optimize import brentq  # a quarter of a second of the start of every training

        noise = _rounded_up(math.exp(brentq(excess, low, high, xtol=1e-6)))
    while excess(math.log(noise)) > 0:
        noise = _next_up(noise)
    return noise


def _rounded_up(value: float) -> float:
    """Round up to five significant digits."""
    return float(rounded_up(value, _DIGITS))


def _next_up(value: float) -> float:
    """Return the next larger number of five significant digits."""
    return _rounded_up(value * (1 + 10.0**-_DIGITS))


def kind_in_place_of(noisy_sum: NoisySum, law: str, dimension: int, rounds: int, delta: float) -> Kind:
    """Return the kind of a law whose releases hide as much as noisy sums, or more (`Kind.hiding`).

    Plans are calibrated for noisy sums, so a law that hides less would break the epsilon after which a run is named.
    Its own account is therefore compared with that of the noisy sum, before anything is released.

    Parameters
    ----------
    noisy_sum, dimension
        The noisy sum, and the real numbers in a release.
    law
        Name of the law.
    rounds, delta
        Releases of a node in a run, and the delta of its plan.

    Raises
    ------
    PackageError
        If the law returns no kind of its own with the same sampling probability, one that a ledger cannot hold, or one
        that costs more.
    UserCodeError
        If its code fails.
    """
    wrong = f"Expected the law of noise {law} to replace a noisy sum by a release that hides no less, found"
    advice = "Nothing was released: ask the author of the package."
    with user_code(f"{wrong} an error: ", f" {advice}"):
        kind: object = kind_of(law).hiding(noisy_sum, dimension)
        if type(kind) is not kind_of(law) or kind.sampling_probability != noisy_sum.sampling_probability:
            raise PackageError(f"{wrong} {kind!r:.100} for {noisy_sum!r}. {advice}")
        if (recorded := kind_from_json(json.loads(json.dumps(kind.to_json())))) != kind:
            raise PackageError(f"{wrong} {kind!r:.100}, which a ledger would hold as {recorded!r:.100}. {advice}")
        cost, allowed = (epsilon({of: rounds}, delta) for of in (kind, noisy_sum))
    if cost > allowed * (1 + 2 * TOLERANCE):  # either may be this far above the exact value
        raise PackageError(
            f"{wrong} one of epsilon {cost:.4g} in place of {allowed:.4g}, over {rounds} rounds at delta {delta:g}. "
            f"{advice}"
        )
    return kind
