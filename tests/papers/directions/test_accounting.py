"""The exact privacy of the von Mises-Fisher mechanism bounds the truth; the paper's ways give what it prints."""

from __future__ import annotations

import math

import pytest
from scipy.integrate import quad
from scipy.optimize import brentq

from papers.directions.accounting import concentration_for_epsilon
from papers.directions.mechanism import Direction, gaussian_bound
from zetadp.accounting import composition as rounds
from zetadp.accounting.kinds import NoisySum


def epsilon(releases: dict[tuple[float, float, int], int], delta: float) -> float:
    return rounds.epsilon({Direction(*kind): count for kind, count in releases.items()}, delta)


def exact_epsilon(concentration: float, dimension: int, probability: float, delta: float) -> float:
    """Return epsilon of one release by quadrature of the hockey-stick divergence, the worse of both directions."""

    def shape(t: float, sign: int) -> float:
        return math.exp(sign * concentration * t - concentration) * (1 - t * t) ** ((dimension - 3) / 2)

    total = quad(shape, -1, 1, args=(1,), epsabs=0, limit=200)[0]

    def tail(sign: int, start: float, end: float) -> float:
        return quad(shape, start, end, args=(sign,), epsabs=0, limit=200)[0] / total

    def removed(figure: float) -> float:
        cut = math.log((math.exp(figure) - 1 + probability) / probability) / (2 * concentration)
        if cut >= 1:
            return 0
        present = (1 - probability) * tail(-1, cut, 1) + probability * tail(1, cut, 1)
        return present - math.exp(figure) * tail(-1, cut, 1)

    def added(figure: float) -> float:
        below = (math.exp(-figure) - 1 + probability) / probability
        cut = math.log(below) / (2 * concentration) if below > 0 else -math.inf
        if cut <= -1:
            return 0
        present = (1 - probability) * tail(-1, -1, cut) + probability * tail(1, -1, cut)
        return tail(-1, -1, cut) - math.exp(figure) * present

    return float(brentq(lambda figure: max(removed(figure), added(figure)) - delta, 0, 2 * concentration))


@pytest.mark.parametrize(
    ("concentration", "dimension", "probability", "delta"),
    [(2.0, 3, 1.0, 1e-3), (1.5, 10, 0.3, 1e-3), (20.0, 100, 1.0, 1e-5), (8.0, 100, 0.05, 1e-4), (3.0, 4, 0.5, 0.01)],
)
def test_one_release_costs_no_less_than_the_truth_and_hardly_more(concentration, dimension, probability, delta):
    true = exact_epsilon(concentration, dimension, probability, delta)
    found = epsilon({(probability, concentration, dimension): 1}, delta)
    assert true * (1 - 1e-9) <= found <= true * (1 + 2 * rounds.TOLERANCE)


def test_a_release_never_costs_more_than_its_pure_privacy():
    assert epsilon({(1.0, 0.5, 3): 1}, 1e-10) <= 1.0
    assert epsilon({(1.0, 0.5, 3): 1}, 1e-10) == pytest.approx(1.0, abs=1e-3)


def test_the_concentration_for_epsilon_keeps_it():
    concentration = concentration_for_epsilon(2.0, 0.1, 500, 50, 1e-4)
    assert epsilon({(0.1, concentration, 500): 50}, 1e-4) <= 2.0
    assert epsilon({(0.1, 1.005 * concentration, 500): 50}, 1e-4) > 2.0
    # About the Gaussian's, as in every high dimension.
    spent = rounds.epsilon({NoisySum(0.1, math.sqrt(500) / (2 * concentration)): 50}, 1e-4)
    assert spent == pytest.approx(2, rel=0.02)


KIND = Direction(0.2, 12.0, 600)


def test_rounds_of_directions_and_of_sums_compose_in_either_order():
    sums = {NoisySum(1.0, 4.0): 5, NoisySum(0.2, 1.5): 10}
    together = rounds.epsilon({KIND: 10, **sums}, 1e-4)
    assert together == rounds.epsilon({**sums, KIND: 10}, 1e-4)
    assert together > max(rounds.epsilon({KIND: 10}, 1e-4), rounds.epsilon(sums, 1e-4))
    # As if the directions were noise that hides no more.
    bound = gaussian_bound(KIND.concentration, KIND.dimension)
    assert (
        0.99
        < together / rounds.epsilon({NoisySum(1.0, 4.0): 5, NoisySum(0.2, 1.5): 10, NoisySum(0.2, bound): 10}, 1e-4)
        <= 1 + 1e-3
    )


@pytest.mark.parametrize("kind", [KIND, Direction(1.0, 4.0, 30), Direction(0.05, 80.0, 9_000)])
def test_the_gaussian_that_hides_no_more_costs_no_less(kind):
    bound = {NoisySum(kind.sampling_probability, gaussian_bound(kind.concentration, kind.dimension)): 20}
    exact = rounds.epsilon({kind: 20}, 1e-4)
    assert exact <= rounds.epsilon(bound, 1e-4) * (1 + 2 * rounds.TOLERANCE)
    assert rounds.epsilon_rdp({kind: 20}, 1e-4) == rounds.epsilon_rdp(bound, 1e-4) >= exact


def test_several_units_of_a_person_turn_a_direction_no_further_than_one():
    once = Direction(1 - 0.8**3, KIND.concentration, KIND.dimension)
    assert rounds.epsilon_group({KIND: 7}, 1e-4, 3) == pytest.approx(rounds.epsilon({once: 7}, 1e-4), rel=1e-9)
    # Of noisy sums, several units are several times as far apart.
    bound = {NoisySum(0.2, gaussian_bound(KIND.concentration, KIND.dimension)): 7}
    assert rounds.epsilon_group({KIND: 7}, 1e-4, 3) < rounds.epsilon_group(bound, 1e-4, 3)


def test_the_trade_off_of_directions_is_that_of_their_epsilons():
    (misses,) = rounds.trade_off({KIND: 10}, [0.01])
    for delta in (1e-4, 1e-2):
        epsilon_ = rounds.epsilon({KIND: 10}, delta)
        assert misses >= 1 - delta - math.exp(epsilon_) * 0.01 - 1e-3
    assert rounds.exact_mu({Direction(1.0, 3.0, 50): 2}) is None
