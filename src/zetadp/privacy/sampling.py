"""What drawing somebody by a coin does to privacy losses and to Renyi moments, without overflow."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp


def sampled_loss(loss: np.ndarray, probability: float) -> np.ndarray:
    r"""Return :math:`\log(1 - q + q e^x)`: the loss of somebody drawn with probability q, where it would be x."""
    if probability == 1:
        return loss
    return np.asarray(np.logaddexp(math.log1p(-probability), math.log(probability) + loss))


def sampled_moment(order: int, probability: float, exponents: np.ndarray) -> float:
    r"""Return :math:`\log[(1-q)^{a-1} (a q - q + 1) + \sum_{l=2}^a \binom{a}{l} (1-q)^{a-l} q^l e^{x_l}]`.

    Parameters
    ----------
    order
        Whole order a of a Renyi divergence, at least 2.
    probability
        Chance q to be drawn, below one.
    exponents
        x of 2 to a draws, shape (a - 1,).
    """
    drawn = np.arange(2, order + 1)
    terms = (
        gammaln(order + 1) - gammaln(drawn + 1) - gammaln(order - drawn + 1)
        + (order - drawn) * math.log1p(-probability) + drawn * math.log(probability)
        + exponents
    )  # fmt: skip
    none = (order - 1) * math.log1p(-probability) + math.log1p((order - 1) * probability)
    return float(logsumexp(np.append(terms, none)))
