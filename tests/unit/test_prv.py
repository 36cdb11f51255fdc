"""Two tight accountants that share no code must agree, wherever they are asked.

`composition.epsilon_pld` rounds the privacy loss up to a grid, which gives an upper bound on epsilon. Opacus's privacy
random variables (Gopi, Lee and Wutschitz 2021, arXiv:2106.02848) preserve the mean loss of each round and bound the
error, which gives a lower and an upper bound. They compare the cohort with the patient against the cohort without: the
worse direction in all these cases. Our epsilon, of both directions, must lie between both bounds.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from opacus.accountants import PRVAccountant

from zetadp.accounting import gaussian
from zetadp.accounting.composition import Exposure, epsilon_pld
from zetadp.accounting.kinds import NoisySum

RELATIVE_ERROR, DELTA_ERROR = 0.0018, 1e-3


def bracket(mechanisms: Exposure, delta: float) -> tuple[float, float, float]:
    """Return the other accountant's lower bound on epsilon, its estimate, and its upper bound."""
    accountant = PRVAccountant()
    accountant.history = [(kind.noise_multiplier, kind.sampling_probability, n) for kind, n in mechanisms.items() if n]
    # Ours says only how fine its grid must be.
    error, delta_error = RELATIVE_ERROR * epsilon_pld(mechanisms, delta), DELTA_ERROR * delta
    with warnings.catch_warnings(), np.errstate(divide="ignore"):
        # Renyi orders only choose the width of the grid here, and a wider one than needed does no harm. The logarithm
        # of zero is that of one minus the sampling probability where all patients take part.
        warnings.filterwarnings("ignore", "Optimal order is the (largest|smallest) alpha", UserWarning)
        composed = accountant._get_dprv(eps_error=error, delta_error=delta_error)
        lower, estimate, upper = composed.compute_epsilon(delta, delta_error, error)
    return float(lower), float(estimate), float(upper)


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
    lower, estimate, upper = bracket(mechanisms, delta)
    assert lower <= epsilon_pld(mechanisms, delta) <= upper
    assert lower < estimate < upper
    # A fifth of a per cent to each side, and a tenth as much for the error in delta.
    assert upper - lower <= 2 * 1.1 * 0.002 * estimate


def test_rounds_of_different_kinds_compose():
    mechanisms = {NoisySum(0.3, 2.0): 100, NoisySum(0.05, 1.5): 200, NoisySum(0.5, 9.0): 50}
    lower, _, upper = bracket(mechanisms, 1e-4)
    assert lower <= epsilon_pld(mechanisms, 1e-4) <= upper
    _, _, without = bracket({**mechanisms, NoisySum(0.5, 9.0): 0}, 1e-4)
    assert without < lower


def test_full_participation_agrees_with_its_exact_figure():
    lower, estimate, upper = bracket({NoisySum(1.0, 2.0): 4}, 1e-5)
    exact = gaussian.epsilon(1e-5, 1.0)
    assert lower <= exact <= upper
    assert estimate == pytest.approx(exact, rel=5e-4)
