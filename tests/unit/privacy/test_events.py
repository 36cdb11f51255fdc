"""Directions beside noisy sums: what they are bounded by, and what a ledger says of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from zetadp.base.validation import UserError
from zetadp.directions.cosine import cosine_law
from zetadp.privacy.events import Direction, Round, gaussian_bound, histories

SUM = Round.poisson("node-01", population=40, expected=10, noise_multiplier=2.0, clip=1.5)
DIRECTED = SUM.as_direction(103)


@pytest.mark.parametrize("dimension", [4, 5, 20, 1000])
@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_no_attack_on_a_direction_beats_the_best_one_on_the_noise_that_bounds_it(mu, dimension):
    law = cosine_law(gaussian_bound(1 / mu, dimension), dimension)
    power, false_alarms = (np.exp(mass).sum(axis=1)[::-1].cumsum() for mass in (law.towards, law.away))
    inner = (false_alarms > 1e-12) & (power < 1 - 1e-12)
    found = norm.ppf(power[inner]) - norm.ppf(false_alarms[inner])
    assert found.max() <= mu * (1 + 1e-6)
    # It is no empty bound: of weak concentration in many dimensions it is all but reached.
    assert dimension < 1000 or found.max() > 0.99 * mu


def test_a_bound_is_refused_where_there_is_none():
    with pytest.raises(ValueError, match="above 3"):
        gaussian_bound(1.0, 3)
    with pytest.raises(ValueError, match="level"):
        gaussian_bound(0.0, 30)


def test_a_direction_is_as_concentrated_as_the_noise_allows():
    assert DIRECTED.mechanism == Direction(0.25, pytest.approx(math.sqrt(100) / 4), 103)
    assert SUM.mechanism == (0.25, 2.0)


def test_a_ledger_says_all_of_a_direction_and_nothing_new_of_a_sum():
    content = DIRECTED.to_json()
    assert content.keys() - SUM.to_json().keys() == {"concentration", "dimension"}
    assert Round.from_json(content) == DIRECTED
    assert Round.from_json(SUM.to_json()) == SUM


@pytest.mark.parametrize(
    "changes", [{"noise_multiplier": 2.01}, {"noise_multiplier": 0.0}, {"dimension": 3}, {"concentration": 2.6}]
)
def test_a_direction_that_hides_less_than_it_says_is_refused(changes):
    with pytest.raises(ValueError, match="Expected"):
        replace(DIRECTED, **changes)
    with pytest.raises(UserError, match="not a round"):
        Round.from_json(DIRECTED.to_json() | changes)


def test_a_run_has_directions_of_one_law_or_none():
    for other in (SUM, SUM.as_direction(104), replace(SUM, noise_multiplier=3.0).as_direction(103)):
        with pytest.raises(UserError, match="constants of a run"):
            histories([DIRECTED, replace(other, round=1)])


def test_a_direction_is_never_taken_for_several_units_under_noise():
    assert DIRECTED.mechanism != (0.25, DIRECTED.concentration, 103)
    assert len({DIRECTED.mechanism, (0.25, DIRECTED.concentration, 103)}) == 2
