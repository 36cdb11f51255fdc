r"""The distribution of the cosine between the centre and the output of the von Mises-Fisher mechanism.

The privacy of the mechanism depends on this distribution alone. The worst neighbour of a centre x is the opposite
centre -x. For this pair the privacy loss of an output y is :math:`2 \kappa t` with the cosine :math:`t = x^T y`. Its
density is :math:`\propto e^{\kappa t} (1-t^2)^{(p-3)/2}` under the centre x, and
:math:`\propto e^{-\kappa t} (1-t^2)^{(p-3)/2}` under -x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from zetadp.base.validation import in_range
from zetadp.directions.bessel import mean_cosine, order_of

MOST_CONCENTRATION = 1e4
"""Largest concentration. Above it, a single release would have an epsilon in the thousands."""

_WINDOW = 12.0
_CELLS = 20_000
_CELLS_PER_LOSS = 50
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)


@dataclass(frozen=True, eq=False)
class CosineLaw:
    """The distributions of the cosine under both centres, in narrow cells.

    Attributes
    ----------
    edges
        Cosines at the edges of the cells, shape (cell + 1,).
    nodes
        Cosines of the quadrature nodes, shape (cell, node).
    towards, away
        Logarithms of the probabilities of the nodes under the centre and under its opposite, shape (cell, node).
    outside
        Upper bound on the probability outside all cells, for both distributions.
    """

    edges: np.ndarray
    nodes: np.ndarray
    towards: np.ndarray
    away: np.ndarray
    outside: float


def cosine_law(concentration: float, dimension: int) -> CosineLaw:
    r"""Return the distributions of the cosine under a centre and its opposite.

    The logarithm of the density has a second derivative of at most :math:`-(p-3)`. Both distributions are therefore
    sub-Gaussian around their means :math:`\pm A(\kappa)` with variance :math:`1/(p-3)`. This bounds the probability
    outside the cells.

    Parameters
    ----------
    concentration
        Kappa, above zero and at most `MOST_CONCENTRATION`.
    dimension
        Real dimension p of the vector, at least 3. In lower dimensions, opposite centres are not the worst pair.

    Raises
    ------
    ValueError
        If the concentration or the dimension is out of range.
    """
    check_mechanism(concentration, dimension)
    mean = float(mean_cosine(order_of(dimension), concentration))
    reach = min(1.0, mean + _WINDOW / math.sqrt(max(dimension - 3, 1e-9)))
    cells = max(_CELLS, math.ceil(4 * concentration * reach * _CELLS_PER_LOSS))
    edges = np.linspace(-reach, reach, cells + 1)
    half = reach / cells
    nodes = (edges[:-1] + half)[:, None] + half * _NODES
    shape = (dimension - 3) / 2 * np.log1p(-nodes * nodes) + np.log(_WEIGHTS)
    total = logsumexp(shape + concentration * nodes)
    outside = 2 * math.exp(-(_WINDOW**2) / 2) if reach < 1 else 0.0
    tilt = concentration * nodes - total
    return CosineLaw(edges, nodes, shape + tilt, shape - tilt - 2 * total, outside)


def check_mechanism(concentration: float, dimension: int, probability: float = 1.0) -> None:
    """Refuse a mechanism whose privacy cannot be computed.

    Raises
    ------
    ValueError
        If the concentration, the dimension or the sampling probability is out of range.
    """
    if dimension < 3 or dimension != int(dimension):
        raise ValueError(f"Expected a whole dimension >= 3, found {dimension}.")
    in_range(0, 1, sampling_probability=probability)
    if not (0 < concentration <= MOST_CONCENTRATION and probability > 0):
        raise ValueError(
            f"Expected 0 < concentration <= {MOST_CONCENTRATION:g} and sampling probability > 0, "
            f"found {concentration} and {probability}."
        )
