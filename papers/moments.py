"""Renyi moments of a unit that is drawn at random, computed without overflow."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp


def sampled_moment(order: int, probability: float, exponents: np.ndarray) -> float:
    r"""Return :math:`\log[(1-q)^{a-1} (a q - q + 1) + \sum_{l=2}^a \binom{a}{l} (1-q)^{a-l} q^l e^{x_l}]`.

    Parameters
    ----------
    order
        Order a of a Renyi divergence, an integer of at least 2.
    probability
        Chance q that a unit is drawn, above zero and below one.
    exponents
        The exponents :math:`x_2` to :math:`x_a`, shape (a - 1,).
    """
    orders = np.arange(2, order + 1)
    terms = (
        gammaln(order + 1) - gammaln(orders + 1) - gammaln(order - orders + 1)
        + (order - orders) * math.log1p(-probability) + orders * math.log(probability)
        + exponents
    )  # fmt: skip
    none = (order - 1) * math.log1p(-probability) + math.log1p((order - 1) * probability)
    return float(logsumexp(np.append(terms, none)))
