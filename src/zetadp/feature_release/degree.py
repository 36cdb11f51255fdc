r"""How many units to mix into a row: enough that noise is small, few enough that rows differ.

Too many, and all rows are the same mean; too few, and noise hides them. The degree that makes the bound on the error of
a linear regression least follows from public constants alone, so no search touches private data: Li, Cao and Yao,
arXiv:2202.06467, Theorem 3.2, with the argmax that its proof calls for: :math:`m^* = \nu^* n / \sqrt T`, where
:math:`\nu^* = 0.50498 \mu` is the place of the maximum of :math:`\nu \ln(1 + \mu^2 / \nu^2)`.
"""

from __future__ import annotations

import math
from fractions import Fraction

from zetadp.privacy import gaussian
from zetadp.validation import UserError, positive

BEST_RATIO = 0.5049762122
"""nu* in units of mu."""
WITHOUT_NOISE = 10.0
"""Epsilon whose degree rows without noise are mixed by."""


def best_mixed(mu: float, records: int, rounds: int, class_rate: float = 1.0) -> float:
    r"""Return the mixup degree at which the bound of Theorem 3.2 is least, :math:`0.505 \mu n / \sqrt{T}`.

    The paper prints the same formula once with "argmin" for argmax and once with :math:`n \sqrt{T}`. A class rate
    below one applies the safe rule of Hierarchical Sampling, by which `mu` of all rows leaves :math:`\sqrt{p} \mu`.
    """
    positive(mu=mu, records=records, rounds=rounds)
    return BEST_RATIO * mu * math.sqrt(class_rate / rounds) * records


def usual_rows(population: int, active: float) -> int:
    """Return how many rows to release where nobody says: as many as units, or a few more, so that shares are whole."""
    whole = Fraction(repr(active)).denominator
    return math.ceil(population / whole) * whole


def best_degree(epsilon: float, delta: float, *, population: int, rows: int, share: float = 1.0) -> float:
    r"""Return the degree of mixing m that suits a guarantee.

    Parameters
    ----------
    epsilon, delta
        The target; an infinite one is taken as `WITHOUT_NOISE`.
    population
        Units at the node, n.
    rows
        Rows that it releases, T.
    share
        Share of the rows that are open to a class; :math:`\mu` then is :math:`\mu \sqrt{share}` to a unit.

    Raises
    ------
    UserError
        If the theorem's degree is below one unit a row, where it means nothing.
    """
    mu = gaussian.mu(min(epsilon, WITHOUT_NOISE), delta)
    degree = best_mixed(mu, population, rows, share)
    if degree < 1:
        most = int(best_mixed(mu, population, 1, share) ** 2)
        advice = f"rows up to {most}" if most else "a larger epsilon"
        usual = f", for example {population}" if 0 < population <= most else ""
        raise UserError(
            f"Expected a number of rows that mix at least one patient each, found {rows} rows of {population} patients "
            f"at epsilon {epsilon:g}, for which the best degree of mixing is {degree:.2g}. Choose {advice}{usual}, or "
            "give training.mixing.degree yourself."
        )
    return min(degree, population * share)
