r"""The degree of mixing: how many units to mix into a row.

With too many units all rows are nearly the same mean. With too few, the noise hides them. The degree used here is the
minimiser of a bound on the error of a linear regression (Li, Cao and Yao, arXiv:2202.06467, Theorem 3.2). It follows
from public constants alone, so no search touches private data: :math:`m^* = \nu^* n / \sqrt T`, where
:math:`\nu^* = 0.50498 \mu` maximises :math:`\nu \ln(1 + \mu^2 / \nu^2)`. The theorem prints "argmin" here; its proof
needs the argmax.
"""

from __future__ import annotations

import math
from fractions import Fraction

from zetadp.base.validation import UserError, positive
from zetadp.privacy import gaussian

BEST_RATIO = 0.5049762122
"""The maximiser nu* divided by mu."""
WITHOUT_NOISE = 10.0
"""Largest epsilon that sets the degree. Rows without noise use the degree of this epsilon."""


def best_mixed(mu: float, units: int, rounds: int, class_rate: float = 1.0) -> float:
    r"""Return the degree of mixing that minimises the bound of Theorem 3.2, :math:`0.505 \mu n / \sqrt{T}`.

    The paper has two misprints in this formula: "argmin" for argmax, and :math:`n \sqrt{T}` for :math:`n / \sqrt{T}`.

    Parameters
    ----------
    mu
        The guarantee in terms of Gaussian differential privacy.
    units
        Number of units n.
    rounds
        Number of released rows T.
    class_rate
        Share p of the rows that are open to a class. Below one, the safe rule of Hierarchical Sampling applies: the
        formula then uses :math:`\sqrt{p} \mu`.

    Returns
    -------
    Expected number of units in a row. It may be below one.
    """
    positive(mu=mu, units=units, rounds=rounds)
    return BEST_RATIO * mu * math.sqrt(class_rate / rounds) * units


def usual_rows(population: int, active: float) -> int:
    """Return the default number of rows: the number of units, rounded up until every class has a whole number of rows.

    Parameters
    ----------
    population
        Number of units.
    active
        Share of the rows that are open to each class.
    """
    whole = Fraction(repr(active)).denominator
    return math.ceil(population / whole) * whole


def best_degree(epsilon: float, delta: float, *, population: int, rows: int, share: float = 1.0) -> float:
    r"""Return the best degree of mixing m for a guarantee.

    Parameters
    ----------
    epsilon, delta
        The target. An epsilon above `WITHOUT_NOISE` counts as `WITHOUT_NOISE`.
    population
        Number of units at the node, n.
    rows
        Number of rows that the node releases, T.
    share
        Share of the rows that are open to a class. For one unit, :math:`\mu` becomes :math:`\mu \sqrt{share}`.

    Returns
    -------
    Expected number of units in a row, from one to ``population * share``.

    Raises
    ------
    UserError
        If the theorem's degree is below one unit per row, where it has no meaning.
    """
    mu = gaussian.mu(min(epsilon, WITHOUT_NOISE), delta)
    degree = best_mixed(mu, population, rows, share)
    if degree < 1:
        most = int(best_mixed(mu, population, 1, share) ** 2)
        advice = f"at most {most} rows" if most else "a larger epsilon"
        usual = f", for example {population}" if 0 < population <= most else ""
        raise UserError(
            f"Expected rows that mix at least one patient each, found {rows} rows of {population} patients at epsilon "
            f"{epsilon:g}. The best degree of mixing would be {degree:.2g} patients per row. Choose {advice}{usual}, "
            "or set training.mixing.degree."
        )
    return min(degree, population * share)
