"""Directions beside noisy sums: what they are bounded by, and what a ledger says of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from zetadp.base.validation import UserError
from zetadp.privacy.directions import Direction, cosine_law, gaussian_bound
from zetadp.privacy.events import Event, histories
from zetadp.privacy.kinds import NoisySum


def directed(event: Event, dimension: int) -> Event:
    return replace(event, kind=Direction.hiding(event.kind, dimension))


SUM = Event.poisson("node-01", population=40, expected=10, noise_multiplier=2.0, clip=1.5)
DIRECTED = directed(SUM, 103)


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
    assert DIRECTED.kind == Direction(0.25, math.sqrt(100) / 4, 103)
    assert SUM.kind == NoisySum(0.25, 2.0)
    assert pytest.approx(2.0) == DIRECTED.noise_multiplier


@pytest.mark.parametrize("event", [SUM, DIRECTED, replace(SUM, clip=math.inf, kind=NoisySum(0.25, 0.0), count=7)])
def test_a_ledger_gives_back_an_event(event):
    assert Event.from_json(json.loads(json.dumps(event.to_json()))) == event


@pytest.mark.parametrize(
    "changes",
    [
        {"law": "laplace"},
        {"law": "von_mises_fischer"},
        {"dimension": 2},
        {"concentration": 0.0},
        {"concentration": "2"},
        {"concentration": True},
        {"sampling_probability": 1e-300},
        {"units": 2},
    ],
)
def test_a_kind_that_cannot_be_accounted_for_is_refused(changes):
    content = DIRECTED.to_json()
    with pytest.raises(UserError):
        Event.from_json(content | {"kind": content["kind"] | changes})


def test_a_run_has_directions_of_one_law_or_none():
    louder = replace(SUM, kind=NoisySum(0.25, 3.0))
    for other in (SUM, directed(SUM, 104), directed(louder, 103)):
        with pytest.raises(UserError, match="constants of a run"):
            histories([DIRECTED, replace(other, round=1)])


def test_a_direction_is_never_taken_for_several_units_under_noise():
    assert DIRECTED.kind != NoisySum(0.25, DIRECTED.kind.concentration, 103)
    assert len({DIRECTED.kind, NoisySum(0.25, DIRECTED.kind.concentration, 103)}) == 2
