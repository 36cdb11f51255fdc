from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from zetadp.accounting import composition, gaussian
from zetadp.accounting.kinds import NoisySum
from zetadp.audit.detection import Claim, Errors, trials_for_curve, upper_limit
from zetadp.audit.trainings import Audited, AuditResult

SAMPLED = {NoisySum(0.5, 2.0): 10}


def trials_of_fault(mu: float, factor: float, **how: float) -> int:
    """Return the trials that distinguish a mu from one that is larger by a factor, half way between both."""
    return trials_for_curve({NoisySum(1.0, 1 / mu): 1}, (float(ndtr(-factor * mu / 2)),) * 2, **how)


def mu_of(alpha: float, misses: float) -> float:
    """Return the smallest mu at which an attack can have these error rates."""
    return float(ndtri(1 - alpha) - ndtri(misses))


def test_the_stated_trials_have_the_stated_false_alarm_and_power():
    """Of 3000 honest audits at most 3 + 4 standard deviations refute; of 3000 faulty ones 99 % less as many do."""
    random, audits = np.random.default_rng(1), 3000
    trials = trials_of_fault(1, math.sqrt(2))
    refuted = {}
    for mu in (1.0, math.sqrt(2)):
        counts = random.binomial(trials, ndtr(-mu / 2), (audits, 2))
        bounds = [Errors(int(a), int(b), trials, trials, 0.999) for a, b in counts]
        refuted[mu] = sum(mu_of(one.alpha.upper, one.beta.upper) > 1 for one in bounds)
    assert refuted[1.0] <= 3 + 4 * math.sqrt(3)
    assert refuted[math.sqrt(2)] >= 0.99 * audits - 4 * math.sqrt(audits * 0.99 * 0.01)


@pytest.mark.parametrize(("events", "trials"), [(0, 20), (7, 20), (19, 20), (400, 1466)])
def test_the_limit_is_that_of_clopper_and_pearson(events, trials):
    limit = upper_limit(events, trials, 0.01)
    assert binom.cdf(events, trials, limit) == pytest.approx(0.01, rel=1e-6)
    assert upper_limit(trials, trials, 0.01) == 1


@pytest.mark.parametrize(("alpha", "misses"), [(0.1, 0.2), (0.4, 0.3), (0.02, 0.7)])
def test_errors_under_full_participation_mean_the_epsilon_of_their_mu(alpha, misses):
    found = Claim({NoisySum(1.0, 3.0): 5}).epsilon_of(alpha, misses)
    assert found == pytest.approx(gaussian.epsilon(1e-3, mu_of(alpha, misses)), rel=1e-3)


@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_errors_on_the_claimed_curve_of_sampled_rounds_mean_the_claimed_epsilon(alpha):
    misses = composition.trade_off(SAMPLED, [alpha])[0]
    claim = Claim(SAMPLED)
    assert claim.epsilon_of(alpha, misses) == pytest.approx(claim.epsilon, rel=2e-3)
    assert claim.epsilon_of(alpha, 0.9 * misses) > 1.02 * claim.epsilon
    assert claim.epsilon_of(alpha, 1 - alpha) == 0


def test_results_pass_exactly_where_no_more_is_shown_than_claimed():
    errors = Errors(100, 100, 1000, 1000, 0.99)
    shown = mu_of(errors.alpha.upper, errors.beta.upper)
    enough, too_small = (
        AuditResult(Audited("x"), Claim({NoisySum(1.0, by / shown): 1}), errors) for by in (0.99, 1.01)
    )
    assert enough.passed
    assert not too_small.passed
    assert enough.measured < enough.estimate


@pytest.mark.parametrize(
    "wrong", [{"false_alarms": 11}, {"misses": -1}, {"trials_in": 0}, {"confidence": 0.2}], ids=lambda w: next(iter(w))
)
def test_impossible_counts_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Errors(**{"false_alarms": 1, "misses": 1, "trials_out": 10, "trials_in": 10, "confidence": 0.9, **wrong})
