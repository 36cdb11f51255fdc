"""The noise for a privacy target, the number of rounds for a noise level, and the cost of a plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from scipy.optimize import brentq

from zetadp.base.epsilon import SMALLEST_DELTA, USELESS, epsilon_value, rounded_up
from zetadp.base.validation import UserError, in_range, positive
from zetadp.privacy import accounting, gaussian
from zetadp.privacy.accounting import central_limit_mu, central_limit_noise, epsilon
from zetadp.privacy.threat import NodeRelease, effective_noise

if TYPE_CHECKING:
    from zetadp.core.plan import Plan

EPSILONS = (1e-3, 1e3)
"""Range of targets. Below it, training fails in the noise; above it, there is no useful privacy."""

TOLERANCE = 1.0005
"""A figure may exceed the plan's label by this factor, because accountants differ by about as much."""

_DIGITS = 5


def noise_for_epsilon(target: float, delta: float, sampling_probability: float, rounds: int) -> float:
    """Return the smallest noise multiplier at which `rounds` rounds cost at most `target` at `delta`.

    The target applies to the figure that is quoted later, `accounting.epsilon`. The noise multiplier is rounded up to
    five significant digits.

    Parameters
    ----------
    target
        Epsilon; infinity asks for no noise.
    delta
        Between `SMALLEST_DELTA` and 1.
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
        If target or delta is out of range, or if the target would be met without noise.

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


def noise_for_nodes(target: float, delta: float, sampling_probabilities: Sequence[float], rounds: int) -> float:
    """Return the common noise multiplier at which the worst node costs at most `target`.

    A patient is on one node, so the nodes' costs do not add up. Epsilon grows with the sampling probability, so the
    node that draws its patients most often decides. The parameters are those of `noise_for_epsilon`.
    """
    if not sampling_probabilities:
        raise ValueError("Expected at least one sampling probability, found none.")
    return noise_for_epsilon(target, delta, max(sampling_probabilities), rounds)


def noise_for_sum(
    target: float,
    delta: float,
    sizes: Sequence[int],
    expected: Sequence[float],
    rounds: int,
    colluding: int,
) -> float:
    r"""Return the noise of every node at which the sum of the messages costs the worst node at most `target`.

    A server that sees only the sum of the messages :math:`(S_j + N_j) / R_j`, and knows those of `colluding` nodes,
    faces the noise of the others. With equal nodes, each adds :math:`\sigma / \sqrt{n - t}`, where :math:`\sigma` is
    the noise that one node would need alone. With unequal nodes, the patients of a node with a small divisor R have
    more weight in the sum. `threat.effective_noise` returns the noise against which their contribution stands.

    Parameters
    ----------
    target, delta, rounds
        As in `noise_for_epsilon`.
    sizes, expected
        Patients N and expected patients R of each node.
    colluding
        Nodes that collude with the server or are missing, fewer than there are nodes.

    Returns
    -------
    The noise multiplier of every node's own message: less than any of them would need alone.

    Examples
    --------
    >>> noise_for_epsilon(8, 1e-3, 1, 20), noise_for_sum(8, 1e-3, [44] * 5, [44] * 5, 20, colluding=1)
    (2.1467, 1.0734)
    """
    probabilities = [drawn / size for drawn, size in zip(expected, sizes, strict=True)]
    if target == math.inf:
        return noise_for_epsilon(target, delta, max(probabilities), rounds)

    def seen(noise: float) -> list[float]:
        releases = [NodeRelease(1.0, drawn, noise) for drawn in expected]
        found = (effective_noise(releases, node, "server", colluding) for node in range(len(releases)))
        return [value for value in found if value is not None]

    alone = [noise_for_epsilon(target, delta, probability, rounds) for probability in probabilities]
    noise = _rounded_up(max(needed / unit for needed, unit in zip(alone, seen(1.0), strict=True)))
    # Compare the epsilon that will be stated, not the noise: the stated figure must not exceed the target.
    while any(
        epsilon({(probability, value): rounds}, delta) > target
        for probability, value in set(zip(probabilities, seen(noise), strict=True))
    ):
        noise = _next_up(noise)
    return noise


def noise_of_plan(plan: Plan) -> float:
    """Return the noise multiplier of every node's own message at which a plan costs at most the epsilon in its name."""
    target, rounds = epsilon_value(plan.run.epsilon), plan.training.rounds
    if plan.colluding is None:
        probabilities = [float(plan.probability(node.name)) for node in plan.nodes]
        return noise_for_nodes(target, plan.delta, probabilities, rounds * plan.open_rows)
    sizes, expected = [node.population for node in plan.nodes], [node.expected for node in plan.nodes]
    return noise_for_sum(target, plan.delta, sizes, expected, rounds, plan.colluding)


def rounds_for(target: float, delta: float, sampling_probability: float, noise_multiplier: float) -> int:
    """Return the largest number of rounds that cost at most `target` at `delta`; zero if one round costs more.

    The parameters are those of `noise_for_epsilon`.

    Raises
    ------
    UserError
        If the target is out of range.
    """
    positive(sampling_probability=sampling_probability, noise_multiplier=noise_multiplier)
    _check_target(target, delta)

    def fits(rounds: int) -> bool:
        return epsilon({(sampling_probability, noise_multiplier): rounds}, delta) <= target

    first_guess = gaussian.mu(target, delta) / central_limit_mu(sampling_probability, noise_multiplier, 1)
    low, high = 0, max(1, round(first_guess**2))
    step = 1 + high // 100
    if fits(high):
        while fits(high):
            low, high, step = high, high + step, 2 * step
    else:
        while high > 1 and not fits(max(1, high - step)):
            high, step = max(1, high - step), 2 * step
        low = max(0, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _check_target(target: float, delta: float) -> None:
    if not EPSILONS[0] <= target <= EPSILONS[1]:
        raise UserError(
            f"Expected epsilon between {EPSILONS[0]:g} and {EPSILONS[1]:g}, or inf for no noise, found {target}. "
            "Common targets are 1, 3 and 8."
        )
    if not SMALLEST_DELTA <= delta < 1:
        raise UserError(
            f"Expected delta between {SMALLEST_DELTA:g} and 1, found {delta}. Choose less than 1 / number of patients."
        )


@lru_cache(maxsize=1024)
def _noise(target: float, delta: float, sampling_probability: float, rounds: int) -> float:
    mu = gaussian.mu(target, delta)

    def excess(log_noise: float) -> float:
        found = epsilon({(sampling_probability, math.exp(log_noise)): rounds}, delta)
        # The logarithm of epsilon is close to a straight line in that of the noise.
        return min(math.log(max(found, 1e-9) / target), 50.0)

    if sampling_probability == 1:
        noise = _rounded_up(math.sqrt(rounds) / mu)
    else:
        # With many rounds, the central limit is accurate to a few per cent.
        guess = math.log(central_limit_noise(mu, sampling_probability, rounds))
        low, high, step = guess - 0.02, guess + 0.02, 0.05
        while excess(low) < 0:
            low, step = low - step, 2 * step
        while excess(high) > 0:
            high, step = high + step, 2 * step
        noise = _rounded_up(math.exp(brentq(excess, low, high, xtol=1e-6)))
    while excess(math.log(noise)) > 0:
        noise = _next_up(noise)
    return noise


def _rounded_up(value: float) -> float:
    """Round up to five significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - _DIGITS)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.{_DIGITS}g}")


def _next_up(value: float) -> float:
    """Return the next larger number of five significant digits."""
    return _rounded_up(value * (1 + 10.0**-_DIGITS))


@dataclass(frozen=True)
class Promise:
    """Epsilon of one node's releases against everyone who receives them, computed from the plan alone.

    Attributes
    ----------
    node
        Name of the node.
    unit
        Unit of the guarantee: ``patient`` or ``image``.
    epsilon
        Epsilon for one unit, of one run to its declared end. It is infinite without noise, and where a single round
        costs more than any guarantee of use: the exact figure could take minutes.
    delta
        The delta at which it holds.
    images
        Number of images of one patient if the unit is an image, else one.
    person
        Epsilon for a patient with all images.
    """

    node: str
    unit: str
    epsilon: float
    delta: float
    images: int
    person: float

    def __str__(self) -> str:
        if self.epsilon == math.inf:
            return f"{self.node}: no guarantee, because the plan adds no noise, or far too little"
        text = f"{self.node}: epsilon {rounded_up(self.epsilon)} for each {self.unit}, at delta {self.delta:g}"
        if self.images > 1:
            text += f"; for a patient with all {self.images} images {rounded_up(self.person)}"
        return text


def promise_of(plan: Plan, name: str, attempts: int = 1) -> Promise:
    """Return the cost of a number of attempts by a plan for the patients of a node, without other nodes' noise."""
    releases = Counter({kind: attempts * count for kind, count in plan.mechanisms(name).items()})
    images = plan.units_of_a_person
    if accounting.epsilon(Counter(dict.fromkeys(releases, 1)), plan.delta) > USELESS:
        return Promise(name, plan.unit, math.inf, plan.delta, images, math.inf)
    epsilon = accounting.epsilon(releases, plan.delta)
    person = epsilon if images == 1 else accounting.epsilon_group(releases, plan.delta, images)
    return Promise(name, plan.unit, epsilon, plan.delta, images, person)


def check_promise(plan: Plan, name: str, *, most_epsilon: float | None = None, attempts: int = 1) -> Promise:
    """Return the cost of one attempt. Refuse a plan that costs more than its name says or than the node allows.

    Parameters
    ----------
    plan, name
        The plan, and the node's name in it.
    most_epsilon
        The largest epsilon that all permitted attempts together may cost a patient. None: only the plan's name limits.
    attempts
        Number of permitted attempts.

    Raises
    ------
    UserError
        If epsilon of the plan is above the one in the run's name, or above the node's own limit, or if the name of a
        plan with noise sets no limit.
    """
    found = promise_of(plan, name)
    label = epsilon_value(plan.run.epsilon)
    if label == math.inf and found.epsilon < math.inf:
        raise UserError(
            f"Expected a plan that names the epsilon of its noise, found the name {plan.run.epsilon}, which limits "
            f"nothing, and a cost of epsilon {rounded_up(found.epsilon)} for the patients of {name} at delta "
            f"{plan.delta:g}. Do not take part; ask for another plan."
        )
    if found.epsilon > label * TOLERANCE:
        raise UserError(
            f"Expected a plan that costs the patients of {name} at most epsilon {plan.run.epsilon}, as its name says, "
            f"found {rounded_up(found.epsilon)} at delta {plan.delta:g}. Do not take part; ask for another plan."
        )
    if most_epsilon is not None:
        total = promise_of(plan, name, attempts).person
        if total > most_epsilon:
            times = "one training" if attempts == 1 else f"{attempts} trainings"
            raise UserError(
                f"Expected a plan that costs a patient of {name} at most epsilon {most_epsilon:g} in {times}, as "
                f"most_epsilon says, found {rounded_up(total)} at delta {plan.delta:g}."
            )
    return found
