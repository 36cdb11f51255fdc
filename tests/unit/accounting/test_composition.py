"""Composition of rounds: published values, independent integration, and what more of anything must do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.special import ndtr
from scipy.stats import norm

from zetadp.accounting import composition, gaussian
from zetadp.accounting.events import Event, NodeHistory, histories
from zetadp.accounting.kinds import NoisySum
from zetadp.base.epsilon import SMALLEST_DELTA
from zetadp.base.validation import UserError

P = 24 / 44


def entry(node="a", number=0, sigma=2.0, **changes):
    values = {"population": 44, "expected": 24.0, "clip": 1.0, **changes}
    kind = NoisySum(values.pop("sampling_probability", P), sigma)
    return Event(node=node, round=number, kind=kind, **values)


def one_round_delta(epsilon, p, sigma):
    """Closed form for one round, the worse of the two directions."""
    # Removing: (1-p) N(0) + p N(1) against N(0); the densities cross at one point.
    crossing = sigma**2 * math.log((math.exp(epsilon) - 1 + p) / p) + 0.5
    away = ndtr(-crossing / sigma)
    remove = (1 - p) * away + p * ndtr(-(crossing - 1) / sigma) - math.exp(epsilon) * away
    # Adding: N(0) against the mixture; no crossing once exp(-epsilon) is below 1-p.
    add = 0.0
    if math.exp(-epsilon) > 1 - p:
        crossing = sigma**2 * math.log((math.exp(-epsilon) - 1 + p) / p) + 0.5
        near = ndtr(crossing / sigma)
        add = near - math.exp(epsilon) * ((1 - p) * near + p * ndtr((crossing - 1) / sigma))
    return max(remove, add)


@pytest.mark.parametrize("p", [0.01, 0.5, 0.95])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_one_round_agrees_with_its_closed_form(p, sigma):
    for epsilon in (0.05, 0.3, 1.0):
        exact = one_round_delta(epsilon, p, sigma)
        if exact >= SMALLEST_DELTA:
            found = composition.epsilon_pld({NoisySum(p, sigma): 1}, exact)
            assert epsilon * (1 - 1e-9) <= found <= epsilon * 1.002


@pytest.mark.parametrize(
    "mechanisms",
    [
        {NoisySum(1.0, 4.0): 3},
        {NoisySum(P, 8.0): 20},
        {NoisySum(0.3, 2.0): 4, NoisySum(1.0, 6.0): 2},
    ],
)
def test_an_accountant_of_others_finds_the_same_of_what_is_exported(mechanisms):
    other = PLDAccountant(value_discretization_interval=1e-3)
    for kind, count in mechanisms.items():
        other.compose(kind.dp_event(), count)
    assert other.get_epsilon(1e-3) == pytest.approx(composition.epsilon(mechanisms, 1e-3), rel=5e-3)


def test_full_participation_is_exact_and_the_distribution_confirms_it():
    key = {NoisySum(1.0, 77.966): 900, NoisySum(1.0, 60.0): 17}
    mu = math.sqrt(900 / 77.966**2 + 17 / 60**2)
    assert composition.exact_mu(key) == pytest.approx(mu)
    exact = gaussian.epsilon(1e-3, mu)
    assert composition.epsilon(key, 1e-3) == exact
    assert exact <= composition.epsilon_pld(key, 1e-3) <= exact * 1.0005
    assert composition.epsilon_group(key, 1e-3, 3) == pytest.approx(gaussian.epsilon(1e-3, 3 * mu))
    assert composition.epsilon_group(composition.grouped(key, 2), 1e-3, 3) == pytest.approx(
        gaussian.epsilon(1e-3, 6 * mu)
    )
    assert composition.epsilon({NoisySum(1.0, 77.966): 917}, 1e-3) == pytest.approx(1, rel=2e-4)


def test_trade_off_bounds_the_best_test_of_one_round_closely():
    """Threshold tests are optimal for one round: their error must lie above the curve, and only just."""
    p, sigma = 0.5, 2.0
    alphas = [0.02, 0.1, 0.3, 0.6]
    curve = composition.trade_off({NoisySum(p, sigma): 1}, alphas)
    assert curve == sorted(curve, reverse=True)
    for alpha, bound in zip(alphas, curve, strict=True):
        threshold = norm.isf(alpha, scale=sigma)
        miss = (1 - p) * norm.cdf(threshold, scale=sigma) + p * norm.cdf(threshold, loc=1, scale=sigma)
        assert bound <= miss + 1e-9
        assert bound == pytest.approx(miss, abs=0.01)


def test_rounding_errors_of_millions_of_rounds_do_not_decide_epsilon():
    """Rounding errors of the distribution's tail are larger than this delta, so it is not evidence."""
    exposure = {NoisySum(1e-6, 0.3): 10**7}
    assert composition.epsilon_pld(exposure, 1e-10) == math.inf
    found, accountant = composition.quoted(exposure, 1e-10)
    assert found == pytest.approx(composition.epsilon_rdp(exposure, 1e-10), rel=1e-5)
    assert accountant == "Renyi differential privacy"


def test_rare_large_losses_are_accounted_in_seconds():
    """Two draws in ten million rounds have probability 5e-5, so delta leaves out a fifth of their sums, near 10,000."""
    two_draws = (1e7 * 1e-9) ** 2 / 2
    loss = norm(2 * 0.5 / 0.01**2 + 2 * math.log(1e-9), math.sqrt(2) / 0.01)
    expected = loss.isf(1e-5 / two_draws)
    assert composition.epsilon({NoisySum(1e-9, 0.01): 10**7}, 1e-5) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("p", "delta", "slack"),
    [
        (0.01, 1e-5, 0.3),
        (1e-9, 1e-10, 0.02),  # divergences below the rounding errors of their computation
    ],
)
def test_more_rounds_than_a_distribution_is_computed_of_still_have_a_bound(p, delta, slack):
    sigma, rounds = 1e3, 10**9
    # So many rounds are the central limit to within a millionth.
    limit = gaussian.epsilon(delta, composition.central_limit_mu(p, sigma, rounds))
    exposure = {NoisySum(p, sigma): rounds}
    assert limit <= composition.epsilon(exposure, delta) <= limit + slack
    assert composition.epsilon_rdp(exposure, delta) >= limit
    attack = gaussian.beta(0.1, composition.central_limit_mu(p, sigma, rounds))
    assert 0 <= composition.trade_off(exposure, [0.1])[0] <= attack


@pytest.mark.parametrize(
    "values", [(0.0, 1.0), (1e-300, 1.0), (1.1, 1.0), (0.5, -1.0), (0.5, 1e-200), (0.5, math.inf), (0.5, math.nan)]
)
def test_impossible_kinds_are_refused(values):
    with pytest.raises(UserError, match="Expected"):
        NoisySum(*values)


@pytest.mark.parametrize("count", [-1, 10**15])
def test_impossible_numbers_of_releases_are_refused(count):
    with pytest.raises(UserError, match="releases"):
        composition.epsilon({NoisySum(0.5, 1.0): count}, 1e-3)


@pytest.mark.parametrize("delta", [0, 1e-12, 1, math.nan])
def test_a_delta_beyond_the_accuracy_of_the_accountant_is_refused(delta):
    with pytest.raises(ValueError, match="delta"):
        composition.epsilon_pld({NoisySum(0.5, 1.0): 1}, delta)


# Events


def test_a_round_survives_json():
    for record in (entry(), entry(sigma=0.0, clip=math.inf)):
        assert Event.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("law", "von_mises_fischer"),
        ("noise_multiplier", "2"),
        ("noise_multiplier", True),
        ("rows", 2),
    ],
)
def test_a_kind_that_cannot_be_accounted_for_is_refused(key, value):
    content = entry().to_json()
    with pytest.raises((UserError, ValueError, TypeError), match=key):
        Event.from_json({**content, "kind": {**content["kind"], key: value}})


@pytest.mark.parametrize(
    "changes",
    [{"number": -1}, {"sigma": -1.0}, {"sigma": math.inf}, {"expected": 45.0}, {"clip": 0.0}, {"clip": math.inf}],
)
def test_impossible_entries_are_refused(changes):
    with pytest.raises((UserError, ValueError), match="Expected"):
        entry(**changes)


def test_histories_count_replays_and_missing_nodes():
    rounds = [entry(node, number) for number in range(4) for node in "ab"]
    rounds += [entry("a", 1), entry("a", 4)]  # round 1 sent twice by a; round 4 never came from b
    found = histories(rounds)
    assert found["a"] == NodeHistory(44, 24.0, 1.0, NoisySum(P, 2.0), 1, rounds=5, releases=6, unshielded=3)
    assert found["b"] == NodeHistory(44, 24.0, 1.0, NoisySum(P, 2.0), 1, rounds=4, releases=4, unshielded=1)


@pytest.mark.parametrize("changes", [{"clip": 2.0}, {"sigma": 3.0}, {"count": 2}])
def test_two_runs_in_one_ledger_are_refused(changes):
    with pytest.raises(UserError, match="its own file"):
        histories([entry(), entry(number=1, **changes)])


def test_an_odometer_holds_for_whoever_stops_when_a_loss_is_high():
    """A hundred small runs; who stops at the first total that the loss exceeds spends more than a filter's delta."""
    mu, most, trials, delta = 0.1, 100, 20_000, 1e-3
    kind, random = NoisySum(1.0, 1 / mu), np.random.default_rng(1)
    losses = np.cumsum(mu**2 / 2 + mu * random.standard_normal((most, trials)), axis=0)
    reached = {}
    for total in (composition.epsilon, composition.epsilon_any_time):
        above = losses - np.array([total({kind: runs}, delta) for runs in range(1, most + 1)])[:, None]
        stops = np.where((above > 0.2).any(axis=0), (above > 0.2).argmax(axis=0), most - 1)
        beyond = above[stops, np.arange(trials)]
        reached[total] = np.where(beyond > 0, -np.expm1(-np.maximum(beyond, 0)), 0).mean()
    assert reached[composition.epsilon_any_time] <= delta < 2 * delta < reached[composition.epsilon]
