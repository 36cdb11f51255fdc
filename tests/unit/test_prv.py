"""Two tight accountants that share no code must agree, wherever they are asked."""

from __future__ import annotations

import pytest
from prv import epsilon_bracket

from zetadp.privacy import gaussian
from zetadp.privacy.accounting import epsilon_pld
from zetadp.privacy.kinds import NoisySum

P = 24 / 44

# Sampling probability, noise, rounds, delta: epsilon from 0.1 to 20, p from 0.01 to 24/44, 1 to 10 083 rounds.
CASES = {
    "headline, epsilon 1": (P, 42.55, 917, 1e-3),
    "headline, epsilon 8": (P, 7.9565, 917, 1e-3),
    "epsilon 20": (P, 4.1, 917, 1e-3),
    "epsilon 0.1": (P, 30.0, 10, 1e-3),
    "one round": (P, 2.0, 1, 1e-3),
    "one rare round": (0.01, 1.0, 1, 1e-6),
    "central, epsilon 1": (24 / 484, 12.85, 10_083, 1e-3),
    "central, epsilon 10": (24 / 484, 2.14, 10_083, 1e-3),
    "small batches, little noise": (0.01, 0.6, 1000, 1e-5),
    "small delta": (0.2, 20.0, 30, 1e-6),
}


@pytest.mark.parametrize("case", CASES)
def test_the_quoted_figure_lies_inside_the_bracket(case):
    probability, noise, rounds, delta = CASES[case]
    mechanisms = {NoisySum(probability, noise): rounds}
    lower, estimate, upper = epsilon_bracket(mechanisms, delta)
    assert lower <= epsilon_pld(mechanisms, delta) <= upper
    assert lower < estimate < upper
    # 0.2 per cent to each side, and a tenth as much for the error in delta.
    assert upper - lower <= 2 * 1.1 * 0.002 * estimate


def test_rounds_of_different_kinds_compose():
    mechanisms = {NoisySum(0.3, 2.0): 100, NoisySum(0.05, 1.5): 200, NoisySum(0.5, 9.0): 50}
    lower, _, upper = epsilon_bracket(mechanisms, 1e-4)
    assert lower <= epsilon_pld(mechanisms, 1e-4) <= upper
    _, _, without = epsilon_bracket({**mechanisms, NoisySum(0.5, 9.0): 0}, 1e-4)
    assert without < lower


def test_full_participation_agrees_with_its_exact_figure():
    lower, estimate, upper = epsilon_bracket({NoisySum(1.0, 2.0): 4}, 1e-5)
    exact = gaussian.epsilon(1e-5, 1.0)
    assert lower <= exact <= upper
    assert estimate == pytest.approx(exact, rel=5e-4)
