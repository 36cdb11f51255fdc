r"""How many units to mix into a row: enough that noise is small, few enough that rows differ.

Too many, and all rows are the same mean; too few, and noise hides them. The degree that makes the bound on the error of
a linear regression least follows from public constants alone, so no search touches private data: Li, Cao and Yao,
arXiv:2202.06467, Theorem 3.2, with the argmax that its proof calls for: :math:`m^* = \nu^* n / \sqrt T`, where
:math:`\nu^* = 0.50498 \mu` is the place of the maximum of :math:`\nu \ln(1 + \mu^2 / \nu^2)`.
"""

from __future__ import annotations

import math

from zetadp.privacy import gaussian
from zetadp.validation import UserError

BEST = 0.5049762122
"""nu* in units of mu."""
WITHOUT_NOISE = 10.0
"""Epsilon whose degree rows without noise are mixed by."""


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
    mu = gaussian.mu(min(epsilon, WITHOUT_NOISE), delta) * math.sqrt(share)
    degree = BEST * mu * population / math.sqrt(rows)
    if degree < 1:
        most = int((BEST * mu * population) ** 2)
        advice = f"rows up to {most}" if most else "a larger epsilon"
        usual = f", for example {population}" if 0 < population <= most else ""
        raise UserError(
            f"Expected a number of rows that mix at least one patient each, found {rows} rows of {population} patients "
            f"at epsilon {epsilon:g}, for which the best degree of mixing is {degree:.2g}. Choose {advice}{usual}, or "
            "give training.mixing.degree yourself."
        )
    return min(degree, population * share)
