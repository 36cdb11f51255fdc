"""A second tight accountant, from other authors and with another method: Opacus's privacy random variables.

`accounting.epsilon_pld` rounds the privacy loss up to a grid, which gives an upper bound on epsilon. Privacy random
variables (Gopi, Lee and Wutschitz 2021, arXiv:2106.02848) preserve the mean loss of each round and bound the error,
which gives a lower and an upper bound. The two accountants share no code. Our epsilon must lie between both bounds.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
from opacus.accountants import PRVAccountant

if TYPE_CHECKING:
    from zetadp.privacy.accounting import Exposure

DELTA_ERROR = 1e-3
"""Error in delta, as a fraction of delta, that the bracket includes; it moves epsilon by about 1e-4 of itself."""

_FIRST_ERROR = 0.1
_SMALLEST_ERROR = 1e-4


def epsilon_bracket(mechanisms: Exposure, delta: float, relative_error: float = 0.002) -> tuple[float, float, float]:
    """Return a lower bound on epsilon, an estimate, and an upper bound.

    Parameters
    ----------
    mechanisms
        Number of noisy sums of each kind. One without noise makes epsilon infinite.
    delta
        Above zero, below one.
    relative_error
        Largest error of the method, as a fraction of epsilon. (Opacus's default is an absolute error of 0.01.) The
        bracket is twice as wide, plus a little for the error in delta.

    Returns
    -------
    lower, estimate, upper

    Notes
    -----
    Neighbours are compared in one direction: the cohort with the patient against the cohort without. This is the worse
    direction in all cases that the tests compare with `accounting.epsilon_pld`, which uses both directions.
    """
    accountant = _accountant(mechanisms)
    if not accountant.history:
        return 0.0, 0.0, 0.0
    if any(sigma == 0 for sigma, _, _ in accountant.history):
        return math.inf, math.inf, math.inf
    # A coarse bracket first: the fine one needs epsilon itself to turn a relative error into an absolute one.
    error = _FIRST_ERROR
    lower, estimate, upper = _bracket(accountant, delta, error)
    while lower <= 0 < upper and error > _SMALLEST_ERROR:
        error /= 10
        lower, estimate, upper = _bracket(accountant, delta, error)
    if lower > 0:
        lower, estimate, upper = _bracket(accountant, delta, relative_error * lower)
    return max(lower, 0.0), max(estimate, 0.0), max(upper, 0.0)


def _accountant(mechanisms: Exposure) -> PRVAccountant:
    """Return Opacus's accountant with these rounds, in its own order (noise, probability, count)."""
    accountant = PRVAccountant()
    for kind, count in mechanisms.items():
        if count:
            accountant.history.append((kind.noise_multiplier, kind.sampling_probability, count))
    return accountant


def _bracket(accountant: PRVAccountant, delta: float, error: float) -> tuple[float, float, float]:
    """Return lower bound, estimate and upper bound at an absolute error in epsilon."""
    delta_error = DELTA_ERROR * delta
    with warnings.catch_warnings(), np.errstate(divide="ignore"):
        # Renyi orders only choose the width of the grid here, and a wider one than needed does no harm. The logarithm
        # of zero is that of one minus the sampling probability where all patients take part.
        warnings.filterwarnings("ignore", "Optimal order is the (largest|smallest) alpha", UserWarning)
        composed = accountant._get_dprv(eps_error=error, delta_error=delta_error)
        lower, estimate, upper = composed.compute_epsilon(delta, delta_error, error)
    return float(lower), float(estimate), float(upper)
