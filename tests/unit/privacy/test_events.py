"""Directions beside noisy sums: what they are bounded by, and what a ledger says of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from zetadp.base.validation import UserError
from zetadp.privacy.directions import Direction, cosine_law, gaussian_bound
from zetadp.privacy.events import Event
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


def test_a_direction_is_never_taken_for_several_units_under_noise():
    assert DIRECTED.kind != NoisySum(0.25, DIRECTED.kind.concentration, 103)
    assert len({DIRECTED.kind, NoisySum(0.25, DIRECTED.kind.concentration, 103)}) == 2
